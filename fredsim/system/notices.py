"""What takes a while and happens deep below: who shows it listens for as long as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["compiling", "telling"]

_LISTENER: ContextVar[Callable[[], None] | None] = ContextVar("listener", default=None)


@contextmanager
def telling(listener: Callable[[], None]) -> Iterator[None]:
    """Let `listener` be called before a kernel is compiled, which happens once on a machine; of this thread's."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def compiling() -> None:
    """Say that a kernel will be compiled now."""
    listener = _LISTENER.get()
    if listener is not None:
        listener()
