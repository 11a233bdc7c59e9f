"""Means by the contract's tree in float64, block by block: a block of 1,024 elements is a whole subtree."""

from __future__ import annotations

import numpy as np

from fredsim.kernels.cache import kernel

__all__ = ["mean64"]

BLOCK = 1024


@kernel(nogil=True)
def mean64(array):
    """Return the mean of a contiguous float32 array (n,): fredsim.numerics.oracle.mean64."""
    n = len(array)
    blocks = (n + BLOCK - 1) // BLOCK
    sums = np.empty(max(blocks, 1), np.float64)
    sums[0] = 0.0
    leaves = np.empty(BLOCK, np.float64)
    for block in range(blocks):
        begin = block * BLOCK
        count = min(BLOCK, n - begin)
        for i in range(count):
            leaves[i] = np.float64(array[begin + i])
        sums[block] = fold(leaves, count)
    return (fold(sums, blocks) + 0.0) / np.float64(n)


@kernel()
def fold(leaves, count):
    """Add pairs in place until one is left; an odd one passes up unchanged."""
    while count > 1:
        half = count // 2
        for i in range(half):
            leaves[i] = leaves[2 * i] + leaves[2 * i + 1]
        if count % 2:
            leaves[half] = leaves[count - 1]
            half += 1
        count = half
    return leaves[0]
