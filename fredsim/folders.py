"""A folder of results: made one experiment's, kept by one process at a time, its files written whole."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fredsim.document import read_document
from fredsim.errors import ConfigError, OutputError
from fredsim.nodes import parse_yaml
from fredsim.resolution import resolve

__all__ = ["claim", "kept", "put", "writing"]

#: What is drawn of runs and beside them changes no run: it may be another when a sweep goes on.
BESIDE = {"published": None, "figures": None}
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

    A folder that lost this file is ours, too, where its summary.json names the experiment of this digest. Raises
    OutputError where the folder holds anything that is not of the same experiment.
    """
    with writing(folder):
        present, arriving = folder / name, folder / f"{name}.part"
        if present.is_file():
            if not _same_bits(present, content):
                raise OutputError(
                    f"{folder} already holds another experiment; choose another folder by --out, or remove it"
                )
        elif any(path != arriving for path in folder.iterdir()) and not (digest and _recorded(folder) == digest):
            raise OutputError(f"{folder} is not empty and holds no {name}; choose another folder by --out")
        put(present, content)


def _recorded(folder: Path) -> object:
    """Return the digest of the experiment that a folder's summary.json names, or None."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary.get("experiment") if isinstance(summary, dict) else None


def _same_bits(present: Path, content: str) -> bool:
    """Whether two resolved experiments give the same bits; two sweeps, whether they say the same of their runs."""
    try:
        before, now = read_document(present).data, parse_yaml(content, str(present))
        if present.name != "config.yaml":
            return bool(before | BESIDE == now | BESIDE)
        return resolve(before).digest == resolve(now).digest
    except ConfigError:
        return False
