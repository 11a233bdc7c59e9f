"""Data sets as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import Split

__all__ = ["Sparse", "cuts", "sparse"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Sparse:
    """A split in compressed sparse rows: 81 % of MNIST's pixels are zero, and a zero's products are left out anyway."""

    first: NDArray[np.int64]  # (n + 1,)
    column: NDArray[np.int32]
    value: Array
    labels: NDArray[np.int64]


@lru_cache(maxsize=12)
def sparse(split: Split) -> Sparse:
    """Return the sparse form of a split; runs of one sweep share it."""
    occupied = split.x != 0
    first = np.concatenate([[0], np.cumsum(np.count_nonzero(occupied, axis=1))]).astype(np.int64)
    return Sparse(first, np.nonzero(occupied)[1].astype(np.int32), split.x[occupied], split.y)


@lru_cache(maxsize=12)
def cuts(split: Split, chunk: int) -> NDArray[np.int32]:
    """Return where each chunk of columns begins in each sample's inputs, from the sample's first: (n, chunks + 1)."""
    data = sparse(split)
    inputs = split.x.shape[1]
    chunks = -(-(inputs + 1) // chunk)
    n = len(split)
    row = np.repeat(np.arange(n), np.diff(data.first))
    counts = np.bincount(row * chunks + data.column // chunk, minlength=n * chunks).reshape(n, chunks)
    return np.concatenate([np.zeros((n, 1), np.int64), np.cumsum(counts, axis=1)], axis=1).astype(np.int32)
