"""A callback for the compilation of kernels, which takes a while and happens far below whoever shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["compiling", "on_compiling"]

_LISTENER: ContextVar[Callable[[], None] | None] = ContextVar("listener", default=None)


@contextmanager
def on_compiling(listener: Callable[[], None]) -> Iterator[None]:
    """Within `with`, call `listener` before this thread compiles a kernel, as happens once on a machine."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def compiling() -> None:
    """Call the listener: a kernel is about to be compiled."""
    listener = _LISTENER.get()
    if listener is not None:
        listener()
