"""Rows of a weight gradient: tree sums over the minibatch, formed from whole blocks of samples.

The activations that enter a layer stand input by input, in blocks of LEAVES samples: factors[(block · rows + k) ·
LEAVES + i] is input k of sample block · LEAVES + i, the row after the last input being the bias's, all 1. A block is
summed in registers as the subtree that it is. A zero in it, or a sample beyond the minibatch, gives a zero product,
and adding that leaves its partner as it is; blocks without any activation are passed over.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from importlib import import_module
from types import ModuleType

import numpy as np
from numba import njit

from fredsim.kernels.cache import generated
from fredsim.kernels.dense import padded
from fredsim.kernels.vector import item, load, store, zeros

__all__ = ["ABSENT", "LEAVES", "finish_lists", "gradient_rows", "lay_out", "list_blocks", "specialised"]

LEAVES = 8  # samples of a block: 1, 4 or 8
ABSENT = np.int64(2**62)  # what the last block of a tree meets instead of a neighbour: above every real height


@njit(error_model="numpy")
def scatter(column, value, start, stop, factors, at, active, mark, sample):
    """Put one sample's non-zero inputs into its block, which begins at `at`, and mark them at active[mark + k]."""
    for t in range(start, stop):
        k = item(column, t)
        factors[at + k * LEAVES + sample] = item(value, t)
        active[mark + k] = 1


@njit(error_model="numpy")
def lay_out(first, column, value, rows, block, inputs, factors, active, task):
    """Put the inputs of one block of a minibatch in place number `task`."""
    step = (inputs + 1) * LEAVES
    at, mark = task * step, task * (inputs + 1)
    factors[at : at + step] = np.float32(0.0)
    active[mark : mark + inputs] = 0
    active[mark + inputs] = 1
    for m in range(block * LEAVES, min((block + 1) * LEAVES, len(rows))):
        sample = m - block * LEAVES
        scatter(column, value, first[rows[m]], first[rows[m] + 1], factors, at, active, mark, sample)
        factors[at + inputs * LEAVES + sample] = np.float32(1.0)


@njit(error_model="numpy")
def list_blocks(active, mark, rows, blocks, k, at, found, merges, open_blocks):
    """List the active blocks of row k from `at` on, and how many open nodes each closes; return the end.

    A node stays open until the next block would meet it higher up than its left neighbour does. Two blocks meet at the
    height of the highest bit in which their numbers differ; of two such heights that are compared here, the exclusive
    ors can be compared themselves.
    """
    end = at
    for b in range(blocks):
        found[end] = b
        end += item(active, mark + b * rows + k)
    finish_lists(found, at, end, merges, open_blocks)
    return end


@njit(error_model="numpy")
def finish_lists(found, at, end, merges, open_blocks):
    """Find how many open nodes each of the blocks found[at : end] closes."""
    depth = 0
    for i in range(at, end):
        here = item(found, i)
        following = here ^ item(found, i + 1) if i + 1 < end else ABSENT
        closed = 0
        while depth > 0 and item(open_blocks, depth - 1) ^ here < following:
            depth -= 1
            closed += 1
        merges[i] = closed
        open_blocks[depth] = here
        depth += 1


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
def sum_row(like, factors, x, step, errors, d, stride, found, merges, begin, end, nodes):
    """Return the tree sum of one row over the listed blocks, which lie `step` factors apart; +0 is added at the end."""
    total = like
    depth = 0
    for i in range(begin, end):
        if i > begin:  # the node before is left open: park it
            store(nodes, depth * 64, total)
            depth += 1
        b = item(found, i)
        total = sum_block(like, factors, x + b * step, errors, d + b * LEAVES * stride, stride)
        for _ in range(item(merges, i)):
            depth -= 1
            total = load(like, nodes, depth * 64) + total
    return total + 0.0


@njit(error_model="numpy")
def columns(like, factors, x, step, rows, lists, found, merges, errors, d, stride, mu, nodes, out, at, out_stride):
    """Write some columns of the mean gradient, as many as `like` has lanes, of consecutive rows to out[at :]."""
    for k in range(rows):
        begin, end = item(lists, k), item(lists, k + 1)
        total = sum_row(like, factors, x + k * LEAVES, step, errors, d, stride, found, merges, begin, end, nodes)
        if mu & (mu - 1):
            total = total / np.float32(mu)
        elif mu > 1:
            total = total * (np.float32(1.0) / np.float32(mu))  # exact
        store(out, at + k * out_stride, total)


@njit(error_model="numpy")
def gradient_rows(
    factors, x, step, rows, lists, found, merges, errors, d, stride, width, mu, nodes, out, at, out_stride
):
    """Write `rows` consecutive rows of the mean gradient, `width` columns, to out[at :].

    The factors of the first begin at `x`, the errors of sample m at `d` + m·`stride`; row k's blocks are listed between
    lists[k] and lists[k + 1]. Columns go from the last to the first, so that what a row's last vector writes beyond its
    end is overwritten by the row after it.
    """
    j = padded(width)
    while j % 64:
        j -= 16
        columns(
            zeros(16), factors, x, step, rows, lists, found, merges, errors, d + j, stride, mu, nodes, out, at + j,
            out_stride,
        )  # fmt: skip
    while j:
        j -= 64
        columns(
            zeros(64), factors, x, step, rows, lists, found, merges, errors, d + j, stride, mu, nodes, out, at + j,
            out_stride,
        )  # fmt: skip


@cache
def specialised(name: str, mu: int) -> ModuleType:
    """Return the module fredsim.kernels.`name`, which imports this one, for minibatches of µ samples."""
    leaves = 1 if mu == 1 else 4 if mu <= 4 else 8
    here = inspect.getsource(sys.modules[__name__]).replace("LEAVES = 8 ", f"LEAVES = {leaves} ")
    trees = generated(here, f"trees of blocks of {leaves}")
    source = inspect.getsource(import_module(f"fredsim.kernels.{name}")).replace(__name__, trees.__name__)
    return generated(source, f"{name} with blocks of {leaves}")
