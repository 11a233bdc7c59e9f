"""Callbacks about kernels, which lie layers below the code that shows progress; and notes that are warnings.

A note about a probable mistake is a FredsimWarning: in Python it is shown and filtered like any warning,
and the command line prints it once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from fredsim.errors import FredsimWarning

__all__ = ["compiling", "note", "notes_as_lines", "on_notices"]


class Listener(NamedTuple):
    """What to call."""

    compiling: Callable[[], None]
    note: Callable[[str], None]


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def on_notices(compiling: Callable[[], None], note: Callable[[str], None]) -> Iterator[None]:
    """Within a `with` block, call `compiling` before this thread compiles a kernel, which happens once per machine.

    `note` is called with what the user should be told.
    """
    token = _LISTENER.set(Listener(compiling, note))
    try:
        yield
    finally:
        _LISTENER.reset(token)


def compiling() -> None:
    """Report that a kernel is about to be compiled: call the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener.compiling()


def note(text: str) -> None:
    """Report something that the user should be told."""
    listener = _LISTENER.get()
    if listener is not None:
        listener.note(text)


@contextmanager
def notes_as_lines(write: Callable[[str], None]) -> Iterator[None]:
    """Within a `with` block, call `write` with the text of each FredsimWarning, once for the same text."""
    written: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", FredsimWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if not issubclass(category, FredsimWarning):
                usual(message, category, *where)
            elif (text := str(message)) not in written:
                written.add(text)
                write(text)

        warnings.showwarning = show  # type: ignore[assignment]  # `where` is the rest of its arguments
        yield
