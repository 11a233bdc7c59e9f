"""Files that hold code which is run, or say which is run: they count only if nobody else can have written them."""

from __future__ import annotations

import os
import stat

__all__ = ["why_not_private"]


def why_not_private(path: str | os.PathLike[str]) -> str:
    """Return why somebody else than this user, or root, can have written a file or folder; "" if nobody can."""
    if not hasattr(os, "geteuid"):  # Windows
        return ""
    found = os.stat(path)
    if found.st_uid not in {0, os.geteuid()}:
        return "belongs to another user"
    return "can be written by others" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""
