"""Finds the line of a user's code that an error comes from: the innermost line outside fredsim and libraries."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["calling_line", "line_of", "where_defined"]

#: The folders of Python's own modules and of installed packages.
LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


def line_of(error: BaseException) -> str:
    """Return the user's line that an error comes from, as ` (file.py:12)`; a library's or fredsim's if none is."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return _written(error.filename, error.lineno or 1)
    frames = list(traceback.walk_tb(error.__traceback__))
    return _innermost((frame, line) for frame, line in reversed(frames) if frame.f_code.co_filename[:8] != "<frozen ")


def calling_line() -> str:
    """Return the user's line that led to this call, as ` (file.py:12)`."""
    return _innermost((frame, line) for frame, line in traceback.walk_stack(sys._getframe(1)))


def where_defined(function: Any) -> str:
    """Return where a function or method is defined, as ` (file.py:12)`; an empty text if that is not in Python."""
    code = getattr(function, "__code__", None)
    return _written(code.co_filename, code.co_firstlineno) if code is not None else ""


def _innermost(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the first of these lines that is a user's; else the first that is a library's; else the first."""
    found: dict[int, str] = {}
    for frame, line in frames:
        file = frame.f_code.co_filename
        if frame.f_globals.get("__name__", "").partition(".")[0] == "fredsim":
            rank = 2
        else:
            rank = 1 if file.startswith(LIBRARIES) else 0
        found.setdefault(rank, _written(file, line))
        if rank == 0:
            break
    return found[min(found)] if found else ""


def _written(file: str, line: int) -> str:
    return f" ({Path(file).name}:{line})"
