"""Kernels of least squares: errors and losses of samples, and mean gradients of many minibatches at once.

The results have the same bits as those of the graph of fredsim.networks.linear.
Threads divide the samples, then the columns of the gradients; each sum stays within one thread.
fredsim.kernels.squares.linear_engine calls these kernels.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import barrier_wait
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.mlp.dense import ZERO

__all__ = ["LEAST_SQUARES", "LEAVES", "errors", "gradients"]

LEAVES = 8  # the samples of one block, the leaves of a subtree, which is summed in registers
HALF = np.float32(0.5)

#: Minibatch b has the samples rows[b] of `x` and `y`, `rows` (batches, µ); its parameters are at the address held[b].
#: The rows of `x` are padded to `stride` floats, whole vectors. The kernels write `losses` (batches, µ); `errors`
#: (batches, `padded`), which fill whole blocks of LEAVES and are 0 beyond µ; and `out` (batches, stride), the mean
#: gradients. `stack` is workspace: 64 floats per level of the tree and thread.
LEAST_SQUARES = Fields(
    x=floats, y=floats, inputs=int, stride=int, rows=int64s, held=int64s, mu=int, padded=int, batches=int,
    losses=floats, errors=floats, out=floats, stack=floats, stack_stride=int,
)  # fmt: skip


@kernel(LEAST_SQUARES)
def errors(rank, size, barrier, a):
    """Write each sample's error e = (Σ_k x_k w_k, k ascending from +0) − y, and its loss ½·e²."""
    write_errors(rank, size, a)


@kernel(LEAST_SQUARES)
def gradients(rank, size, barrier, a):
    """Write the samples' losses and errors, then each minibatch's mean gradient: tree sums of x·e, divided by µ."""
    write_errors(rank, size, a)
    barrier_wait(size, barrier)
    stack, wide = shift(a.stack, rank * a.stack_stride), a.stride // 64
    tiles = wide + (a.stride - 64 * wide) // 16
    for task in range(a.batches * tiles * rank // size, a.batches * tiles * (rank + 1) // size):
        b, tile = task // tiles, task % tiles
        if tile < wide:
            sum_columns(zeros(64), a, b, 64 * tile, stack)
        else:
            sum_columns(zeros(16), a, b, 64 * wide + 16 * (tile - wide), stack)


@subroutine(forceinline=True)
def write_errors(rank, size, a):
    """Write the losses and errors of this thread's samples."""
    task, end = a.batches * a.mu * rank // size, a.batches * a.mu * (rank + 1) // size
    while task < end:
        b = task // a.mu
        following = min(end, (b + 1) * a.mu)
        w = floats(item(a.held, b))
        while task + LEAVES <= following:
            write_block(a, w, b, task)
            task += LEAVES
        while task < following:
            total, at = np.float32(0.0), item(a.rows, task) * a.stride
            for k in range(a.inputs):
                total = total + item(a.x, at + k) * item(w, k)
            write_one(a, b, task, total)
            task += 1


@subroutine
def write_block(a, w, b, task):
    """Write the losses and errors of LEAVES samples; eight independent sums hide the latency of each addition."""
    zero = np.float32(0.0)
    s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
    p0, p1 = item(a.rows, task) * a.stride, item(a.rows, task + 1) * a.stride
    p2, p3 = item(a.rows, task + 2) * a.stride, item(a.rows, task + 3) * a.stride
    p4, p5 = item(a.rows, task + 4) * a.stride, item(a.rows, task + 5) * a.stride
    p6, p7 = item(a.rows, task + 6) * a.stride, item(a.rows, task + 7) * a.stride
    for k in range(a.inputs):
        weight = item(w, k)
        s0 = s0 + item(a.x, p0 + k) * weight
        s1 = s1 + item(a.x, p1 + k) * weight
        s2 = s2 + item(a.x, p2 + k) * weight
        s3 = s3 + item(a.x, p3 + k) * weight
        s4 = s4 + item(a.x, p4 + k) * weight
        s5 = s5 + item(a.x, p5 + k) * weight
        s6 = s6 + item(a.x, p6 + k) * weight
        s7 = s7 + item(a.x, p7 + k) * weight
    for i, total in enumerate((s0, s1, s2, s3, s4, s5, s6, s7)):
        write_one(a, b, task + i, total)


@subroutine
def write_one(a, b, task, total):
    """Write the loss and the error of a sample whose inputs times weights sum to `total`."""
    error = total - item(a.y, item(a.rows, task))
    put(a.losses, task, error * error * HALF)
    put(a.errors, b * a.padded + task - b * a.mu, error)


@subroutine
def leaf(like, a, b, m, j):
    """Return input × error of sample m in as many columns as `like` has lanes; zeros for a sample beyond µ."""
    row = item(a.rows, b * a.mu + (m if m < a.mu else ZERO))
    return load(like, a.x, row * a.stride + j) * item(a.errors, b * a.padded + m)


@subroutine
def sum_columns(like, a, b, j, stack):
    """Write as many columns of minibatch b's mean gradient as `like` has lanes, from column j on.

    Each is the sum over samples by the binary tree, block by block, divided by µ.
    """
    blocks, depth, total = a.padded // LEAVES, ZERO, like
    for k in range(blocks):
        if k > 0:  # the sum so far goes on the stack, until its partner in the tree is summed
            store(stack, depth * 64, total)
            depth += 1
        m = k * LEAVES
        one = leaf(like, a, b, m, j) + leaf(like, a, b, m + 1, j)
        one = one + (leaf(like, a, b, m + 2, j) + leaf(like, a, b, m + 3, j))
        other = leaf(like, a, b, m + 4, j) + leaf(like, a, b, m + 5, j)
        other = other + (leaf(like, a, b, m + 6, j) + leaf(like, a, b, m + 7, j))
        total = one + other
        merges = k if k < blocks - 1 else -1  # one merge per trailing 1 bit of k; after the last block, with all sums
        while depth > 0 and merges & 1:
            depth -= 1
            total = load(like, stack, depth * 64) + total
            merges >>= 1
    total = total + 0.0
    store(a.out, b * a.stride + j, total / np.float32(a.mu))
