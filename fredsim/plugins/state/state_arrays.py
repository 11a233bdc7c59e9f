"""Arrays in a state: copied or not, with the memory that they span; and whether two values are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PackedArray", "as_state", "by_reference", "numeric", "of_state", "same", "span"]


def numeric(name: str) -> np.dtype[Any]:
    """Return the NumPy type of this name, which must be a type of numbers. Raises ValueError for any other.

    An array of objects made of bytes from a file would consist of arbitrary addresses.
    """
    found = np.dtype(name)
    if found.kind not in "biufc":
        raise ValueError(f"{name!r} is no type of numbers")
    return found


def span(array: NDArray[Any]) -> tuple[int, int]:
    """Return the memory addresses between which an array lies: of its first byte, and of that behind its last one."""
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)] if array.size else [0]
    begin = array.ctypes.data + sum(step for step in reach if step < 0)
    return begin, array.ctypes.data + sum(step for step in reach if step > 0) + array.itemsize * bool(array.size)


@dataclass
class PackedArray:
    """An array in a state: its path (dotted name), its packed form for JSON, and the memory addresses that it spans."""

    array: NDArray[Any]
    path: str
    packed: dict[str, Any]
    exact: bool
    begin: int = 0
    end: int = 0

    def __post_init__(self) -> None:
        self.begin, self.end = span(self.array)

    @property
    def dense(self) -> bool:
        """Whether the array fills the memory that it spans, by rows or by columns."""
        return self.array.flags.c_contiguous or self.array.flags.f_contiguous


def same(one: Any, other: Any) -> bool:
    """Return whether two values are of one type and the same: arrays in shape and bytes, other values in their repr."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    return repr(one) == repr(other)


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


def of_state(values: Any, operations: Any) -> Any:
    """Return a new array where `operations` compute (fredsim.numerics.operations), with the values (n,) of a state."""
    array = operations.zeros(len(values))
    array[...] = values
    return array
