"""Kernels on whole arrays: means by the binary tree of docs/numerics.md in float64, copies, tests for finiteness.

A mean is computed block by block: a block of 1,024 elements is a whole subtree. NumbaOperations calls these kernels.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, floats, int64s, item, put, shift
from fredsim.jit.shuffles import add_pairs
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import barrier_wait, share
from fredsim.jit.vector import load, load_part, no_nan, store, store_part, zeros

__all__ = ["BLOCK", "all_finite", "copy", "duplicate", "duplicate_finite", "mean64"]

BLOCK = 1024  # the number of elements of a subtree that one thread sums


@kernel(array=floats, count=int, sums=doubles, scratch=doubles, result=doubles)
def mean64(rank, size, barrier, a):
    """Write the mean of `array`, float32 (count,), to result[0]: fredsim.numerics.oracle.mean64.

    Workspace: `sums`, one float64 per block; `scratch`, 2·BLOCK float64 per thread.
    """
    sum_blocks(rank, size, a.array, a.count, a.sums, shift(a.scratch, 2 * BLOCK * rank))
    barrier_wait(size, barrier)
    if rank == 0:
        put(a.result, 0, mean_of_sums(a.count, a.sums))


@kernel(array=floats, count=int, result=int64s)
def all_finite(rank, size, barrier, a):
    """Write to result[rank] whether this thread's share of `array`, float32 (count,), is finite."""
    n = a.count
    i, end = n // 64 * rank // size * 64, n // 64 * (rank + 1) // size * 64
    total, rest = zeros(64), zeros(16)
    while i < end:
        total = total + load(total, a.array, i) * 0.0
        i += 64
    if rank == size - 1:
        while i < n:
            rest = rest + load_part(rest, a.array, i, n - i) * 0.0
            i += 16
    put(a.result, rank, np.int64(no_nan(total) and no_nan(rest)))


@kernel(array=floats, count=int, out=floats)
def duplicate(rank, size, barrier, a):
    """Copy `array`, float32 (count,), to `out`."""
    begin, end = share(rank, size, a.count)
    copy(shift(a.array, begin), end - begin, shift(a.out, begin))


@kernel(array=floats, count=int, out=floats, result=int64s)
def duplicate_finite(rank, size, barrier, a):
    """Copy `array`, float32 (count,), to `out`; write to result[rank] whether this thread's share is finite."""
    i, end = share(rank, size, a.count)
    total = zeros(16)
    while i + 16 <= end:
        some = load(total, a.array, i)
        store(a.out, i, some)
        total = total + some * 0.0
        i += 16
    if i < end:
        some = load_part(total, a.array, i, end - i)
        store_part(a.out, i, some, end - i)
        total = total + some * 0.0
    put(a.result, rank, np.int64(no_nan(total)))


@subroutine
def copy(source, count, out):
    """Copy `count` float32 from `source` to `out`."""
    i = 0
    while i + 16 <= count:
        store(out, i, load(zeros(16), source, i))
        i += 16
    if i < count:
        store_part(out, i, load_part(zeros(16), source, i, count - i), count - i)


@subroutine
def sum_blocks(rank, size, array, n, sums, scratch):
    """Write the tree sums in float64 of this thread's blocks of the array (n,) to sums[block]."""
    blocks = (n + BLOCK - 1) // BLOCK
    other = shift(scratch, BLOCK)
    for block in range(blocks * rank // size, blocks * (rank + 1) // size):
        here = shift(array, block * BLOCK)
        count = min(BLOCK, n - block * BLOCK)
        i = 0
        while i + 32 <= count:
            add_pairs(here, i, scratch, i // 2)
            i += 32
        for j in range(i, count - 1, 2):
            put(scratch, j // 2, np.float64(item(here, j)) + np.float64(item(here, j + 1)))
        if count % 2:
            put(scratch, count // 2, np.float64(item(here, count - 1)))
        put(sums, block, tree_sum(scratch, other, (count + 1) // 2))


@subroutine
def mean_of_sums(n, sums):
    """Return the mean of n elements from the blocks' sums, which are overwritten; NaN for n = 0."""
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


@subroutine
def tree_sum(leaves, other, count):
    """Return the sum of leaves[: count], float64, by the binary tree: fredsim.numerics.oracle.tree_sum.

    Each level is written to the other of the two arrays; an odd element moves up unchanged.
    """
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
