"""What a path is, before it is read: reading a pipe may wait for ever. Digests of files; files written all or not."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["PIECE", "content_digest", "hash_of_first", "irregular", "write_atomic", "write_pieces"]

PIECE = 2**24  # bytes that are hashed or written at once


def irregular(path: str | os.PathLike[str]) -> str:
    """Return what a path is, such as `a folder`; an empty text where it is a regular file or does not exist."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # a name that no file can have
        return ""
    if stat.S_ISREG(mode):
        return ""
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((kind for test, kind in kinds.items() if test(mode)), "a device")


def content_digest(path: str) -> str | None:
    """Return the SHA-256 of a file's bytes, or None where there is no file that can be read."""
    if irregular(path):
        return None
    try:
        found = os.stat(path)
        return _digest(path, found.st_mtime_ns, found.st_size, found.st_ino)
    except (OSError, ValueError):  # a name that no file can have
        return None


@functools.lru_cache(maxsize=16)
def _digest(path: str, *state: int) -> str:
    del state  # part of the cache's key: a file that has changed is read anew
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of_first(path: Path, size: int) -> hashlib._Hash | None:
    """Return the SHA-256 of a file's first bytes, to be updated with what follows; None where there are not so many."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while size and (piece := file.read(min(size, PIECE))):
                found.update(piece)
                size -= len(piece)
    except OSError:
        return None
    return None if size else found


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file by renaming: a reader, or whoever finds it after a kill, has the old one or this. Raises OSError."""
    with _replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Write a file by renaming, so that it is on the disk on return, and return its SHA-256. Raises OSError."""
    digest = hashlib.sha256()
    with _replacing(path) as file, ThreadPoolExecutor(1) as beside:
        for piece in pieces:
            hashed = beside.submit(digest.update, piece)
            file.write(piece)
            hashed.result()
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(path.parent)
    return digest.hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file beside, which takes the place of this one once it is written. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError:
        with suppress(OSError):  # the disk may be full
            part.unlink()
        raise


def _flush_folder(folder: Path) -> None:
    """Let a rename reach the disk, where the system can do that for folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
