"""Rows of a weight gradient: tree sums over the minibatch, formed from whole blocks of samples.

A block is LEAVES samples, the leaves of one subtree, which is summed in registers. What enters a layer stands in
blocks, input by input: factors[(block · rows + k) · LEAVES + i] is input k of sample block · LEAVES + i; row k = inputs
is the bias's, all 1. A zero, or a sample beyond the minibatch, gives a zero product, and adding that leaves its partner
as it is. A block is active in row k if any of its inputs k is not zero. Others are skipped while their errors are
finite: a product of zero with an infinity or NaN must be formed, since it is NaN.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fredsim.jit import kernel
from fredsim.jit.pointers import item, put
from fredsim.jit.vector import load, no_nan, store, zeros
from fredsim.kernels.dense import ZERO, padded
from fredsim.kernels.workspace import GROUP, block_size
from fredsim.numerics.rules import where

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
    "upper_layers",
]

LEAVES = 8  # samples of a block; compiled for 1 and 4, too (block_size)
ONE_BLOCK = False  # whether the minibatch is a single block


class Tree(NamedTuple):
    """What sums over a minibatch of µ need: TABLES (fredsim.kernels.workspace), a stack for sums that wait."""

    mu: int
    tables: Any
    stack: Any


@cache
def specialised(name: str, mu: int) -> ModuleType:
    """Return the module fredsim.kernels.`name`, which imports this one, for minibatches of µ samples."""
    parts = [__name__, "fredsim.kernels.window", f"fredsim.kernels.{name}"]
    return kernel.specialised(parts, LEAVES=block_size(mu), ONE_BLOCK=mu <= 8)


@njit
def blocks_of(mu):
    """Return how many blocks a minibatch of µ has, and how many groups of GROUP these make."""
    blocks = (mu + LEAVES - 1) // LEAVES
    return blocks, (blocks + GROUP - 1) // GROUP


@njit(error_model="numpy")
def lay_out(data, samples, mu, group, inputs, factors, at, active, mark):
    """Lay out one group's inputs of the minibatch samples[: µ], whose first group begins at factors[at].

    The group's blocks that are active in row k become the bits of active[mark + group · rows + k].
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
                    k = np.int64(item(data.column, t))
                    put(factors, place + k * LEAVES + i, item(data.value, t))
                    put(active, mark + k, item(active, mark + k) | bit)


@njit(error_model="numpy")
def errors_finite(errors, d, stride, width, samples):
    """Return whether the errors of some samples from errors[d] on are finite in `width` columns, whole vectors."""
    finite = zeros(16)
    for m in range(samples):
        for j in range(0, width, 16):
            finite = finite + load(finite, errors, d + m * stride + j) * 0.0
    return no_nan(finite)


@njit(error_model="numpy")
def activate_all(active, mark, rows):
    """Make all blocks of a group, whose bits begin at `mark`, active in every row, as they are in the bias's."""
    for k in range(rows - 1):
        put(active, mark + k, item(active, mark + rows - 1))


@njit(error_model="numpy")
def rectify_block(z, at, sample_stride, width, samples, activations, keep):
    """Rectify a block's z in place, and lay it out from activations[keep] on as the inputs of the next layer."""
    for i in range(samples):
        for j in range(at + i * sample_stride, at + i * sample_stride + padded(width), 16):
            x = load(zeros(16), z, j)
            store(z, j, where(x > 0.0, x, 0.0))
        for k in range(width):
            put(activations, keep + k * LEAVES + i, item(z, at + i * sample_stride + k))
        put(activations, keep + width * LEAVES + i, np.float32(1.0))


@njit(error_model="numpy")
def layer_columns(like, factors, x, rows, weights, base, stride, out, at, sample_stride):
    """Write as many columns of a block's z as `like` has lanes: sums over rows, ascending from +0, the bias last."""
    s0, s1, s2, s3, s4, s5, s6, s7 = like, like, like, like, like, like, like, like
    for k in range(rows):
        w = load(like, weights, base + k * stride)
        p = x + k * LEAVES
        s0 = s0 + item(factors, p) * w
        if LEAVES > 1:
            s1 = s1 + item(factors, p + 1) * w
            s2 = s2 + item(factors, p + 2) * w
            s3 = s3 + item(factors, p + 3) * w
        if LEAVES > 4:
            s4 = s4 + item(factors, p + 4) * w
            s5 = s5 + item(factors, p + 5) * w
            s6 = s6 + item(factors, p + 6) * w
            s7 = s7 + item(factors, p + 7) * w
    store(out, at, s0)
    if LEAVES > 1:
        store(out, at + sample_stride, s1)
        store(out, at + 2 * sample_stride, s2)
        store(out, at + 3 * sample_stride, s3)
    if LEAVES > 4:
        store(out, at + 4 * sample_stride, s4)
        store(out, at + 5 * sample_stride, s5)
        store(out, at + 6 * sample_stride, s6)
        store(out, at + 7 * sample_stride, s7)


@njit(error_model="numpy")
def upper_layers(net, weights, z, sample_stride, samples, activations, b):
    """Run block b through the layers above the first, whose z stands first in each sample's part of z.

    The other layers' z follow it there, each padded; all but the last are rectified. The inputs of layer l are written
    in blocks to activations[activation_offsets[l − 1] :], too.
    """
    at = ZERO
    for layer in range(1, net.layers):
        inputs, width = item(net.sizes, layer), item(net.sizes, layer + 1)
        keep = item(net.activation_offsets, layer - 1) + b * (inputs + 1) * LEAVES
        rectify_block(z, at, sample_stride, inputs, samples, activations, keep)
        at += padded(inputs)
        base, stride = item(net.offsets, layer), item(net.strides, layer)
        for j in range(0, width, 16):
            layer_columns(zeros(16), activations, keep, inputs + 1, weights, base + j, stride, z, at + j, sample_stride)


@njit(error_model="numpy")
def rows_alike(active, mark, rows, groups, k, end):
    """Return the end of the rows from k on that are all active or all inactive, and whether they are inactive."""
    inactive = is_inactive(active, mark + k, rows, groups)
    while k < end and is_inactive(active, mark + k, rows, groups) == inactive:
        k += 1
    return k, inactive


@njit(error_model="numpy")
def is_inactive(active, at, rows, groups):
    """Return whether a row has no active block in any group: then its gradient is +0."""
    bits = item(active, at)
    for g in range(1, groups):
        bits |= item(active, at + g * rows)
    return bits == 0


@njit(error_model="numpy")
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


@njit(error_model="numpy")
def mean(total, mu):
    """Return a tree's sum divided by µ; +0 is added, so that it is not −0."""
    total = total + 0.0
    if LEAVES == 1:
        return total
    if mu & (mu - 1):
        return total / np.float32(mu)
    return total * (np.float32(1.0) / np.float32(mu))  # exact


@njit(error_model="numpy")
def sum_group(like, tree, factors, x, step, errors, d, stride, bits, depth):
    """Return the sum over a group's active blocks by the tree; sums that wait go on the stack from `depth` on."""
    total = like
    begin = np.int64(bits) * GROUP
    for i in range(begin, begin + item(tree.tables.counts, bits)):
        if i > begin:  # the sum so far waits
            store(tree.stack, depth * 64, total)
            depth += 1
        b = np.int64(item(tree.tables.blocks, i))
        total = sum_block(like, factors, x + b * step, errors, d + b * LEAVES * stride, stride)
        for _ in range(item(tree.tables.merges, i)):
            depth -= 1
            total = load(like, tree.stack, depth * 64) + total
    return total


@njit(error_model="numpy")
def gradient_columns(
    like, tree, factors, x, step, rows, active, mark, group_stride, errors, d, stride, out, at, out_stride
):
    """Write as many columns of rows of the mean gradient as `like` has lanes; as `gradient_rows`."""
    groups = (tree.mu + GROUP * LEAVES - 1) // (GROUP * LEAVES)
    for k in range(rows):
        total = like
        depth = ZERO
        for g in range(groups):
            if g > 0:
                store(tree.stack, depth * 64, total)
                depth += 1
            bits = item(active, mark + g * group_stride + k)
            place, error = x + g * GROUP * step + k * LEAVES, d + g * GROUP * LEAVES * stride
            total = sum_group(like, tree, factors, place, step, errors, error, stride, bits, depth)
            merges = g if g < groups - 1 else -1  # one for each trailing bit of g that is 1; the last, with all
            while depth > 0 and merges & 1:
                depth -= 1
                total = load(like, tree.stack, depth * 64) + total
                merges >>= 1
        store(out, at + k * out_stride, mean(total, tree.mu))


@njit(error_model="numpy")
def gradient_rows(
    tree, factors, x, step, rows, active, mark, group_stride, errors, d, stride, width, out, at, out_stride
):
    """Write `rows` consecutive rows of the mean gradient, `width` columns, to out[at :].

    The first row's factors begin at `x`, those of the next block of samples `step` later; the errors of sample m begin
    at `d` + m·`stride`; the bits of active[mark + g·`group_stride` + k] are the blocks of group g active in row k. What
    a row's last vector writes beyond its end is overwritten by the row after it.
    """
    if ONE_BLOCK:
        for k in range(rows):
            for j in range(0, width, 16):
                total = sum_block(zeros(16), factors, x + k * LEAVES, errors, d + j, stride)
                store(out, at + k * out_stride + j, mean(total, tree.mu))
    else:
        j = padded(width)
        if j % 32:
            j -= 16
            gradient_columns(
                zeros(16), tree, factors, x, step, rows, active, mark, group_stride, errors, d + j, stride, out, at + j,
                out_stride,
            )  # fmt: skip
        if j % 64:
            j -= 32
            gradient_columns(
                zeros(32), tree, factors, x, step, rows, active, mark, group_stride, errors, d + j, stride, out, at + j,
                out_stride,
            )  # fmt: skip
        while j:
            j -= 64
            gradient_columns(
                zeros(64), tree, factors, x, step, rows, active, mark, group_stride, errors, d + j, stride, out, at + j,
                out_stride,
            )  # fmt: skip
