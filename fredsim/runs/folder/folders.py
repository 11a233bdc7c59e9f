"""Folders of results: each is claimed for one experiment and locked by one process at a time; writes are atomic."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fredsim.config.document import assign, differing, dump_yaml, read_document
from fredsim.config.experiment import FIGURE_KEYS, Affects, Experiment, irrelevant_to
from fredsim.config.registry import own_modules
from fredsim.config.resolution import resolve
from fredsim.config.sweep.expansion import is_folder_name
from fredsim.config.yaml.plain_yaml import parse_yaml
from fredsim.errors import ConfigError, FredsimError, OutputError, option
from fredsim.plugins.modules import closed_but
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import FILES
from fredsim.system.csv_files import read_cells
from fredsim.system.files import remove_parts, whole_name, write_atomic, write_errors

__all__ = ["claim", "locked", "withdraw"]

#: The files of a run that has not ended, and of a sweep of which no run has ended; the first two always exist.
UNFINISHED_RUN = ("config.yaml", "metrics.csv", "probe.csv", "events.parquet", "live.csv")
UNFINISHED_SWEEP = ("sweep.yaml", "runs.csv", "best.csv")
LOCK_TIMEOUT_SECONDS = 2.0  # a process that was killed may take a moment to end
POLL_SECONDS = 0.05


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, and lock it against other processes of fredsim.

    The lock is the operating system's (flock), on the folder itself: it leaves no file behind, and ends with its
    process. Windows and some network file systems have no such locks: there, other processes are not kept out.

    Raises OutputError if another process holds the lock, or if the folder cannot be made.
    """
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with write_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(folder, lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, lock: Callable[[], None]) -> None:
    limit = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            lock()
        except BlockingIOError:
            if time.monotonic() > limit:
                what = "another process writes into it at this moment"
                raise OutputError(
                    f"{folder}: {what}; let it end, or choose another folder by {option('out')}"
                ) from None
            time.sleep(POLL_SECONDS)
        except OSError:  # a file system without locks
            return
        else:
            return


def claim(
    folder: Path,
    name: str,
    content: str,
    digest: str = "",
    runs: Collection[str] | None = None,
    *,
    goes_on: bool = False,
) -> None:
    """Claim a locked folder for one experiment, by writing `content` to its file `name` (config.yaml or sweep.yaml).

    The folder may be empty; or hold this file with content that gives the same bits; or have lost the file, if its
    summary.json has the experiment's `digest`; or hold some of a sweep's `runs`, given by the names of their folders,
    and no other. A folder in which all runs failed or were killed, before their first checkpoint, is emptied. Raises
    OutputError if it holds anything else, such as the record of a live run, unless this run `goes_on` with that.
    """
    with write_errors(folder):
        present = folder / name
        if present.is_file() and (_same_bits(present, content) or _holds_only(folder, runs)):
            if _holds_live_record(folder) and not goes_on:
                what = f"{folder} holds the record of a live run, which cannot be made again"
                raise OutputError(f"{what}; choose another folder by {option('out')}, or remove it")
        elif _is_unfinished(folder):
            _delete_contents(folder, but=name)
        elif present.is_file():
            what = f"{folder} holds another experiment{_what_differs(present, content)}"
            raise OutputError(f"{what}; choose another folder by {option('out')}, or remove it")
        elif any(path == present or whole_name(path.name) != name for path in folder.iterdir()) and (
            _recorded_digest(folder) != digest
        ):
            raise OutputError(f"{folder} is not empty and holds no {name}; choose another folder by {option('out')}")
        remove_parts(folder, {*UNFINISHED_RUN, *UNFINISHED_SWEEP, *FILES, "summary.json"})
        write_atomic(present, content)


def withdraw(folder: Path, experiment: Experiment) -> None:
    """Remove the summary.json of an earlier run of an experiment from its folder, for the run has failed now.

    A run that begins removes it itself; this is for one that failed before. What the run could not have claimed stays:
    the record of another experiment or of a live run, or one whose config.yaml was edited or damaged; and so does what
    another process writes. Raises OutputError if it cannot be removed.
    """
    if not Result(folder).has_ended or _holds_live_record(folder):  # in the folder's place there may be a file
        return
    with ExitStack() as opened:
        try:
            opened.enter_context(locked(folder))
            if _recorded_digest(folder) is None:  # a damaged record, or one of no experiment
                ours = _same_bits(folder / "config.yaml", dump_yaml(experiment.plain()))
            else:
                ours = _recorded_digest(folder) == experiment.digest
                _ = Result(folder).config if os.path.lexists(folder / "config.yaml") else None
        except FredsimError:
            return
        if ours:
            with write_errors(folder):
                (folder / "summary.json").unlink(missing_ok=True)


def _holds_live_record(folder: Path) -> bool:
    """Return whether a folder has the record of a live run that has ended, or that can go on from a checkpoint.

    Once it is deleted, nobody can make it again, as one can a simulated run.
    """
    return os.path.lexists(folder / "live.csv") and (Result(folder).has_ended or os.path.lexists(folder / "checkpoint"))


def _holds_only(folder: Path, runs: Collection[str] | None) -> bool:
    """Return whether the folder has some of these runs, and no other. Raises OSError."""
    held = {path.name for path in _contents(folder)[1] if is_folder_name(path.name)}
    return runs is not None and bool(held) and held <= {*runs}


def _is_unfinished(folder: Path) -> bool:
    """Return whether all files belong to a run, or to a sweep's runs, that did not end. Raises OSError."""
    names, runs = _contents(folder)
    if {*UNFINISHED_RUN[:2]} <= names <= {*UNFINISHED_RUN}:
        return not runs
    if not {*UNFINISHED_SWEEP[:2]} <= names <= {*UNFINISHED_SWEEP}:
        return False
    if any(path.is_symlink() or not path.is_dir() or not is_folder_name(path.name) for path in runs):
        return False
    contents = map(_contents, runs)
    return _all_failed(folder) and all(files <= {*UNFINISHED_RUN} and not below for files, below in contents)


def _contents(folder: Path) -> tuple[set[str], list[Path]]:
    """Return the names of the files in a folder, without `.part`, and the paths of everything else in it."""
    paths = list(folder.iterdir())
    names = {whole_name(path.name) for path in paths if path.is_file()}
    return names, [path for path in paths if not path.is_file()]


def _all_failed(folder: Path) -> bool:
    try:
        return all(row.get("status") == "failed" for row in read_cells(folder / "runs.csv"))
    except OutputError:
        return False


def _delete_contents(folder: Path, but: str) -> None:
    """Delete what unfinished runs left, except the file `but`. Raises OutputError if a process writes one, OSError."""
    for path in folder.iterdir():
        if path.is_dir():
            with locked(path):
                _delete_contents(path, but="")
                path.rmdir()
        elif path.name != but:
            path.unlink()


def _what_differs(present: Path, content: str) -> str:
    """Say in which keys an experiment, or a sweep with its overrides applied, differs from the one in the folder."""
    try:
        before, now = read_document(present).data, parse_yaml(content, str(present))
        bits = Affects.BITS | Affects.BITS_OF_MODULES
        ignored = dict.fromkeys(irrelevant_to(bits) if present.name == "config.yaml" else FIGURE_KEYS)
        found = differing(_overridden(before) | ignored, _overridden(now) | ignored, "{}: {} there, {} here")
    except ConfigError:
        found = f"its {present.name} cannot be read"
    return f" ({found})" if found else ""


def _overridden(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded sweep with its overrides applied."""
    result = copy.deepcopy(dict(data))
    overrides = result.pop("overrides", None)
    for key, value in overrides.items() if isinstance(overrides, dict) else ():
        assign(result, str(key), value)
    return result


def _recorded_digest(folder: Path) -> object:
    """Return the digest of the experiment that a folder's summary.json names, or None."""
    try:
        return Result(folder).summary.get("experiment")
    except OutputError:
        return None


def _same_bits(present: Path, content: str) -> bool:
    """Return whether two resolved experiments have the same digest, or two sweeps are equal except for figures."""
    try:
        before, now = read_document(present).data, parse_yaml(content, str(present))
        if present.name != "config.yaml":
            return bool(before | dict.fromkeys(FIGURE_KEYS) == now | dict.fromkeys(FIGURE_KEYS))
        digest = resolve(now).digest
        with closed_but(present.parent, own_modules(now)):  # of the code that a folder names, nothing more is imported
            return resolve(before).digest == digest
    except ConfigError:
        return False
