"""Decides whether a state that is taken has copies of arrays or the arrays themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_state", "by_reference"]

_BY_REFERENCE = ContextVar("by_reference", default=False)


@contextmanager
def by_reference() -> Iterator[None]:
    """Let states taken within the `with` block have the arrays themselves: for callers that write them at once."""
    before = _BY_REFERENCE.set(True)
    try:
        yield
    finally:
        _BY_REFERENCE.reset(before)


def as_state(array: Any) -> NDArray[Any]:
    """Return an array, which may be on a device, for a state: a C-ordered copy; within `by_reference` no copy."""
    return np.asarray(array, order="C") if _BY_REFERENCE.get() else np.array(array, order="C")
