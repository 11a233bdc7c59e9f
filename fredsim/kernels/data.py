"""Data sets in the form that kernels read: compressed sparse rows (CSR)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fredsim.data.datasets import Split
from fredsim.jit.kernel import Fields
from fredsim.jit.pointers import floats, int32s, int64s, item
from fredsim.jit.subroutine import subroutine

__all__ = ["CODED", "DATA", "input_at", "is_coded", "pack_split"]

CODED = True  # whether inputs are coded (see DATA); kernels are compiled for both (fredsim.kernels.specialisation)
MAX_CODES = 2**16  # the most columns, and the most different values, of a split whose inputs are coded
LOWER = 2**16 - 1  # a mask of the lower 16 bits

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
    occupied = split.x != 0
    first = np.concatenate([[0], np.cumsum(np.count_nonzero(occupied, axis=1))]).astype(np.int64)
    column, value = np.nonzero(occupied)[1].astype(np.int32), split.x[occupied]
    if split.x.shape[1] <= MAX_CODES and len(pd.unique(value[: 2 * MAX_CODES])) <= MAX_CODES:
        codes, values = pd.factorize(value)
        if len(values) <= MAX_CODES:
            return first, (column | codes << 16).astype(np.uint32).view(np.int32), values, True
    return first, column, value, False


def is_coded(split: Split) -> bool:
    """Return whether a split's inputs are coded."""
    return _sparse(split)[-1]


@lru_cache(maxsize=12)
def pack_split(split: Split, chunk: int) -> Any:
    """Return a split as DATA, in chunks of `chunk` columns (the bias counts as one). The runs of a sweep share it."""
    first, column, value, coded = _sparse(split)
    n, inputs = split.x.shape
    chunks = -(-(inputs + 1) // chunk)
    row, plain = np.repeat(np.arange(n), np.diff(first)), column & LOWER if coded else column
    counts = np.bincount(row * chunks + plain // chunk, minlength=n * chunks).reshape(n, chunks)
    cuts = np.concatenate([np.zeros((n, 1), np.int64), np.cumsum(counts, axis=1)], axis=1).astype(np.int32)
    return DATA.pack(first=first, column=column, value=value, labels=split.y, chunk=chunk, chunks=chunks, cuts=cuts)
