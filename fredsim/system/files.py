"""Checks that a path is a regular file, since reading a pipe may block for ever; digests of files; atomic writes."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fredsim.errors import OutputError, option

__all__ = [
    "CHUNK_BYTES",
    "content_digest",
    "hash_of_prefix",
    "irregular_kind",
    "write_atomic",
    "write_chunks",
    "write_errors",
]

DISK_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
CHUNK_BYTES = 2**24  # bytes that are hashed or written at once


def irregular_kind(path: str | os.PathLike[str]) -> str:
    """Return what a path is instead of a file, such as `a folder`; "" if it is a regular file or does not exist."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # a name that no file can have
        return ""
    if stat.S_ISREG(mode):
        return ""
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((kind for test, kind in kinds.items() if test(mode)), "a device")


def content_digest(path: str) -> str | None:
    """Return the SHA-256 of a file's bytes, or None if there is no such file or it cannot be read."""
    if irregular_kind(path):
        return None
    try:
        found = os.stat(path)
        return _digest(path, found.st_mtime_ns, found.st_size, found.st_ino)
    except (OSError, ValueError):  # a name that no file can have
        return None


@functools.lru_cache(maxsize=16)
def _digest(path: str, *state: int) -> str:
    del state  # only part of the cache's key, so that a file that has changed is read again
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of_prefix(path: Path, size: int) -> hashlib._Hash | None:
    """Return the SHA-256 of a file's first `size` bytes, which can be updated with more; None if it has fewer bytes."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while size and (chunk := file.read(min(size, CHUNK_BYTES))):
                found.update(chunk)
                size -= len(chunk)
    except OSError:
        return None
    return None if size else found


@contextmanager
def write_errors(path: Path, otherwise: str = "") -> Iterator[None]:
    """Turn an OSError raised while `path`, or something in it, is written into an OutputError with a remedy.

    `otherwise` is the remedy if the disk is not full; by default, to choose another folder.
    """
    try:
        yield
    except OSError as error:
        remedy = "make room there and run it again" if error.errno in DISK_FULL else otherwise
        remedy = remedy or f"choose another folder by {option('out')}"
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}); {remedy}") from None


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file and rename it into place: even after a kill, the path holds the old or the new content, whole.

    Raises OSError.
    """
    with _replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_chunks(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write a file and rename it into place, flush it to the disk, and return its SHA-256. Raises OSError."""
    digest = hashlib.sha256()
    with _replacing(path) as file, ThreadPoolExecutor(1) as pool:
        for chunk in chunks:
            hashed = pool.submit(digest.update, chunk)
            file.write(chunk)
            hashed.result()
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(path.parent)
    return digest.hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file `PATH.part`, which replaces the file at `path` when the block ends. Raises OSError."""
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
    """Flush a folder's entries, such as a rename, to the disk, if the system can do that for folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
