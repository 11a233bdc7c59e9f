"""What a path is, before it is read: reading a pipe may wait, and a device go on, for ever. The digest of a file."""

from __future__ import annotations

import functools
import hashlib
import os
import stat

__all__ = ["content_digest", "irregular"]


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
