"""Expands a document into the runs that it describes: overrides, `cases` × `sweep`, labels, and places of values."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fredsim.config.document import (
    Document,
    PlaceOf,
    flatten,
    problems_at,
    read_document,
)
from fredsim.config.experiment import Affects, Experiment, Published, config_digest, irrelevant_to
from fredsim.config.figures.choice import FigureChoice, read_figures
from fredsim.config.plain_data import Key, checked
from fredsim.config.resolution import DOCUMENT_KEYS, for_each_run, placed, resolve
from fredsim.config.shipped import shipped
from fredsim.config.sweep.figure_checks import check_figures
from fredsim.config.sweep.grid import grid, refuse_clashes, refuse_too_many
from fredsim.config.sweep.outline import each_run, keys_of, override, place_of
from fredsim.config.sweep.selection import Selection, check_selection, validated
from fredsim.errors import ConfigError, nearest, shown
from fredsim.plugins.modules import look_as_recorded, look_in
from fredsim.system.given import given_path

__all__ = [
    "Expansion",
    "ResolvedRun",
    "Source",
    "expand",
    "folder_label",
    "label_of",
    "open_source",
]  # fmt: skip


NOT_COMPUTED = irrelevant_to(Affects.BITS | Affects.BITS_OF_MODULES | Affects.TIME)
RECORDED = ("config.yaml", "sweep.yaml")
#: What tells a folder of results from one in which a user keeps an experiment under such a name.
WRITTEN = ("summary.json", "metrics.csv", "runs.csv")

Source = str | os.PathLike[str] | Mapping[str, Any]


def open_source(source: Source) -> Document:
    """Return the document of a YAML file, a folder of results, an experiment that comes with fredsim, or a dict.

    From then on a user's modules are also looked up beside the file (fredsim.plugins.modules); of a folder of results,
    also if it is given by its config.yaml or sweep.yaml, only where that is safe. Raises ConfigError if there is no
    such file.
    """
    if isinstance(source, Mapping):
        look_in()
        return Document(checked(dict(source), (), Document.source))
    path = given_path(source, "the experiment's name")
    look_in(path.parent)
    inside = next((path / name for name in RECORDED if os.path.lexists(path / name)), None)
    recorded = inside or _recorded_at(path)
    folder = recorded.parent if recorded else None
    if recorded:
        path = recorded
    elif not os.path.exists(path):  # unlike Path.exists, False for a name that no file can have
        name, known = os.path.splitext(path.as_posix())[0], shipped()
        if os.path.islink(path):
            what = f"is a symbolic link to {shown(os.readlink(path))}, and no file is there"
            raise ConfigError(f"{path}: {what}; let it lead to the experiment's file, or name that")
        if name not in known:
            key, equals, _ = str(source).partition("=")
            if equals and key.partition(".")[0] in {*Experiment.model_fields, *DOCUMENT_KEYS}:
                raise ConfigError(f"{source}: is an override; name the file or the experiment before it")
            if "\n" in (text := str(source)) or "://" in text:
                what = "the text of an experiment" if "\n" in text else "an address"
                raise ConfigError(f"{shown(text)}: is {what}; save it as a file, and name that")
            near = nearest(path.name, _files_beside(path)) or nearest(name, sorted(known)) or ";"
            raise ConfigError(
                f"{path}: no such file, and no experiment of this name{near} "
                "`fredsim list experiments` names those that come with fredsim"
            )
        path = known[name]
    elif path.suffix == ".py" and path.is_file():
        raise ConfigError(
            f"{path}: is Python; name the YAML file of its experiment (`fredsim new --own server` writes both)"
        )
    document = read_document(path, follow=folder is None)
    if folder is not None:
        look_as_recorded(folder, config_digest(document.data))
    document.data.setdefault("name", path.stem)
    return replace(document, folder=folder)


def _recorded_at(path: Path) -> Path | None:
    """Return the file of a folder of results that a path names, itself or by a link; None if it is another file."""
    for file in (path, Path(os.path.realpath(path))) if os.path.isfile(path) else ():
        if file.name in RECORDED and any(os.path.lexists(file.parent / name) for name in WRITTEN):
            return file
    return None


def _files_beside(path: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(path.parent) if name.endswith((".yaml", ".yml")))
    except (OSError, ValueError):  # no such folder, or no name that a folder can have
        return []


@dataclass(frozen=True)
class ResolvedRun:
    """One run: its experiment, its values of the axes (the keys that a sweep varies), and the places of its keys."""

    experiment: Experiment
    axes: dict[str, Any]
    place: PlaceOf

    @property
    def label(self) -> str:
        """A readable name made from the axes' values; empty for a single run."""
        return label_of(self.axes)

    @property
    def folder_name(self) -> str:
        """The name of the run's folder in that of its sweep: its label, and its experiment's digest."""
        return f"{folder_label(self.axes)}-{self.experiment.digest[:8]}"


@dataclass(frozen=True)
class Expansion:
    """The runs of a document: a single one, or those of its sweep.

    `source` is the document's data with overrides applied or added; `heading` and `folder` are the document's.
    """

    runs: list[ResolvedRun]
    source: dict[str, Any]
    selection: Selection | None = None
    figures: Sequence[FigureChoice] | None = None
    heading: str = ""
    folder: Path | None = None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.runs[0].experiment.name

    @property
    def is_sweep(self) -> bool:
        """Whether the document has cases or a sweep, even of a single run."""
        return "cases" in self.source or "sweep" in self.source

    @property
    def axes(self) -> list[str]:
        """The dotted keys that `cases` and `sweep` vary, in the order in which they are written."""
        return list(dict.fromkeys(key for run in self.runs for key in flatten(run.axes)))

    @property
    def cases(self) -> list[str]:
        """The axes that `cases` vary."""
        return keys_of(self.source.get("cases", []))


def label_of(axes: Mapping[str, Any]) -> str:
    """Return a readable name made from the axes' values; empty if there are none."""
    return ",".join(f"{_clean(key.rpartition('.')[2])}={_short(value)}" for key, value in axes.items())


def folder_label(axes: Mapping[str, Any]) -> str:
    """Return the beginning of the name of a run's folder: its label, shortened if necessary."""
    return (label_of(axes) or "run").encode()[:200].decode(errors="ignore")  # file names have at most 255 bytes


def is_folder_name(name: str) -> bool:
    """Return whether a name is of the form of `folder_name`, so that it names something inside another folder."""
    label, _, digest = name.rpartition("-")
    return bool(label and re.fullmatch("[0-9a-f]{8}", digest)) and label == _clean(label)


NO_NAMES = '/\\:*?"<>|'  # characters that some systems do not allow in file names


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        rest = "".join(f"-{_clean(key)}{_short(item)}" for key, item in value.items() if key != "name")
        return f"{_short(value['name'])}{rest}" if "name" in value else rest.removeprefix("-")
    if isinstance(value, list):
        return "x".join(map(_short, value)) or "none"
    if value is None:
        return "null"
    return _clean(str(value))


def _clean(text: str) -> str:
    return "".join("_" if letter in NO_NAMES or not letter.isprintable() else letter for letter in text)


def expand(document: Document, overrides: Sequence[str] = ()) -> Expansion:
    """Return the runs of a document: for each of `cases` the grid of `sweep`, whose last axis varies fastest.

    Raises ConfigError, which names file, line and key, for the first run that is not valid.
    """
    is_list = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not is_list or not all(isinstance(text, str) for text in overrides):
        what = "it must be a list of strings, such as ['seed=1', 'server.lr=0.01']"
        raise ConfigError(f"overrides: is {shown(overrides)}; {what}")
    document = replace(document, data=copy.deepcopy(document.data), places=dict(document.places))
    per_run, overridden = override(document, overrides)
    sweep, cases = grid(document)
    refuse_too_many(document, sweep, cases, per_run)
    refuse_clashes(document, sweep, cases)
    figures, problems = read_figures(document.data)
    if problems:
        raise problems_at(problems, document.place)
    plain = list(each_run(document, per_run, overridden))
    resolved = for_each_run(plain, lambda run: resolve(run[0], run[2]), lambda run: label_of(run[1]))
    runs = [ResolvedRun(found, axes, place) for found, (_, axes, place) in zip(resolved, plain, strict=True)]
    _refuse_alike(runs, [key for key, _ in per_run], document, overridden)
    # Overrides may remove the keys that published points and figures name, unless an override gives the figures itself.
    as_written = not overridden and document.folder is None
    if as_written or any(at[0] == "figures" for at in overridden):
        published = validated(document, "published", Published) if as_written else None
        check_figures(document, [run.experiment for run in runs], figures or [], published)
    source = dict(document.data)
    if per_run:
        keys = [key for key, _ in per_run]  # if a key is given twice, the last one counts
        source["overrides"] = {key: value for n, (key, value) in enumerate(per_run) if key not in keys[n + 1 :]}
    selection = validated(document, "select", Selection)
    expansion = Expansion(runs, source, selection, figures, document.heading, document.folder)
    if selection is not None:
        with placed(document.place):
            check_selection(selection, expansion.axes, [run.experiment for run in runs])
    return expansion


def _refuse_alike(
    runs: Sequence[ResolvedRun], overrides: Sequence[str], document: Document, overridden: Set[Key]
) -> None:
    """Raise ConfigError if two runs of a sweep compute the same in the same way, or would have the same folder.

    Of those with the same bits, `threads` and others may tell how they are computed; `lr: 1` is `lr: 1.0`.
    """
    seen: dict[str, str] = {}
    for run in runs:
        name, plain = run.folder_name, run.experiment.plain()
        computed = repr({key: value for key, value in plain.items() if key not in NOT_COMPUTED})
        first = seen.get(name) or seen.get(computed)
        if first is not None:
            sweep, _ = grid(document)
            twice = next((axis for axis, values in sweep.items() if _repeated(values)), None)
            if twice is None and overrides:
                place = document.place(tuple(overrides[-1].split(".")))
                raise ConfigError(f"{place}: two runs are the same then; give the axis other values, or sweep=null")
            around = "cases" if "cases" in document.data else "sweep"
            key = (around,) if twice is None else tuple(twice.split("."))
            written: dict[Key, Key] = {} if twice is None else {key: ("sweep", twice, _repeated(sweep[twice]))}
            place = place_of(document, written, overridden, key)
            again = "" if first == name else f", also as {first}"
            raise ConfigError(f"{place}: {'.'.join(key)}: the sweep holds the run {name} twice{again}; leave one out")
        seen[name] = seen[computed] = name


def _repeated(values: Sequence[Any]) -> int:
    """Return the place of the first value that an earlier one equals; 0 if there is none."""
    return next((i for i, value in enumerate(values) if value in values[:i]), 0)
