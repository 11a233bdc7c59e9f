"""Rows of a weight gradient: tree sums over the minibatch, formed from whole blocks of samples.

The activations that enter a layer stand input by input, in blocks of LEAVES samples: factors[(block · rows + k) ·
LEAVES + i] is input k of sample block · LEAVES + i, the row after the last input being the bias's, all 1. A block is
summed in registers as the subtree that it is. A zero in it, or a sample beyond the minibatch, gives a zero product,
and adding that leaves its partner as it is. Blocks without any activation are passed over while their errors are
finite: a product of zero with any other number must be formed, since it is NaN.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fredsim.jit import kernel
from fredsim.jit.pointers import item, put
from fredsim.jit.vector import all_equal_itself, load, store, zeros
from fredsim.kernels.dense import ZERO, padded
from fredsim.kernels.shape import GROUP, leaves_of
from fredsim.numerics.rules import where

__all__ = [
    "LEAVES",
    "Tree",
    "activate",
    "blocks_of",
    "errors_finite",
    "gradient_rows",
    "lay_out",
    "specialised",
    "stretch",
    "upper_layers",
]

LEAVES = 8  # samples of a block: see `leaves_of`
ONE_BLOCK = False  # whether the minibatch is a single block


class Tree(NamedTuple):
    """What sums over a minibatch of µ need: TABLES (fredsim.kernels.shape), and where open nodes are parked."""

    mu: int
    tables: Any
    nodes: Any


@cache
def specialised(name: str, mu: int) -> ModuleType:
    """Return the module fredsim.kernels.`name`, which imports this one, for minibatches of µ samples."""
    parts = [__name__, "fredsim.kernels.window", f"fredsim.kernels.{name}"]
    return kernel.specialised(parts, LEAVES=leaves_of(mu), ONE_BLOCK=mu <= 8)


@njit
def blocks_of(mu):
    """Return how many blocks the samples of a minibatch make, and how many groups these."""
    blocks = (mu + LEAVES - 1) // LEAVES
    return blocks, (blocks + GROUP - 1) // GROUP


@njit(error_model="numpy")
def lay_out(data, samples, mu, group, inputs, factors, at, active, mark):
    """Lay out the inputs of one group of blocks of the minibatch samples[: µ], which itself begins at factors[at].

    Which blocks of the group are active in row k is told by the bits of active[mark + group · rows + k].
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
    sound = zeros(16)
    for m in range(samples):
        for j in range(0, width, 16):
            sound = sound + load(sound, errors, d + m * stride + j) * 0.0
    return all_equal_itself(sound)


@njit(error_model="numpy")
def activate(active, mark, rows):
    """Make every block of a group, whose bits begin at `mark`, active in every row, as it is in that of the bias."""
    for k in range(rows - 1):
        put(active, mark + k, item(active, mark + rows - 1))


@njit(error_model="numpy")
def enter(z, at, long, width, samples, activations, keep):
    """Rectify a block's z, `long` apart from sample to sample, and lay them out as what enters the next layer."""
    for i in range(samples):
        for j in range(at + i * long, at + i * long + padded(width), 16):
            x = load(zeros(16), z, j)
            store(z, j, where(x > 0.0, x, 0.0))
        for k in range(width):
            put(activations, keep + k * LEAVES + i, item(z, at + i * long + k))
        put(activations, keep + width * LEAVES + i, np.float32(1.0))


@njit(error_model="numpy")
def leave(like, factors, x, rows, weights, base, stride, out, at, long):
    """Write some columns of z of a block's samples: the sums over rows, the bias last, ascending from +0."""
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
        store(out, at + long, s1)
        store(out, at + 2 * long, s2)
        store(out, at + 3 * long, s3)
    if LEAVES > 4:
        store(out, at + 4 * long, s4)
        store(out, at + 5 * long, s5)
        store(out, at + 6 * long, s6)
        store(out, at + 7 * long, s7)


@njit(error_model="numpy")
def upper_layers(net, weights, z, long, samples, activations, b):
    """Run block b's samples through the layers above the first, whose z, bias added, stand at the start of z.

    A sample's activations, `long` floats, are those of all layers, each padded. What enters layer l is also laid out in
    blocks from activations[inside[l − 1]] on.
    """
    at = ZERO
    for layer in range(1, net.layers):
        inputs, width = item(net.sizes, layer), item(net.sizes, layer + 1)
        keep = item(net.inside, layer - 1) + b * (inputs + 1) * LEAVES
        enter(z, at, long, inputs, samples, activations, keep)
        at += padded(inputs)
        base, stride = item(net.offsets, layer), item(net.strides, layer)
        for j in range(0, width, 16):
            leave(zeros(16), activations, keep, inputs + 1, weights, base + j, stride, z, at + j, long)


@njit(error_model="numpy")
def stretch(active, mark, rows, groups, k, end):
    """Return the end of the stretch of rows from k on that all have a gradient, or none, and which."""
    quiet = no_block(active, mark + k, rows, groups)
    while k < end and no_block(active, mark + k, rows, groups) == quiet:
        k += 1
    return k, quiet


@njit(error_model="numpy")
def no_block(active, at, rows, groups):
    """Return whether no group has an active block in a row."""
    bits = item(active, at)
    for g in range(1, groups):
        bits |= item(active, at + g * rows)
    return bits == 0


@njit(error_model="numpy")
def sum_block(like, factors, x, errors, d, stride):
    """Return the sum of one block's leaves by the tree."""
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
    """Return the sum of a group of blocks by the tree; open nodes are parked from `depth` on."""
    total = like
    begin = np.int64(bits) * GROUP
    for i in range(begin, begin + item(tree.tables.counts, bits)):
        if i > begin:  # the node before is left open
            store(tree.nodes, depth * 64, total)
            depth += 1
        b = np.int64(item(tree.tables.found, i))
        total = sum_block(like, factors, x + b * step, errors, d + b * LEAVES * stride, stride)
        for _ in range(item(tree.tables.closes, i)):
            depth -= 1
            total = load(like, tree.nodes, depth * 64) + total
    return total


@njit(error_model="numpy")
def columns(like, tree, factors, x, step, rows, active, mark, apart, errors, d, stride, out, at, out_stride):
    """Write some columns of the mean gradient, as many as `like` has lanes, of consecutive rows to out[at :]."""
    groups = (tree.mu + GROUP * LEAVES - 1) // (GROUP * LEAVES)
    for k in range(rows):
        total = like
        depth = ZERO
        for g in range(groups):
            if g > 0:
                store(tree.nodes, depth * 64, total)
                depth += 1
            bits = item(active, mark + g * apart + k)
            place, error = x + g * GROUP * step + k * LEAVES, d + g * GROUP * LEAVES * stride
            total = sum_group(like, tree, factors, place, step, errors, error, stride, bits, depth)
            meets = g if g < groups - 1 else -1  # the last closes all that is open
            while depth > 0 and meets & 1:
                depth -= 1
                total = load(like, tree.nodes, depth * 64) + total
                meets >>= 1
        store(out, at + k * out_stride, mean(total, tree.mu))


@njit(error_model="numpy")
def gradient_rows(tree, factors, x, step, rows, active, mark, apart, errors, d, stride, width, out, at, out_stride):
    """Write `rows` consecutive rows of the mean gradient, `width` columns, to out[at :].

    The factors of the first begin at `x`, those of the next block of samples `step` later, the errors of sample m at
    `d` + m·`stride`; the active blocks of group g in row k are the bits of active[mark + g·`apart` + k]. What a row's
    last vector writes beyond its end is overwritten by the row after it.
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
            columns(
                zeros(16), tree, factors, x, step, rows, active, mark, apart, errors, d + j, stride, out, at + j,
                out_stride,
            )  # fmt: skip
        if j % 64:
            j -= 32
            columns(
                zeros(32), tree, factors, x, step, rows, active, mark, apart, errors, d + j, stride, out, at + j,
                out_stride,
            )  # fmt: skip
        while j:
            j -= 64
            columns(
                zeros(64), tree, factors, x, step, rows, active, mark, apart, errors, d + j, stride, out, at + j,
                out_stride,
            )  # fmt: skip
