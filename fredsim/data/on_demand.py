"""Samples that stay where they are, in files or with a user's class, and are read when they are needed.

An OnDemand stands in the place of an array of samples or targets: it has a shape and a type, and gives rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import DataError
from fredsim.numerics.arrays import Integers
from fredsim.system.memory import format_bytes, machine_memory

__all__ = ["MOST_IN_MEMORY", "InMemory", "OnDemand", "Reader", "blocks_of_rows", "why_beyond", "why_rounded"]

Change = Callable[[NDArray[Any]], NDArray[Any]]

#: The most bytes of samples, in float32, that are read into memory at once, and kept there.
MOST_IN_MEMORY = 256 * 2**20
#: About the bytes of samples that are read together where all are needed.
BLOCK_BYTES = 16 * 2**20
HELD = 2**24  # float32 holds every integer to this one


class Reader(ABC):
    """Reads samples and their targets by row, in the form in which they are used.

    Attributes:
        name: what messages call the samples.
        count: the number of rows.
        shape: of a sample.
        dtype: of samples as they are used, float32 or int32.
        target: the shape of a sample's target.
        target_dtype: the type of targets.
        divisor: what bytes are divided by; 0 if samples are no bytes.
        bounds: the lowest and the highest token that there may be, of samples that are integers.

    """

    name: str
    count: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    target: tuple[int, ...]
    target_dtype: np.dtype[Any]
    divisor: int = 0
    bounds: tuple[int, int] | None = None

    @abstractmethod
    def rows(self, numbers: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return samples (n, values) and their targets (n, …). Raises DataError if they are not what they were."""

    def targets(self, numbers: Integers) -> NDArray[Any]:
        """Return the targets alone."""
        return self.rows(numbers)[1]

    def all_targets(self) -> NDArray[Any]:
        """Return all targets. Raises DataError if they do not fit into memory."""
        size = self.count * self.target_bytes
        if size > (most := machine_memory()):
            takes = f"targets take {format_bytes(size)}, and this machine has {format_bytes(most)} of memory"
            raise DataError(f"{self.name}: {takes}; have fewer rows")
        out = np.empty((self.count, *self.target), self.target_dtype)
        for rows in blocks_of_rows(self.count, self.sample_bytes + self.target_bytes):
            out[rows] = self.targets(np.arange(rows.start, rows.stop))
        return out

    def range_of(self, *, targets: bool, ignored: int | None = None) -> tuple[int, int]:
        """Return the lowest and the highest integer among the samples, or the targets; (0, −1) if there are none.

        The integer `ignored` does not count.
        """
        found = []
        for rows in blocks_of_rows(self.count, self.sample_bytes + self.target_bytes):
            numbers = np.arange(rows.start, rows.stop)
            block = self.targets(numbers) if targets else self.rows(numbers)[0]
            block = block if ignored is None else block[block != ignored]
            found += [(int(block.min()), int(block.max()))] if block.size else []
        return min((low for low, _ in found), default=0), max((high for _, high in found), default=-1)

    @property
    def sample_bytes(self) -> int:
        """The bytes of a sample as it is used."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def target_bytes(self) -> int:
        """The bytes of a target as it is used."""
        return math.prod(self.target) * self.target_dtype.itemsize


class InMemory(Reader):
    """All rows of another reader, read once."""

    def __init__(self, reader: Reader) -> None:
        """Read them, block by block."""
        self.name, self.count, self.shape, self.dtype = reader.name, reader.count, reader.shape, reader.dtype
        self.target, self.target_dtype = reader.target, reader.target_dtype
        self.divisor = reader.divisor
        self.x = np.empty((self.count, math.prod(self.shape)), self.dtype)
        self.y = np.empty((self.count, *self.target), self.target_dtype)
        for rows in blocks_of_rows(self.count, self.sample_bytes + self.target_bytes):
            self.x[rows], self.y[rows] = reader.rows(np.arange(rows.start, rows.stop))

    def rows(self, numbers: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return rows of the arrays."""
        return self.x[numbers], self.y[numbers]

    def all_targets(self) -> NDArray[Any]:
        """Return the array."""
        return self.y


class OnDemand:
    """The samples, or the targets, of a run of a reader's rows, from `begin` to `end`."""

    nbytes = 0  # in memory

    def __init__(
        self, reader: Reader, begin: int, end: int, *, samples: bool, changes: tuple[Change, ...] = ()
    ) -> None:
        """Stand for samples, or for targets; `changes` are made to samples after they are read."""
        self.reader, self.begin, self.end = reader, begin, end
        self._samples, self._changes = samples, changes
        inner = (math.prod(reader.shape),) if samples else reader.target
        self.shape = (end - begin, *inner)
        self.dtype = reader.dtype if samples else reader.target_dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of a value."""
        return self.dtype.itemsize

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("rows are read by slices and arrays of their numbers")

    def __getitem__(self, rows: slice | Integers) -> NDArray[Any]:
        return self.rows_with_targets(rows)[0] if self._samples else self.reader.targets(self._numbers(rows))

    def rows_with_targets(self, rows: slice | Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return samples and targets of these rows."""
        x, y = self.reader.rows(self._numbers(rows))
        for change in self._changes:
            x = change(x)
        return x, y

    def _numbers(self, rows: slice | Integers) -> Integers:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self))) + self.begin
        return np.asarray(rows, np.int64) + self.begin

    def changed(self, change: Change) -> OnDemand:
        """Return the same samples with one more change to them."""
        changes = (*self._changes, change)
        found = OnDemand(self.reader, self.begin, self.end, samples=True, changes=changes)
        found.dtype = self.dtype
        return found

    def astype(self, dtype: Any) -> OnDemand:
        """Return the same samples in another type."""
        found = self.changed(lambda x: x.astype(dtype))
        found.dtype = np.dtype(dtype)
        return found

    def min(self, **_: Any) -> int:
        """Return the lowest token that there may be."""
        assert self.reader.bounds is not None
        return self.reader.bounds[0]

    def max(self, **_: Any) -> int:
        """Return the highest token that there may be."""
        assert self.reader.bounds is not None
        return self.reader.bounds[1]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all of it, for what needs all targets at once, as some partitions do.

        Blocks are of whole samples: a user's class has no targets without them.
        """
        out = np.empty(self.shape, dtype or self.dtype)
        for rows in self.blocks():
            out[rows] = self[rows]
        return out

    def blocks(self) -> Iterator[slice]:
        """Yield slices of rows that are read together where all are needed."""
        return blocks_of_rows(len(self), self.reader.sample_bytes + self.reader.target_bytes)


def why_beyond(numbers: Integers, values: NDArray[Any], dtype: np.dtype[Any]) -> str:
    """Return which of some rows has integers that another type of integers does not hold; "" if none has."""
    if dtype.kind != "i" or values.dtype.kind not in "iu" or np.can_cast(values.dtype, dtype):
        return ""
    held = np.iinfo(dtype)
    return _why_outside(numbers, values, held.min, held.max, f"{dtype} does not hold them")


def why_rounded(numbers: Integers, values: NDArray[Any]) -> str:
    """Return which of some rows has integers of which float32 may make one of two; "" if none has."""
    if values.dtype.kind not in "iu" or np.can_cast(values.dtype, np.float32):
        return ""
    return _why_outside(numbers, values, -HELD, HELD, f"float32, the type of samples, holds each to {HELD} alone")


def _why_outside(numbers: Integers, values: NDArray[Any], lowest: int, highest: int, why: str) -> str:
    if not values.size or (lowest <= values.min() and values.max() <= highest):
        return ""
    outside = ((values < lowest) | (values > highest)).reshape(len(values), -1).any(axis=1)
    row = numbers[np.flatnonzero(outside)[0]]
    what = f"row {row} holds integers from {values.min()} to {values.max()}"
    return f"{what}; {why}: correct tokens and classes, and save other numbers as float32"


def blocks_of_rows(count: int, row_bytes: int) -> Iterator[slice]:
    """Yield slices of `count` rows of this size that together take about BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))
