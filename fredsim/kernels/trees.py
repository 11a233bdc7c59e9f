"""Rows of a weight gradient: sums over the minibatch by a balanced tree, computed block by block.

A block is LEAVES samples, the leaves of one subtree, which is summed in registers. The inputs of a layer are stored in
blocks, input by input: factors[(block · rows + k) · LEAVES + i] is input k of sample block · LEAVES + i; row k = inputs
is the bias's, all 1. A zero input, or a sample beyond the minibatch, gives a zero product, and adding that leaves its
partner in the tree unchanged. A block is active in row k if any of its inputs k is not zero. Inactive blocks are
skipped as long as their errors are finite: the product of zero with an infinity or NaN must be computed, as it is NaN.

While a sum waits for its partner in the tree, it is kept on a stack. GROUP blocks form a group.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from fredsim.data.datasets import Split
from fredsim.jit import kernel
from fredsim.jit.pointers import item, put, shift
from fredsim.jit.processor import WIDE
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, no_nan, store, zeros
from fredsim.kernels.data import coded, input_at
from fredsim.kernels.dense import ZERO
from fredsim.kernels.workspace import GROUP, LANES, ROWS_TOGETHER, WAITING, block_size

__all__ = [
    "LEAVES",
    "Tree",
    "activate_all",
    "blocks_of",
    "errors_finite",
    "gradient_rows",
    "lay_out",
    "rows_alike",
    "specialised",
]

LEAVES = 8  # the samples of a block; `specialised` compiles for 1 and 4, too (block_size)
ONE_BLOCK = False  # whether the minibatch is a single block; `specialised` sets this


class Tree(NamedTuple):
    """What sums over a minibatch of µ need: TABLES (fredsim.kernels.workspace), and the stack of waiting sums."""

    mu: int
    tables: Any
    stack: Any


def specialised(name: str, mu: int, split: Split) -> ModuleType:
    """Return a copy of fredsim.kernels.`name`, which imports this module, compiled for minibatches of µ of a split."""
    return _specialised(name, block_size(mu), mu <= 8, coded(split))


@cache
def _specialised(name: str, leaves: int, one_block: bool, small: bool) -> ModuleType:
    parts = dict.fromkeys(("data", "dense", "trees", "upper", "window", "gradient", name))
    names = [f"fredsim.kernels.{part}" for part in parts]
    return kernel.specialised(names, LEAVES=leaves, ONE_BLOCK=one_block, CODED=small)


@subroutine
def blocks_of(mu):
    """Return how many blocks a minibatch of µ has, and how many groups of GROUP blocks these form."""
    blocks = (mu + LEAVES - 1) // LEAVES
    return blocks, (blocks + GROUP - 1) // GROUP


@subroutine
def lay_out(data, samples, mu, group, inputs, factors, at, active, mark):
    """Write, in blocks, one group's inputs of the minibatch samples[: µ], whose first group begins at factors[at].

    The bits of active[mark + group · rows + k] are set to which of the group's blocks are active in row k.
    """
    rows = inputs + 1
    mark += group * rows
    begin, end = group * GROUP * LEAVES, min((group + 1) * GROUP * LEAVES, mu)  # samples
    blocks = (end - begin + LEAVES - 1) // LEAVES
    for k in range(inputs):
        put(active, mark + k, np.uint8(0))
    put(active, mark + inputs, np.uint8((1 << blocks) - 1))
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
                    put(active, mark + k, item(active, mark + k) | bit)


@subroutine
def errors_finite(errors, d, stride, width, samples):
    """Return whether the errors of so many samples, from errors[d] on, are finite in `width` columns, whole vectors."""
    finite = zeros(16)
    for m in range(samples):
        for j in range(0, width, 16):
            finite = finite + load(finite, errors, d + m * stride + j) * 0.0
    return no_nan(finite)


@subroutine
def activate_all(active, mark, rows):
    """Mark all blocks of a group, whose bits begin at `mark`, as active in every row, as they are in the bias's row."""
    for k in range(rows - 1):
        put(active, mark + k, item(active, mark + rows - 1))


@subroutine
def rows_alike(active, mark, rows, groups, k, end):
    """Return the end of the rows from k on that are all inactive or all not, and whether they are inactive."""
    inactive = is_inactive(active, mark + k, rows, groups)
    while k < end and is_inactive(active, mark + k, rows, groups) == inactive:
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
def sum_block(like, factors, x, errors, d, stride):
    """Return the sum of activation × error over one block's samples, a subtree."""
    total = item(factors, x) * load(like, errors, d)
    if LEAVES > 1:
        total = total + item(factors, x + 1) * load(like, errors, d + stride)
        other = item(factors, x + 2) * load(like, errors, d + 2 * stride)
        total = total + (other + item(factors, x + 3) * load(like, errors, d + 3 * stride))
    if LEAVES > 4:
        one = item(factors, x + 4) * load(like, errors, d + 4 * stride)
        one = one + item(factors, x + 5) * load(like, errors, d + 5 * stride)
        other = item(factors, x + 6) * load(like, errors, d + 6 * stride)
        one = one + (other + item(factors, x + 7) * load(like, errors, d + 7 * stride))
        total = total + one
    return total


@subroutine
def sum_four(like, factors, x, step, errors, d, stride):
    """Return the sum over four consecutive blocks."""
    one = sum_block(like, factors, x, errors, d, stride)
    one = one + sum_block(like, factors, x + step, errors, d + LEAVES * stride, stride)
    other = sum_block(like, factors, x + 2 * step, errors, d + 2 * LEAVES * stride, stride)
    return one + (other + sum_block(like, factors, x + 3 * step, errors, d + 3 * LEAVES * stride, stride))


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
def sum_group(like, tree, factors, x, step, errors, d, stride, bits):
    """Return the sum over a group's active blocks by the tree; waiting sums go on the stack."""
    if bits == 15 or bits == 255:  # four blocks, or all eight: no table is needed, and no sum has to wait
        total = sum_four(like, factors, x, step, errors, d, stride)
        if bits == 15:
            return total
        return total + sum_four(like, factors, x + 4 * step, step, errors, d + 4 * LEAVES * stride, stride)
    total, depth = like, ZERO
    begin = np.int64(bits) * GROUP
    for i in range(begin, begin + item(tree.tables.counts, bits)):
        if i > begin:  # the sum so far goes on the stack
            store(tree.stack, depth * LANES, total)
            depth += 1
        b = np.int64(item(tree.tables.blocks, i))
        total = sum_block(like, factors, x + b * step, errors, d + b * LEAVES * stride, stride)
        for _ in range(item(tree.tables.merges, i)):
            depth -= 1
            total = load(like, tree.stack, depth * LANES) + total
    return total


class Rows(NamedTuple):
    """Rows of a gradient to compute: the arguments of `gradient_rows`, except those for its columns."""

    tree: Tree
    factors: Any
    x: int
    step: int
    rows: int
    active: Any
    mark: int
    group_stride: int
    errors: Any
    stride: int
    out: Any
    out_stride: int


@subroutine
def gradient_columns(like, a, d, at):
    """Write as many columns of Rows to out[at :] as `like` has lanes; their errors begin at `d`.

    Some rows are summed over one group before the next group is read, so that the group's errors stay in the L1 cache.
    A row's sums over groups wait behind the stack of `sum_group` until their partners in the tree are there.
    """
    tree = a.tree
    groups = (tree.mu + GROUP * LEAVES - 1) // (GROUP * LEAVES)
    waiting = shift(tree.stack, WAITING * LANES)
    for first in range(0, a.rows, ROWS_TOGETHER):
        depth = ZERO
        for g in range(groups):
            error, last = d + g * GROUP * LEAVES * a.stride, g == groups - 1
            to = depth
            while to > 0 and (last or g >> (depth - to) & 1):  # one merge per trailing 1 bit of g; the last with all
                to -= 1
            for k in range(first, min(first + ROWS_TOGETHER, a.rows)):
                bits = item(a.active, a.mark + g * a.group_stride + k)
                place = a.x + g * GROUP * a.step + k * LEAVES
                total = sum_group(like, tree, a.factors, place, a.step, a.errors, error, a.stride, bits)
                for h in range(depth - 1, to - 1, -1):
                    total = load(like, waiting, (h * ROWS_TOGETHER + k - first) * LANES) + total
                if last:
                    store(a.out, at + k * a.out_stride, mean(total, tree.mu))
                else:
                    store(waiting, (to * ROWS_TOGETHER + k - first) * LANES, total)
            depth = to + 1


@subroutine
def gradient_rows(
    tree, factors, x, step, rows, active, mark, group_stride, errors, d, stride, width, out, at, out_stride
):
    """Write `rows` consecutive rows of the mean gradient, `width` columns, to out[at :].

    The first row's factors begin at `x`, those of the next block of samples `step` later; the errors of sample m begin
    at `d` + m·`stride`; the bits of active[mark + g·`group_stride` + k] are the blocks of group g active in row k. The
    last columns of all rows are written first, so that what a row's last vector writes beyond the row is overwritten.
    """
    if ONE_BLOCK:
        for k in range(rows):
            for j in range(0, width, 16):
                total = sum_block(zeros(16), factors, x + k * LEAVES, errors, d + j, stride)
                store(out, at + k * out_stride + j, mean(total, tree.mu))
    else:
        a = Rows(tree, factors, x, step, rows, active, mark, group_stride, errors, stride, out, out_stride)
        vectors = (width + 15) // 16
        most = 7 if WIDE else 4  # so that the sums of one block fit into registers
        pieces = (vectors + most - 1) // most
        for piece in range(pieces - 1, -1, -1):
            begin, end = vectors * piece // pieces, vectors * (piece + 1) // pieces
            if WIDE and end - begin == 7:
                gradient_columns(zeros(112), a, d + 16 * begin, at + 16 * begin)
            elif WIDE and end - begin == 6:
                gradient_columns(zeros(96), a, d + 16 * begin, at + 16 * begin)
            elif WIDE and end - begin == 5:
                gradient_columns(zeros(80), a, d + 16 * begin, at + 16 * begin)
            elif end - begin == 4:
                gradient_columns(zeros(64), a, d + 16 * begin, at + 16 * begin)
            elif end - begin == 3:
                gradient_columns(zeros(48), a, d + 16 * begin, at + 16 * begin)
            elif end - begin == 2:
                gradient_columns(zeros(32), a, d + 16 * begin, at + 16 * begin)
            else:
                gradient_columns(zeros(16), a, d + 16 * begin, at + 16 * begin)
