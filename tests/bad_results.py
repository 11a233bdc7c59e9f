"""Folders of results that are damaged or mixed up, and checks of the commands that read them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.config.experiment import FIGURE_KEYS
from fredsim.config.yaml.plain_yaml import parse_yaml
from tests.bad_cases import BASE, Case, Outcome, damaged, of_json
from tests.bad_runs import Files, files_in, what_differs

__all__ = ["a_folder", "results"]

RESULTS = BASE | {
    "name": "x", "iterations": 30, "evaluation": {"every": 10, "per_client": True, "test": True},
    "probe": {"every": 10}, "average": {"name": "window", "rate": 0.5, "min_window": 2},
    "figures": [{"name": "error"}],
}  # fmt: skip
CLOCKED = RESULTS | {
    "events": True, "dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}}},
}  # fmt: skip
SWEEP = RESULTS | {"sweep": {"server.lr": [0.1, 0.01], "seed": [0, 1]}, "select": {"over": "seed"}}
KINDS_OF_FIGURES = ("curves", "staleness", "timeline", "waits", "clients", "probe")


@functools.cache
def results() -> dict[str, Files]:
    """Return the files of some runs' folders, and of a sweep's, by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in {"one": RESULTS, "two": RESULTS | {"seed": 1}, "clock": CLOCKED, "sweep": SWEEP}.items():
            fredsim.run(data, out=Path(folder, name))
            found[name] = files_in(Path(folder, name))
        with patch("fredsim.runs.single.run.MOST_CHECKPOINT_SHARE", 1e9):
            fredsim.run(CLOCKED, out=Path(folder, "kept"), checkpoint=1e-9, keep_checkpoints=True)
        found["kept"] = files_in(Path(folder, "kept"))
    return found


def a_folder(rng: random.Random) -> Case:
    """Damage the folder of a run or a sweep, and let a command read it."""
    name = rng.choice(("one", "clock", "kept", "sweep"))
    whole = results()[name]
    files = dict(whole)
    for _ in range(rng.choice((1, 1, 2))):
        _damage_file(rng, files)
    named = {f"out/{file}": content for file, content in files.items()}
    arguments, more, judge = rng.choice(COMMANDS)(rng, name, files)
    return Case("folder", arguments, named | more, judge=judge)


def _damage_file(rng: random.Random, files: Files) -> None:
    """Damage, remove or swap a file of a folder."""
    name = rng.choice(sorted(files) or ["config.yaml"])
    content = files.get(name, b"")
    what = rng.choice(("damage", "damage", "damage", "lose", "swap", "other", "folder", "empty"))
    if what == "damage" and name.endswith("json"):
        with contextlib.suppress(ValueError, RecursionError):
            files[name] = of_json(rng, content)
    elif what == "damage":
        files[name] = damaged(rng, content, text=not name.endswith(("parquet", "safetensors")))
    elif what == "lose":
        files.pop(name, None)
    elif what == "swap":  # with a file of the same name, of another run or another time
        others = [theirs[key] for theirs in results().values() for key in theirs if Path(key).name == Path(name).name]
        files[name] = rng.choice(others or [b""])
    elif what == "other":
        other = rng.choice(sorted(files) or [name])
        files[name], files[other] = files.get(other, b""), content
    elif what == "folder":
        files.pop(name, None)
        files[f"{name}/x"] = b""
    else:
        files[name] = b""


def changed(files: Files, whole: Files) -> set[str]:
    return {name for name in {*files, *whole} if files.get(name) != whole.get(name)}


Tried = tuple[list[str], Files, Callable[[Outcome], str]]


def try_verify(_: random.Random, name: str, files: Files) -> Tried:
    """Try `verify`, which must report what was changed."""

    def judge(outcome: Outcome) -> str:
        return undetected_changes(outcome, files, results()[name])

    return ["verify", "out"], {}, judge


def try_compare(rng: random.Random, name: str, files: Files) -> Tried:
    def judge(outcome: Outcome) -> str:
        return undetected_changes(outcome, *files_read(files, results()[name]))

    arguments = ["out", "whole"]
    rng.shuffle(arguments)
    return ["compare", *arguments], {f"whole/{file}": content for file, content in results()[name].items()}, judge


def files_read(files: Files, whole: Files) -> tuple[Files, Files]:
    """Return what other commands than `verify` look at: no checkpoints, and no best.csv that is lost."""
    unread = {"sweep.yaml"} if "sweep.yaml" in files else set()
    unread |= {"best.csv"} - files.keys() | {name for name in {*files, *whole} if name.startswith("checkpoint")}
    one, other = ({name: text for name, text in some.items() if name not in unread} for some in (files, whole))
    return one, other


def undetected_changes(outcome: Outcome, files: Files, whole: Files) -> str:
    """Return the changed files that a comparison should have found, but did not."""
    found = sorted(
        name
        for name in changed(files, whole)
        if not name.startswith("error") and not name.endswith("/x") and not _same_content(name, files, whole)
    )
    if outcome.code == 0 and found:
        return f"it finds no difference, and changed are {found}: {outcome.output} {outcome.messages}"
    return ""


def _same_content(name: str, files: Files, whole: Files) -> bool:
    """Return whether a change of a YAML file has no meaning: it is in a comment, in spaces, or in keys of figures."""
    if not name.endswith("yaml") or name not in files or name not in whole:
        return False
    with contextlib.suppress(ValueError, AttributeError):
        return _plain(name, files[name]) == _plain(name, whole[name])
    return False


def try_resume(rng: random.Random, name: str, files: Files) -> Tried:
    """Try `run --resume`, after which everything must be as before the damage, unless it is refused."""
    whole = results()[name]
    data = {"one": RESULTS, "clock": CLOCKED, "kept": CLOCKED, "sweep": SWEEP}[name]
    source = rng.choice(("x.yaml", "out"))

    def judge(outcome: Outcome) -> str:
        found = files_in(outcome.folder / "out")
        if outcome.code == 0:
            edited = changed(files, whole)
            if source == "out" and ("sweep.yaml" in edited or {"config.yaml", "summary.json"} <= edited):
                return ""  # it was another experiment that was to be resumed, and no digest was left to show it
            figures = {"error.pdf", "error.csv", "best.csv", *(["config.yaml"] if source == "out" else [])}
            figures |= {key for key in whole if key.startswith("checkpoint")}  # which are not kept without an option
            return what_differs(
                {key: _plain(key, value) for key, value in found.items() if key not in figures and key in whole},
                {key: _plain(key, value) for key, value in whole.items() if key not in figures},
            )
        return ""

    return ["run", source, "--resume", "--quiet", "--out", "out"], {"x.yaml": dump_yaml(data).encode()}, judge


def _plain(name: str, content: bytes) -> bytes:
    """Return a file's content; for a configuration, without the keys of figures."""
    if not name.endswith(("config.yaml", "sweep.yaml")):
        return content
    data = parse_yaml(content.decode(), name)
    return json.dumps({key: value for key, value in data.items() if key not in FIGURE_KEYS}, sort_keys=True).encode()


@functools.cache
def drawn(name: str, arguments: tuple[str, ...]) -> tuple[int, Files]:
    """Return the exit code and the files of a command that draws the undamaged folder."""
    from tests.try_bad_inputs import call

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for file, content in results()[name].items():
            Path("out", file).parent.mkdir(parents=True, exist_ok=True)
            Path("out", file).write_bytes(content)
        code, _, _ = call(list(arguments))
        found = {key: value for key, value in files_in(Path(folder)).items() if key.startswith(("out.", "out-"))}
        os.chdir(before)
    return int(code), found


def try_drawing(rng: random.Random, name: str, files: Files) -> Tried:
    """Try `plot` or `report`, which must draw the undamaged folder's figure, if it draws one."""
    kind = rng.choice(("curves", "curves", *KINDS_OF_FIGURES))
    arguments = ["plot", "out", "--kind", kind, "-o", "out.svg"]
    if rng.random() < 0.3 and importlib.util.find_spec("plotly"):
        arguments = ["report", "out", "-o", "out.html"]

    def judge(outcome: Outcome) -> str:
        if outcome.code != 0:
            return ""
        _, wanted = drawn(name, tuple(arguments))
        found = {key: value for key, value in files_in(outcome.folder).items() if key.startswith(("out.", "out-"))}
        edited = [key for key in changed(files, results()[name]) if key.endswith(("config.yaml", "sweep.yaml"))]
        names = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key) and key != "out.svg")
        return f"other numbers are drawn: {names}" if names and not edited else ""

    return arguments, {}, judge


def try_export(_: random.Random, name: str, files: Files) -> Tried:
    """Try `export`, which must refuse a folder of which a file that a run wrote was changed."""

    def judge(outcome: Outcome) -> str:
        return undetected_changes(outcome, *files_read(files, results()[name]))

    return ["export", "out", "--to", "tensorboard", "-o", "out.board"], {}, judge


def try_showing(rng: random.Random, *_: object) -> Tried:
    return [rng.choice(("show", "plan")), "out"], {}, lambda outcome: ""


COMMANDS: tuple[Callable[[random.Random, str, Files], Tried], ...] = (
    try_verify, try_verify, try_compare, try_resume, try_resume, try_drawing, try_drawing, try_showing,
    *((try_export,) if importlib.util.find_spec("tensorboard") else ()),
)  # fmt: skip
