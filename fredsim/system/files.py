"""What a path is, before anything is read from it: a pipe would wait for ever, a device never end."""

from __future__ import annotations

import os
import stat

__all__ = ["irregular"]


def irregular(path: str | os.PathLike[str]) -> str:
    """Return what is at a path that is no regular file, such as `a folder`; nothing of a file, or where nothing is."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # a name that no file can have
        return ""
    if stat.S_ISREG(mode):
        return ""
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((kind for test, kind in kinds.items() if test(mode)), "a device")
