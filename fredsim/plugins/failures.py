"""What a user's code raises and returns, in words, with its line; whether it is an interrupt by whoever runs it.

Code may raise anything: what `sys.exit` raises, a KeyboardInterrupt of its own, an exception whose message fails.
"""

from __future__ import annotations

import math
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = [
    "LIBRARIES", "briefly", "calling_line", "channels_remedy", "described", "failed_on", "failing", "is_interrupt",
    "line_of", "message_of", "said", "where_defined",
]  # fmt: skip

#: The folders of Python's own modules and of installed packages.
LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
CHANNELS = (1, 3, 4)  # how many an image mostly has


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is an interrupt (Ctrl-C), which ends everything, and not the code's own.

    While runs are done, a first Ctrl-C only asks them to stop, and processes of their own ignore it, so that what
    raises a KeyboardInterrupt then is the code itself.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    handler = signal.getsignal(signal.SIGINT)
    asks = str(getattr(handler, "__module__", "")).partition(".")[0] == "fredsim"
    return not asks and handler is not signal.SIG_IGN


@contextmanager
def failing(made: Callable[[BaseException], Exception], *passed: type[BaseException]) -> Iterator[None]:
    """Turn what a user's code raises in a `with` block, sys.exit's included, into the error that `made` makes of it.

    An interrupt, and errors of the kinds `passed`, stay as they are.
    """
    try:
        yield
    except passed:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise made(error) from error


def message_of(error: BaseException) -> str:
    """Return an exception's own message."""
    try:
        return str(error)
    except BaseException:  # of any type: the exception's class may be the user's
        return "(its message fails)"


def said(value: Any) -> str:
    """Return a value of a user's as a message shows it: its `repr`, shortened, or its type if that fails."""
    try:
        return repr(value)[:200]
    except BaseException as error:  # of any type: the value's class may be the user's
        if is_interrupt(error):
            raise
        return f"a {type(value).__name__}"


def described(error: BaseException) -> str:
    """Return an exception's type, message, and the user's line that it comes from: `ValueError: no (file.py:12)`."""
    return f"{type(error).__name__}: {message_of(error)}{line_of(error)}"


def briefly(error: BaseException) -> str:
    """Return the same with the first line of the message alone."""
    return f"{type(error).__name__}: {message_of(error).partition(chr(10))[0]}{line_of(error)}"


def failed_on(shape: Sequence[int], error: BaseException) -> str:
    """Return that a PyTorch module failed on samples of a shape, and why, in a line."""
    text = message_of(error).strip().partition("\n")[0].strip()
    if "scalar types: Long" in text:  # of an embedding
        text = f"{text}; samples are float32: make tokens integers in forward, by x.long()"
    if (found := re.search(r"mat1 and mat2 .*x(\d+) and (\d+)x", text)) and found[2] == str(math.prod(shape)) != found[
        1
    ]:
        text = f"{text}; begin with nn.Flatten(), which makes a row of {found[2]} of a sample"
    text = f"{text}{channels_remedy(shape)}"
    return f"failed on samples of shape ({', '.join(map(str, ('n', *shape)))}): {type(error).__name__}: {text}"


def channels_remedy(shape: Sequence[int]) -> str:
    """Return how to save images of this shape if they seem to have their channels last, after a semicolon; or ""."""
    seems = len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS and shape[2] < shape[1]
    return "; if the channels are last, save them first: x.transpose(0, 3, 1, 2)" if seems else ""


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
