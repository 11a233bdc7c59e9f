"""Callbacks about kernels, which lie layers below the code that shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["compiling", "note", "on_notices"]


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
