"""Rows of a layer's mean gradient: sums over the minibatch by a balanced binary tree, computed block by block.

The bits are those of fredsim.networks.graph.Graph.gradient, whose tree (fredsim.numerics.oracle.tree_sum) has the
samples as leaves. The kernels in fredsim.kernels.mlp.gradient, .fused and .window call `gradient_rows`.

A block is LEAVES samples, the leaves of one subtree, which is summed in registers. The inputs of a layer are stored in
blocks, input by input: factors[(block · rows + k) · LEAVES + i] is input k of sample block · LEAVES + i; row k = inputs
is the bias's, all 1. A zero input, or a sample beyond the minibatch, gives a zero product, and adding that leaves its
partner in the tree unchanged. A block is active in row k if any of its inputs k is not zero. Inactive blocks are
skipped as long as their errors are finite: the product of zero with an infinity or NaN must be computed, as it is NaN.

GROUP blocks form a group. While the sum over a group waits for its partner in the tree, it is kept on a stack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fredsim.jit.pointers import item, put, shift
from fredsim.jit.processor import WIDE
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, no_nan, store, zeros
from fredsim.kernels.mlp.dense import ZERO
from fredsim.kernels.mlp.sparse_rows import input_at
from fredsim.kernels.mlp.workspace import GROUP, MAX_LANES, ROWS_TOGETHER

__all__ = [
    "LEAVES",
    "Tree",
    "activate_all",
    "activity_run",
    "blocks_of",
    "errors_finite",
    "gradient_rows",
    "lay_out",
    "thread_space",
]

# Constants of which fredsim.kernels.mlp.specialisation makes copies of this module with other values:
LEAVES = 8  # the samples of a block: 1, 4 or 8 (block_size)
ONE_BLOCK = False  # whether the minibatch is a single block


class Tree(NamedTuple):
    """What a thread needs for sums over µ samples: TABLES (fredsim.kernels.mlp.workspace) and a stack of sums."""

    mu: int
    tables: Any
    stack: Any


@subroutine(forceinline=True)
def thread_space(rank, a):
    """Return a thread's Tree, and its space for activations and for rows of a gradient: `scratch` of arguments `a`."""
    stack = shift(a.scratch.memory, rank * a.scratch.stride)
    return Tree(a.mu, a.tables, stack), shift(stack, a.scratch.hidden), shift(stack, a.scratch.rows)


@subroutine
def blocks_of(mu):
    """Return how many blocks a minibatch of µ has, and how many groups of GROUP blocks these form."""
    blocks = (mu + LEAVES - 1) // LEAVES
    return blocks, (blocks + GROUP - 1) // GROUP


@subroutine
def lay_out(data, samples, mu, group, inputs, factors, at, active, active_at):
    """Write one group's inputs of the minibatch samples[: µ] in blocks; group 0 begins at factors[at].

    Bit i of active[active_at + group · rows + k] is set to whether the group's block i is active in row k.
    """
    rows = inputs + 1
    active_at += group * rows
    begin, end = group * GROUP * LEAVES, min((group + 1) * GROUP * LEAVES, mu)  # samples
    blocks = (end - begin + LEAVES - 1) // LEAVES
    for k in range(inputs):
        put(active, active_at + k, np.uint8(0))
    put(active, active_at + inputs, np.uint8((1 << blocks) - 1))
    for block in range(blocks):
        place = at + (group * GROUP + block) * rows * LEAVES
        for i in range(place, place + inputs * LEAVES):
            put(factors, i, np.float32(0.0))
        bit = np.uint8(1 << block)
        for i in range(LEAVES):
            m = begin + block * LEAVES + i
            put(factors, place + inputs * LEAVES + i, np.float32(m < mu))
            if m < mu:
                row = item(samples, m)
                for t in range(item(data.first, row), item(data.first, row + 1)):
                    k, value = input_at(data, t)
                    put(factors, place + k * LEAVES + i, value)
                    put(active, active_at + k, item(active, active_at + k) | bit)


@subroutine
def errors_finite(errors, errors_at, stride, width, samples):
    """Return whether the errors of `samples` samples, from errors[errors_at] on, are finite in `width` columns.

    A sample's errors begin `stride` floats after those of the one before; `width` is a multiple of 16.
    """
    finite = zeros(16)
    for m in range(samples):
        for j in range(0, width, 16):
            finite = finite + load(finite, errors, errors_at + m * stride + j) * 0.0
    return no_nan(finite)


@subroutine
def activate_all(active, active_at, rows):
    """Mark all blocks of the group with bits active[active_at :] as active in every row, as in the bias's row."""
    for k in range(rows - 1):
        put(active, active_at + k, item(active, active_at + rows - 1))


@subroutine
def activity_run(active, active_at, rows, groups, k, end):
    """Return the end of the run of rows from k on that are all active or all inactive, and whether it is the latter."""
    inactive = is_inactive(active, active_at + k, rows, groups)
    while k < end and is_inactive(active, active_at + k, rows, groups) == inactive:
        k += 1
    return k, inactive


@subroutine
def is_inactive(active, at, rows, groups):
    """Return whether a row has no active block in any group: then its gradient is +0."""
    bits = item(active, at)
    for g in range(1, groups):
        bits |= item(active, at + g * rows)
    return bits == 0


@subroutine
def sum_block(like, factors, factors_at, errors, errors_at, stride):
    """Return the sum of input × error over one block's samples, a subtree."""
    total = item(factors, factors_at) * load(like, errors, errors_at)
    if LEAVES > 1:
        total = total + item(factors, factors_at + 1) * load(like, errors, errors_at + stride)
        other = item(factors, factors_at + 2) * load(like, errors, errors_at + 2 * stride)
        total = total + (other + item(factors, factors_at + 3) * load(like, errors, errors_at + 3 * stride))
    if LEAVES > 4:
        one = item(factors, factors_at + 4) * load(like, errors, errors_at + 4 * stride)
        one = one + item(factors, factors_at + 5) * load(like, errors, errors_at + 5 * stride)
        other = item(factors, factors_at + 6) * load(like, errors, errors_at + 6 * stride)
        one = one + (other + item(factors, factors_at + 7) * load(like, errors, errors_at + 7 * stride))
        total = total + one
    return total


@subroutine
def sum_four(like, factors, factors_at, step, errors, errors_at, stride):
    """Return the sum of input × error over four consecutive blocks, whose inputs begin `step` floats apart."""
    one = sum_block(like, factors, factors_at, errors, errors_at, stride)
    one = one + sum_block(like, factors, factors_at + step, errors, errors_at + LEAVES * stride, stride)
    other = sum_block(like, factors, factors_at + 2 * step, errors, errors_at + 2 * LEAVES * stride, stride)
    return one + (
        other + sum_block(like, factors, factors_at + 3 * step, errors, errors_at + 3 * LEAVES * stride, stride)
    )


@subroutine
def mean(total, mu):
    """Return a tree's sum divided by µ; +0 is added first, so that the result is not −0."""
    total = total + 0.0
    if LEAVES == 1:
        return total
    if mu & (mu - 1):
        return total / np.float32(mu)
    return total * (np.float32(1.0) / np.float32(mu))  # exact


@subroutine
def sum_group(like, tables, factors, factors_at, step, errors, errors_at, stride, bits):
    """Return the sum over a group's active blocks, those whose bit is set in `bits`, four by four.

    If blocks 2 and 3 and another of the four are active, all four are summed: an inactive one gives ±0. (If block 3 is
    not active, it may lie beyond the minibatch, and must not be read.) Any other active blocks are added one after the
    other, which then is the tree's order.
    """
    total = like
    for _ in range(GROUP // 4):
        pattern = np.int64(bits & 15)
        if pattern > 12:
            total = total + sum_four(like, factors, factors_at, step, errors, errors_at, stride)
        elif pattern > 0:
            part = like
            for i in range(3 * pattern, 3 * pattern + item(tables.counts, pattern)):
                b = np.int64(item(tables.blocks, i))
                at, error_at = factors_at + b * step, errors_at + b * LEAVES * stride
                part = part + sum_block(like, factors, at, errors, error_at, stride)
            total = total + part
        bits >>= 4
        factors_at += 4 * step
        errors_at += 4 * LEAVES * stride
    return total


class Rows(NamedTuple):
    """Rows of a gradient to compute: the arguments of `gradient_rows`, except those for its columns."""

    tree: Tree
    factors: Any
    factors_at: int
    step: int
    rows: int
    active: Any
    active_at: int
    group_stride: int
    errors: Any
    stride: int
    out: Any
    out_stride: int


@subroutine
def gradient_columns(like, a, errors_at, at):
    """Write as many columns of Rows to out[at :] as `like` has lanes; their errors begin at errors[errors_at].

    ROWS_TOGETHER rows are summed over one group before the next group is read, so that the group's errors stay in the
    L1 cache. A row's sums over groups wait on the stack until their partners in the tree are there.
    """
    tree = a.tree
    if ONE_BLOCK:
        for k in range(a.rows):
            total = sum_block(like, a.factors, a.factors_at + k * LEAVES, a.errors, errors_at, a.stride)
            store(a.out, at + k * a.out_stride, mean(total, tree.mu))
        return
    groups = (tree.mu + GROUP * LEAVES - 1) // (GROUP * LEAVES)
    for first in range(0, a.rows, ROWS_TOGETHER):
        depth = ZERO
        for g in range(groups):
            error, last = errors_at + g * GROUP * LEAVES * a.stride, g == groups - 1
            to = depth
            while to > 0 and (last or g >> (depth - to) & 1):  # one merge per trailing 1 bit of g; the last with all
                to -= 1
            for k in range(first, min(first + ROWS_TOGETHER, a.rows)):
                bits = item(a.active, a.active_at + g * a.group_stride + k)
                place = a.factors_at + g * GROUP * a.step + k * LEAVES
                total = sum_group(like, tree.tables, a.factors, place, a.step, a.errors, error, a.stride, bits)
                for h in range(depth - 1, to - 1, -1):
                    total = load(like, tree.stack, (h * ROWS_TOGETHER + k - first) * MAX_LANES) + total
                if last:
                    store(a.out, at + k * a.out_stride, mean(total, tree.mu))
                else:
                    store(tree.stack, (to * ROWS_TOGETHER + k - first) * MAX_LANES, total)
            depth = to + 1


@subroutine
def gradient_rows(
    tree,
    factors,
    factors_at,
    step,
    rows,
    active,
    active_at,
    group_stride,
    errors,
    errors_at,
    stride,
    width,
    out,
    at,
    out_stride,
):
    """Write `rows` consecutive rows, `width` columns each, of a layer's mean gradient to out[at :].

    Row k of the gradient is the tree sum over samples m of (input k of m) × (error of m), divided by µ. The inputs of
    the first row begin at factors[factors_at], those of the next block of samples `step` floats later. The errors of
    sample m begin at errors[errors_at + m·stride]. The bits of active[active_at + g·group_stride + k] say which blocks
    of group g are active in row k. Rows are written `out_stride` floats apart, the last columns of all rows first, so
    that what a row's last vector writes beyond the row is overwritten.
    """
    if LEAVES < 8:  # one block, for which more columns at once are no faster
        for k in range(rows):
            for j in range(0, width, 16):
                total = sum_block(zeros(16), factors, factors_at + k * LEAVES, errors, errors_at + j, stride)
                store(out, at + k * out_stride + j, mean(total, tree.mu))
    else:
        a = Rows(
            tree, factors, factors_at, step, rows, active, active_at, group_stride, errors, stride, out, out_stride
        )
        vectors = (width + 15) // 16
        most = 7 if WIDE else 4  # so that the sums of one block fit into registers
        pieces = (vectors + most - 1) // most
        for piece in range(pieces - 1, -1, -1):
            begin, end = vectors * piece // pieces, vectors * (piece + 1) // pieces
            if WIDE and end - begin == 7:
                gradient_columns(zeros(112), a, errors_at + 16 * begin, at + 16 * begin)
            elif WIDE and end - begin == 6:
                gradient_columns(zeros(96), a, errors_at + 16 * begin, at + 16 * begin)
            elif WIDE and end - begin == 5:
                gradient_columns(zeros(80), a, errors_at + 16 * begin, at + 16 * begin)
            elif end - begin == 4:
                gradient_columns(zeros(64), a, errors_at + 16 * begin, at + 16 * begin)
            elif end - begin == 3:
                gradient_columns(zeros(48), a, errors_at + 16 * begin, at + 16 * begin)
            elif end - begin == 2:
                gradient_columns(zeros(32), a, errors_at + 16 * begin, at + 16 * begin)
            else:
                gradient_columns(zeros(16), a, errors_at + 16 * begin, at + 16 * begin)
