"""Data sets in the form that kernels read: compressed sparse rows (CSR)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import Split
from fredsim.jit.kernel import Fields
from fredsim.jit.pointers import floats, int32s, int64s, item
from fredsim.jit.subroutine import subroutine

__all__ = ["CODED", "DATA", "input_at", "is_coded", "pack_split", "rows_in_cache"]

CODED = True  # whether inputs are coded (see DATA); kernels are compiled for both (fredsim.kernels.mlp.specialisation)
L1_BYTES = 2**15  # of the L1 cache
MAX_CODES = 2**16  # the most columns, and the most different values, of a split whose inputs are coded
LOWER = 2**16 - 1  # a mask of the lower 16 bits
FEW = 2**20  # the most inputs of which NumPy finds the different values
TOGETHER = 2**22  # so many inputs are searched or coded at once; intermediate values take some 30 bytes for each

#: A split in compressed sparse rows: 81 % of MNIST's pixels are zero, and products with zero are skipped anyway. The
#: nonzero inputs of sample i are those from first[i] to first[i + 1]. Columns are divided into `chunks` chunks of
#: `chunk` columns; the inputs of sample i in chunk c are those from first[i] + cuts[i, c] to first[i] + cuts[i, c + 1].
#: `input_at` reads an input. Every minibatch comes from main memory, so inputs are kept small: if a split has few
#: different values, as pixels do, its inputs are coded: the lower 16 bits of `column` are the input's column, the upper
#: 16 bits the index of its value in `value`. Otherwise `column` is the column, and `value` has one value per input.
DATA = Fields(first=int64s, column=int32s, value=floats, labels=int64s, chunk=int, chunks=int, cuts=int32s)


@subroutine
def input_at(data, t):
    """Return the column and the value of the nonzero input with index t in DATA."""
    column = np.int64(item(data.column, t))
    if CODED:
        return column & LOWER, item(data.value, (column >> 16) & LOWER)
    return column, item(data.value, t)


@lru_cache(maxsize=12)
def _sparse(split: Split) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], bool]:
    """Return the fields `first`, `column` and `value` of DATA, and whether inputs are coded."""
    counts = [np.count_nonzero(split.x[rows], axis=1) for rows in _blocks(split)]
    first = np.cumsum(np.concatenate([[0], *counts])).astype(np.int64)
    column, value = np.empty(first[-1], np.int32), np.empty(first[-1], np.float32)
    for rows in _blocks(split):
        inputs, inside = split.x[rows], slice(first[rows.start], first[rows.stop])
        nonzero = np.nonzero(inputs)
        column[inside], value[inside] = nonzero[1], inputs[nonzero]
    if split.x.shape[1] <= MAX_CODES and len(np.unique(value[: 2 * MAX_CODES])) <= MAX_CODES:
        values, index_of = _index(value)
        if len(values) <= MAX_CODES:
            for begin in range(0, len(value), TOGETHER):
                inside = slice(begin, begin + TOGETHER)
                column[inside] |= (index_of(value[inside]) << 16).astype(np.uint32).view(np.int32)
            return first, column, values, True
    return first, column, value, False


def _index(value: NDArray[np.float32]) -> tuple[NDArray[np.float32], Callable[..., Any]]:
    """Return the different values of an array, and a function that returns where among them each of some values is."""
    if len(value) <= FEW:
        values = np.unique(value)
        return values, partial(np.searchsorted, values)
    import pandas as pd  # it hashes many in a fraction of the time of sorting them; importing it takes 50 MB and 0.3 s

    different = pd.Index(pd.unique(value))
    return different.to_numpy(), different.get_indexer


def _blocks(split: Split) -> Iterator[slice]:
    """Yield slices of a split's rows, so that what is computed of one of them takes little memory."""
    n, inputs = split.x.shape
    rows = max(1, TOGETHER // max(1, inputs))
    return (slice(begin, min(begin + rows, n)) for begin in range(0, n, rows))


def is_coded(split: Split) -> bool:
    """Return whether a split's inputs are coded."""
    return _sparse(split)[-1]


def rows_in_cache(split: Split, width: int) -> int:
    """Return of how many rows of `width` weights those of one sample's nonzero inputs stay in the L1 cache; at least 8.

    Then the next sample finds there what it has in common with the one before.
    """
    inputs, nonzero = max(1, split.x.size), max(1, len(_sparse(split)[1]))
    return max(8, L1_BYTES // (4 * width)) * inputs // nonzero


@lru_cache(maxsize=12)
def pack_split(split: Split, chunk: int) -> Any:
    """Return a split as DATA, in chunks of `chunk` columns (the bias counts as one). The runs of a sweep share it."""
    first, column, value, coded = _sparse(split)
    n, inputs = split.x.shape
    chunks = -(-(inputs + 1) // chunk)
    cuts = np.zeros((n, chunks + 1), np.int32)
    for rows in _blocks(split):
        plain, size = column[first[rows.start] : first[rows.stop]], rows.stop - rows.start
        places = np.repeat(np.arange(size), np.diff(first[rows.start : rows.stop + 1])) * chunks
        places += (plain & LOWER if coded else plain) // chunk
        counts = np.bincount(places, minlength=size * chunks).reshape(size, chunks)
        np.cumsum(counts, axis=1, out=cuts[rows, 1:], dtype=np.int32)
    return DATA.pack(first=first, column=column, value=value, labels=split.y, chunk=chunk, chunks=chunks, cuts=cuts)
