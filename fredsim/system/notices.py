"""A callback before kernels are compiled: that takes a while, and happens layers below the code that shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["compiling", "on_compiling"]

_LISTENER: ContextVar[Callable[[], None] | None] = ContextVar("listener", default=None)


@contextmanager
def on_compiling(listener: Callable[[], None]) -> Iterator[None]:
    """Within a `with` block, call `listener` before this thread compiles a kernel, which happens once per machine."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def compiling() -> None:
    """Report that a kernel is about to be compiled: call the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener()
