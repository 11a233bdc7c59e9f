"""What is done to whole vectors: means by the contract's tree in float64, copies, a test for finiteness.

A mean is formed block by block: a block of 1,024 elements is a whole subtree.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fredsim.jit.cache import kernel
from fredsim.jit.pointers import doubles, floats, integers, item, put, shift
from fredsim.jit.team import meet, share
from fredsim.jit.vector import add_pairs, all_equal_itself, load, load_part, store, store_part, zeros

__all__ = ["BLOCK", "all_finite", "copy", "duplicate", "mean64"]

BLOCK = 1024


@kernel
def mean64(rank, size, barrier, arguments):
    """Write the mean of float32 (n,) to result[0]: fredsim.numerics.oracle.mean64.

    Arguments: the array, n, room for the blocks' sums, float64, room for 2·BLOCK float64 a thread, and the result.
    """
    a = integers(arguments)
    array, n, sums = floats(item(a, 0)), item(a, 1), doubles(item(a, 2))
    room, result = shift(doubles(item(a, 3)), 2 * BLOCK * rank), doubles(item(a, 4))
    sum_blocks(rank, size, array, n, sums, room)
    meet(size, barrier)
    if rank == 0:
        put(result, 0, finish(n, sums))
    meet(size, barrier)


@kernel
def all_finite(rank, size, barrier, arguments):
    """Write to result[rank] whether this thread's share of float32 (n,) is finite.

    Arguments: the array, n, and the result, int64 (size,).
    """
    a = integers(arguments)
    array, n = floats(item(a, 0)), item(a, 1)
    i, end = n // 64 * rank // size * 64, n // 64 * (rank + 1) // size * 64
    total, rest = zeros(64), zeros(16)
    while i < end:
        total = total + load(total, array, i) * 0.0
        i += 64
    if rank == size - 1:
        while i < n:
            rest = rest + load_part(rest, array, i, n - i) * 0.0
            i += 16
    put(integers(item(a, 2)), rank, np.int64(all_equal_itself(total) and all_equal_itself(rest)))
    meet(size, barrier)


@kernel
def duplicate(rank, size, barrier, arguments):
    """Copy float32 (n,). Arguments: the array, n, and where the copy goes."""
    a = integers(arguments)
    array, n, out = floats(item(a, 0)), item(a, 1), floats(item(a, 2))
    begin, end = share(rank, size, n)
    copy(shift(array, begin), end - begin, shift(out, begin))
    meet(size, barrier)


@njit(error_model="numpy")
def copy(source, count, out):
    """Copy `count` float32."""
    i = 0
    while i + 16 <= count:
        store(out, i, load(zeros(16), source, i))
        i += 16
    if i < count:
        store_part(out, i, load_part(zeros(16), source, i, count - i), count - i)


@njit(error_model="numpy")
def sum_blocks(rank, size, array, n, sums, room):
    """Sum this thread's blocks."""
    blocks = (n + BLOCK - 1) // BLOCK
    other = shift(room, BLOCK)
    for block in range(blocks * rank // size, blocks * (rank + 1) // size):
        here = shift(array, block * BLOCK)
        count = min(BLOCK, n - block * BLOCK)
        i = 0
        while i + 32 <= count:
            add_pairs(here, i, room, i // 2)
            i += 32
        for j in range(i, count - 1, 2):
            put(room, j // 2, np.float64(item(here, j)) + np.float64(item(here, j + 1)))
        if count % 2:
            put(room, count // 2, np.float64(item(here, count - 1)))
        put(sums, block, fold(room, other, (count + 1) // 2))


@njit(error_model="numpy")
def finish(n, sums):
    """Return the mean from the blocks' sums."""
    blocks = (n + BLOCK - 1) // BLOCK
    count = blocks
    while count > 1:
        half = count // 2
        for i in range(half):
            put(sums, i, item(sums, 2 * i) + item(sums, 2 * i + 1))
        if count % 2:
            put(sums, half, item(sums, count - 1))
        count = (count + 1) // 2
    total = item(sums, 0) if blocks > 0 else 0.0
    return (total + 0.0) / np.float64(n)


@njit(error_model="numpy")
def fold(leaves, other, count):
    """Add pairs until one is left, from one array to the other; an odd one passes up unchanged."""
    while count > 1:
        i = 0
        while i + 32 <= count:
            add_pairs(leaves, i, other, i // 2)
            i += 32
        for j in range(i, count - 1, 2):
            put(other, j // 2, item(leaves, j) + item(leaves, j + 1))
        if count % 2:
            put(other, count // 2, item(leaves, count - 1))
        leaves, other = other, leaves
        count = (count + 1) // 2
    return item(leaves, 0)
