"""What a user's code raises and returns, in words; whether it is an interrupt by whoever runs it.

Code may raise anything: what `sys.exit` raises, a KeyboardInterrupt of its own, an exception whose message fails.
"""

from __future__ import annotations

import signal
from typing import Any

from fredsim.plugins.source_lines import line_of

__all__ = ["briefly", "described", "is_interrupt", "message_of", "said"]


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
