"""What a path is, before it is read: reading a pipe may wait, and a device go on, for ever."""

from __future__ import annotations

import os
import stat

__all__ = ["irregular"]


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
