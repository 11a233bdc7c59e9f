"""A folder of results: made one experiment's, kept by one process at a time, its files written whole."""

from __future__ import annotations

import copy
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fredsim.config.document import assign, differing, read_document
from fredsim.config.experiment import DRAWN, Affects, without
from fredsim.config.resolution import resolve
from fredsim.config.yaml_reader import parse_yaml
from fredsim.errors import ConfigError, OutputError
from fredsim.runs.results import Result
from fredsim.system.csv_files import read_cells

__all__ = ["claim", "kept", "put", "writing"]

#: What a run writes before it ends, and a sweep none of whose runs has ended; the first two of each are always there.
BEGUN_RUN = ("config.yaml", "metrics.csv", "probe.csv")
BEGUN_SWEEP = ("sweep.yaml", "runs.csv", "best.csv")
FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
PATIENCE_SECONDS = 2.0  # a process that was killed may take a moment to go
LOOK_SECONDS = 0.05


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make one OutputError, with the remedy, of what goes wrong while `path` or what is in it is written."""
    try:
        yield
    except OSError as error:
        remedy = "make room there and run it again" if error.errno in FULL else "choose another folder by --out"
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}); {remedy}") from None


def put(path: Path, content: str | bytes) -> None:
    """Write a file as a whole: whenever it is looked at or killed, there is the one before, or this. Raises OSError."""
    arriving = path.with_name(f"{path.name}.part")
    try:
        arriving.write_bytes(content.encode() if isinstance(content, str) else content)
        arriving.replace(path)
    except OSError:
        with suppress(OSError):  # half of it would take room where there is none
            arriving.unlink()
        raise


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Make a folder, and keep others from writing into it meanwhile.

    The lock is the operating system's, on the folder itself: it leaves no file behind, and it goes with the process
    that holds it, however that ends. Where there is none (Windows, some file systems of a network) nobody is kept out.

    Raises OutputError where another process writes into the folder, or it cannot be made.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with writing(folder):
        held = os.open(folder, os.O_RDONLY)
    try:
        _lock(folder, lambda: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB))
        yield
    finally:
        os.close(held)


def _lock(folder: Path, lock: Callable[[], None]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            lock()
        except BlockingIOError:
            if time.monotonic() > limit:
                what = "another process writes into it at this moment"
                raise OutputError(f"{folder}: {what}; let it end, or choose another folder by --out") from None
            time.sleep(LOOK_SECONDS)
        except OSError:  # a file system without locks
            return
        else:
            return


def claim(folder: Path, name: str, content: str, digest: str = "") -> None:
    """Make `folder`, which is kept, ours by writing `content` to its file `name`.

    A folder that lost this file is ours, too, where its summary.json names the experiment of this digest; and one in
    which runs only began, and failed or were killed, is taken over. Raises OutputError where the folder holds anything
    else that is not of the same experiment.
    """
    with writing(folder):
        present, arriving = folder / name, folder / f"{name}.part"
        if present.is_file() and _same_bits(present, content):
            pass
        elif _only_began(folder):
            _empty(folder, but=name)
        elif present.is_file():
            what = f"{folder} holds another experiment{_what_differs(present, content)}"
            raise OutputError(f"{what}; choose another folder by --out, or remove it")
        elif any(path != arriving for path in folder.iterdir()) and not (digest and _recorded(folder) == digest):
            raise OutputError(f"{folder} is not empty and holds no {name}; choose another folder by --out")
        put(present, content)


def _only_began(folder: Path) -> bool:
    """Whether there is nothing but what a run, or the runs of a sweep, wrote that did not end. Raises OSError."""
    names, runs = _contents(folder)
    if {*BEGUN_RUN[:2]} <= names <= {*BEGUN_RUN}:
        return not runs
    if not {*BEGUN_SWEEP[:2]} <= names <= {*BEGUN_SWEEP} or any(r.is_symlink() or not r.is_dir() for r in runs):
        return False
    return _all_failed(folder) and all(held <= {*BEGUN_RUN} and not below for held, below in map(_contents, runs))


def _contents(folder: Path) -> tuple[set[str], list[Path]]:
    """Return the names of the files in a folder, half-written ones as whole ones, and what is no file."""
    paths = list(folder.iterdir())
    names = {path.name.removesuffix(".part") for path in paths if path.is_file()}
    return names, [path for path in paths if not path.is_file()]


def _all_failed(folder: Path) -> bool:
    """Whether runs.csv names no run that ended otherwise."""
    try:
        return all(row.get("status") == "failed" for row in read_cells(folder / "runs.csv"))
    except OutputError:
        return False


def _empty(folder: Path, but: str) -> None:
    """Take away what runs left that only began. Raises OutputError where another process writes one. Raises OSError."""
    for path in folder.iterdir():
        if path.is_dir():
            with kept(path):
                _empty(path, but="")
                path.rmdir()
        elif path.name != but:
            path.unlink()


def _what_differs(present: Path, content: str) -> str:
    """Say in which keys an experiment, or a sweep as its overrides leave it, is another than what is there."""
    try:
        before, now = read_document(present).data, parse_yaml(content, str(present))
        bits = Affects.BITS | Affects.BITS_OF_MODULES
        beside = dict.fromkeys(without(bits) if present.name == "config.yaml" else DRAWN)
        found = differing(_overridden(before) | beside, _overridden(now) | beside, "{}: {} there, {} here")
    except ConfigError:
        found = f"its {present.name} cannot be read"
    return f" ({found})" if found else ""


def _overridden(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recorded sweep says with its overrides laid over it."""
    said = copy.deepcopy(dict(data))
    overrides = said.pop("overrides", None)
    for key, value in overrides.items() if isinstance(overrides, dict) else ():
        assign(said, str(key), value)
    return said


def _recorded(folder: Path) -> object:
    """Return the digest of the experiment that a folder's summary.json names, or None."""
    try:
        return Result(folder).summary.get("experiment")
    except OutputError:
        return None


def _same_bits(present: Path, content: str) -> bool:
    """Whether two resolved experiments give the same bits; two sweeps, whether they say the same of their runs."""
    try:
        before, now = read_document(present).data, parse_yaml(content, str(present))
        if present.name != "config.yaml":
            return bool(before | dict.fromkeys(DRAWN) == now | dict.fromkeys(DRAWN))
        return resolve(before).digest == resolve(now).digest
    except ConfigError:
        return False
