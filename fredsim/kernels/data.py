"""Data sets in the form that kernels read: compressed sparse rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import Split
from fredsim.jit.kernel import Fields
from fredsim.jit.pointers import floats, int32s, int64s

__all__ = ["DATA", "data_of"]

#: A split in compressed sparse rows: 81 % of MNIST's pixels are zero, and products with zero are skipped anyway. Sample
#: i has its columns and values from first[i] to first[i + 1]. Columns are divided into `chunks` chunks of `chunk`
#: columns; the values of sample i in chunk c are those from first[i] + cuts[i, c] to first[i] + cuts[i, c + 1].
DATA = Fields(first=int64s, column=int32s, value=floats, labels=int64s, chunk=int, chunks=int, cuts=int32s)


@lru_cache(maxsize=12)
def _sparse(split: Split) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    occupied = split.x != 0
    first = np.concatenate([[0], np.cumsum(np.count_nonzero(occupied, axis=1))]).astype(np.int64)
    return first, np.nonzero(occupied)[1].astype(np.int32), split.x[occupied]


@lru_cache(maxsize=12)
def data_of(split: Split, chunk: int) -> Any:
    """Return a split as DATA, in chunks of `chunk` columns, the bias counting as one; the runs of a sweep share it."""
    first, column, value = _sparse(split)
    n, inputs = split.x.shape
    chunks = -(-(inputs + 1) // chunk)
    row = np.repeat(np.arange(n), np.diff(first))
    counts = np.bincount(row * chunks + column // chunk, minlength=n * chunks).reshape(n, chunks)
    cuts = np.concatenate([np.zeros((n, 1), np.int64), np.cumsum(counts, axis=1)], axis=1).astype(np.int32)
    return DATA.pack(first=first, column=column, value=value, labels=split.y, chunk=chunk, chunks=chunks, cuts=cuts)
