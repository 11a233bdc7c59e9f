"""Expands a document into the runs that it describes: overrides, `cases` × `sweep`, labels, and places of values."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fredsim.config.document import (
    Document,
    PlaceOf,
    assign,
    flatten,
    name_of_override,
    overlap,
    parse_override,
    problems_at,
    read_document,
)
from fredsim.config.experiment import Experiment, Published, config_digest
from fredsim.config.figures.choice import FigureChoice, read_figures
from fredsim.config.registry import has_clock
from fredsim.config.resolution import placed, resolve
from fredsim.config.shipped import shipped
from fredsim.config.sweep.each_run import for_each_run
from fredsim.config.sweep.figure_checks import check_figures
from fredsim.config.sweep.grid import grid, refuse_clashes, refuse_too_many
from fredsim.config.sweep.selection import Selection, check_selection
from fredsim.config.yaml_reader import Key, checked
from fredsim.errors import ConfigError, SimulationError, nearest, shown
from fredsim.hyper import HyperParameters, explain
from fredsim.plugins.modules import look_as_recorded, look_in

__all__ = [
    "Expansion",
    "Outline",
    "ResolvedRun",
    "Source",
    "expand",
    "folder_label",
    "label_of",
    "open_source",
    "outline_of",
]  # fmt: skip


Model = TypeVar("Model", bound=HyperParameters)
Source = str | os.PathLike[str] | Mapping[str, Any]


def open_source(source: Source) -> Document:
    """Return the document of a YAML file, a folder of results, an experiment that comes with fredsim, or a dict.

    From then on a user's modules are also looked up beside the file (fredsim.plugins.modules). Raises ConfigError if
    there is no such file.
    """
    if isinstance(source, Mapping):
        look_in()
        return Document(checked(dict(source), (), Document.source))
    path = Path(source)
    look_in(path.parent)
    recorded = next((name for name in ("config.yaml", "sweep.yaml") if os.path.lexists(path / name)), None)
    folder = path if recorded else None
    if recorded:
        path = path / recorded
    elif not os.path.exists(path):  # unlike Path.exists, False for a name that no file can have
        name, known = os.path.splitext(path.as_posix())[0], shipped()
        if name not in known:
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


def _files_beside(path: Path) -> list[str]:
    """Return the names of the YAML files in a path's folder."""
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
    figures: Sequence[FigureChoice] = ()
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
        return _keys_of(self.source.get("cases", []))


@dataclass(frozen=True)
class Outline:
    """What a sweep varies, which is known without resolving its experiments, and so without importing a user's code.

    `runs` has the plain data of each run before it is resolved, and the run's values of the axes.
    """

    runs: list[tuple[dict[str, Any], dict[str, Any]]]
    cases: list[str]
    selection: Selection | None


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
    if isinstance(overrides, str) or not all(isinstance(text, str) for text in overrides):
        what = "it must be a list of strings, such as ['seed=1', 'server.lr=0.01']"
        raise ConfigError(f"overrides: is {shown(overrides)}; {what}")
    document = replace(document, data=copy.deepcopy(document.data), places=dict(document.places))
    per_run, overridden = _override(document, overrides)
    sweep, cases = grid(document)
    refuse_clashes(document, sweep, cases)
    refuse_too_many(document, sweep, cases)
    figures, problems = read_figures(document.data)
    if problems:
        raise problems_at(problems, document.place)
    plain = list(_each(document, per_run, overridden))
    resolved = for_each_run(plain, lambda run: resolve(run[0], run[2]), lambda run: label_of(run[1]))
    runs = [ResolvedRun(found, axes, place) for found, (_, axes, place) in zip(resolved, plain, strict=True)]
    _refuse_alike(runs, [key for key, _ in per_run], document, overridden)
    # Overrides may remove the keys that published points and figures name, unless an override gives the figures itself.
    as_written = not overridden and document.folder is None
    if as_written or any(at[0] == "figures" for at in overridden):
        published = _validated(document, "published", Published) if as_written else None
        check_figures(document, [run.experiment for run in runs], figures, published)
    source = dict(document.data)
    if per_run:
        keys = [key for key, _ in per_run]  # if a key is given twice, the last one counts
        source["overrides"] = {key: value for n, (key, value) in enumerate(per_run) if key not in keys[n + 1 :]}
    selection = _validated(document, "select", Selection)
    expansion = Expansion(runs, source, selection, figures, document.heading, document.folder)
    if selection is not None:
        _check_selection(selection, expansion, document)
    return expansion


def outline_of(document: Document) -> Outline:
    """Return what a recorded sweep varies. Raises ConfigError if the document is malformed."""
    document = replace(document, data=copy.deepcopy(document.data), places=dict(document.places))
    per_run, overridden = _override(document, ())
    refuse_too_many(document, *grid(document))
    runs = [(data, axes) for data, axes, _ in _each(document, per_run, overridden)]
    return Outline(runs, _keys_of(document.data.get("cases", [])), _validated(document, "select", Selection))


def _keys_of(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for case in cases for key in flatten(case)))


def _each(
    document: Document, per_run: Sequence[tuple[str, Any]], overridden: Set[Key]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], PlaceOf]]:
    """Yield the plain data of each run, its values of the axes, and the places of its keys. Raises ConfigError."""
    sweep, cases = grid(document)
    of_all = {"cases", "sweep", "select", *(["figures"] if sweep or cases else [])}  # keys of all runs together
    base = {key: value for key, value in document.data.items() if key not in of_all}
    for number, case in enumerate(cases or [{}]):
        for values in product(*sweep.values()):
            chosen = {**case, **dict(zip(sweep, values, strict=True))}
            data = copy.deepcopy(base)
            written: dict[Key, Key] = {tuple(key.split(".")): ("cases", number, key) for key in case}
            for key, value in zip(sweep, values, strict=True):
                written[tuple(key.split("."))] = ("sweep", key, sweep[key].index(value))
            place = partial(_place, document, written, overridden)
            for key, value in (*chosen.items(), *per_run):
                assign(data, key, copy.deepcopy(value), place(tuple(key.split("."))))
            chosen |= {axis: _found(data, axis) for axis in chosen for key, _ in per_run if overlap(axis, key)}
            yield data, chosen, place


def _check_selection(selection: Selection, expansion: Expansion, document: Document) -> None:
    """Raise ConfigError, with the key's place, if the runs do not have what `select` asks for."""
    experiments = [run.experiment for run in expansion.runs]
    with placed(document.place):
        check_selection(
            selection,
            expansion.axes,
            timed=all(has_clock(experiment.dispatcher.name) for experiment in experiments),
            normed=all(experiment.evaluation.gradient_norm for experiment in experiments),
            validated=all(getattr(experiment.data, "validation", None) != 0 for experiment in experiments),
            measured_by={experiment.measured_by for experiment in experiments},
            evaluations=[experiment.evaluation.model_dump() for experiment in experiments],
            own=_own_columns(experiments, selection.best),
        )


def _own_columns(experiments: Sequence[Experiment], wanted: str) -> list[str]:
    """Return the columns that problems of the user's own add to all runs; [] if some runs have no problem.

    If one cannot be asked, which its run will say, they are those that are `wanted`.
    """
    found: list[tuple[str, ...]] = []
    for experiment in experiments:
        if experiment.problem is None:
            return []
        try:
            found.append(experiment.problem.columns(experiment.seed))
        except SimulationError:
            return [wanted]
    return [name for name in found[0] if all(name in one for one in found)]


def _found(data: Any, key: str) -> Any:
    """Return the value of a dotted key, None if there is none."""
    for name in key.split("."):
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _refuse_alike(
    runs: Sequence[ResolvedRun], overrides: Sequence[str], document: Document, overridden: Set[Key]
) -> None:
    """Raise ConfigError if two runs of a sweep are the same: they would have the same folder."""
    seen: set[str] = set()
    for run in runs:
        name = run.folder_name  # keys that change no bit, such as `threads`, are only in the label
        if name in seen:
            sweep, _ = grid(document)
            twice = next((axis for axis, values in sweep.items() if _repeated(values)), None)
            if twice is None and overrides:
                place = document.place(tuple(overrides[-1].split(".")))
                raise ConfigError(f"{place}: two runs are the same then; give the axis other values, or sweep=null")
            key = ("cases",) if twice is None else tuple(twice.split("."))
            written: dict[Key, Key] = {} if twice is None else {key: ("sweep", twice, _repeated(sweep[twice]))}
            place = _place(document, written, overridden, key)
            raise ConfigError(f"{place}: {'.'.join(key)}: the sweep holds the run {name} twice; leave one out")
        seen.add(name)


def _repeated(values: Sequence[Any]) -> int:
    """Return the place of the first value that an earlier one equals; 0 if there is none."""
    return next((i for i, value in enumerate(values) if value in values[:i]), 0)


def _override(document: Document, overrides: Sequence[str]) -> tuple[list[tuple[str, Any]], set[Key]]:
    """Apply overrides to a document's data and places.

    Returns those that are to be applied to each run of a sweep instead (recorded ones first), and the keys of all
    overrides. Raises ConfigError.
    """
    data, places = document.data, document.places
    per_run: list[tuple[str, Any]] = []
    sweep, cases = grid(document)
    if (sweep or cases) and "overrides" in data:
        per_run = _recorded_overrides(document)
    overridden: set[Key] = {tuple(key.split(".")) for key, _ in per_run}
    of_axes: dict[str, Any] = {}
    for text in overrides:
        key, value = parse_override(text)
        at = tuple(key.split("."))
        for inner in [k for k in places if k[: len(at)] == at]:
            del places[inner]
        places[at] = name_of_override(text)
        overridden.add(at)
        if at[0] in {"sweep", "cases"} and len(at) > 1:
            raise ConfigError(f"{places[at]}: to replace an axis write its key alone, such as seed=[0,1]")
        if key in sweep:
            of_axes[key] = value
            sweep[key] = value if isinstance(value, list) else [value]
        elif key in {"sweep", "cases"} or at[0] in {"select", "figures"} or not (sweep or cases):
            assign(data, key, value, places[at])
        else:
            per_run.append((key, value))
        sweep, cases = grid(document)
        for lost in [axis for axis in of_axes if axis not in sweep]:  # this override removed the axis
            if sweep or cases:
                per_run.append((lost, of_axes.pop(lost)))
            else:
                assign(data, lost, of_axes.pop(lost), places[tuple(lost.split("."))])
    return per_run, overridden


def _recorded_overrides(document: Document) -> list[tuple[str, Any]]:
    """Move `overrides` out of a recorded sweep's data, and their places to those of their keys. Raises ConfigError."""
    found = document.data.pop("overrides")
    if not isinstance(found, dict) or not all(isinstance(key, str) and all(key.split(".")) for key in found):
        place = document.place(("overrides",))
        raise ConfigError(f"{place}: overrides: is {shown(found)}; it must map dotted keys to values")
    document.places.update({tuple(key.split(".")): document.place(("overrides", key)) for key in found})
    return list(found.items())


def _validated(document: Document, key: str, model: type[Model]) -> Model | None:
    """Return the validated value of a key for all runs together, None if it is not given. Raises ConfigError."""
    value = document.data.get(key)
    if value is None:
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise problems_at([((key, *at), text) for at, text in explain(error, model)], document.place) from None


def _place(document: Document, written: Mapping[Key, Key], overridden: Set[Key], key: Key) -> str:
    """Return the place of a key of one run; `written` says under which key of the document each case and axis is."""
    for length in range(len(key), 0, -1):
        if key[:length] in overridden:  # an override has the last word
            break
        if key[:length] in written:
            return document.place((*written[key[:length]], *key[length:]))
    return document.place(key)
