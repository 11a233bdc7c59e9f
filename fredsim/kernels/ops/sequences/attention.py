"""Kernels of attention: fredsim.numerics.ops.attention.Attention, one head of one sample after the other.

Scores and weights are kept transposed, (keys, queries), with one query in each lane of a vector: so maxima and sums
over keys are sums of vectors. A query's row is padded to whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.compute.buffers import Buffer
from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.tiles import tile_add_products, tile_add_products_of, tile_zeros
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.arrays.functions import exp_vector
from fredsim.kernels.ops.dropout import draw_weights, drawing, scaled_or_zero
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sequences.products import PANEL, TILE_ROWS, multiply, pack_columns, put_tile
from fredsim.kernels.ops.values import Value
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.rules import where

__all__ = ["ALL", "AttentionKernels", "combine"]

ZERO, ONE = np.int64(0), np.int64(1)
EVERYTHING = 2.0**24  # a query that sees as many keys as there can be
LANES = np.arange(16, dtype=np.float32)
#: Which terms a row's sum has: all, those up to the row's own number, or those from it on.
ALL, UP_TO, FROM = 0, 1, 2

#: Heads of samples: q (queries, width), k (keys, width), v (keys, values), and `out` like q with values; each with
#: where it begins, and how many floats samples, heads and rows are apart. `weights` are p of all heads, (keys, padded
#: queries) each. If `masked`, `seen`, of that shape, has 1 where a query sees a key; else queries see all keys, or, if
#: `causal`, those up to their own place. Backwards, `out` is the error, and dq, dk and dv get those of q, k and v.
#: `nothing` is +0 for each column of a panel; `work` is each thread's workspace, of `work_stride` floats.
HEADS = Fields(
    samples=int, heads=int, queries=int, keys=int, width=int, values=int, causal=int, seen=floats, masked=int,
    scale=floats, lanes=floats, nothing=floats,
    q=floats, q_begin=int, q_sample=int, q_head=int, q_row=int,
    k=floats, k_begin=int, k_sample=int, k_head=int, k_row=int,
    v=floats, v_begin=int, v_sample=int, v_head=int, v_row=int, out=floats, out_sample=int, out_head=int, out_row=int,
    dq=floats, dk=floats, dv=floats, weights=floats, drops=int, stays=floats, work=floats, work_stride=int,
)  # fmt: skip


@subroutine
def seen_by(a, j, first):
    """Return the mask of the 16 queries from `first` on that see key j."""
    if a.masked:
        return load(zeros(16), a.seen, j * padded_queries(a) + first) > 0.0
    place = np.float32(first) if a.causal else np.float32(EVERYTHING)
    return load(zeros(16), a.lanes, 0) + place >= np.float32(j)


@subroutine
def padded_queries(a):
    """Return how many floats a key's weights take."""
    return (a.queries + 15) // 16 * 16


@subroutine
def keys_of(a, first):
    """Return the end of the keys that any of 16 queries sees."""
    return min(a.keys, first + 16) if a.causal and not a.masked else a.keys


@subroutine
def weigh(a, weights, first):
    """Turn the products q·k of 16 queries, from `first` on, into weights p."""
    stride, end, scale = padded_queries(a), keys_of(a, first), item(a.scale, 0)
    best = zeros(16)
    for j in range(end):
        score = where(seen_by(a, j, first), load(best, weights, j * stride + first) * scale, -np.inf)
        store(weights, j * stride + first, score)
        best = score if j == 0 else where(score > best, score, best)
    total = zeros(16)
    for j in range(end):
        part = exp_vector(load(best, weights, j * stride + first) - best)
        part = where(seen_by(a, j, first), part, 0.0)
        store(weights, j * stride + first, part)
        total = total + part
    for j in range(end):
        p = load(best, weights, j * stride + first) / total
        store(weights, j * stride + first, where(seen_by(a, j, first), p, 0.0))


@subroutine
def differentiate(a, weights, errors, first):
    """Turn the errors e of the weights of 16 queries, from `first` on, into those of the products q·k."""
    stride, end, scale = padded_queries(a), keys_of(a, first), item(a.scale, 0)
    mean = zeros(16)
    for j in range(end):
        at = j * stride + first
        added = mean + load(mean, weights, at) * load(mean, errors, at)
        mean = where(seen_by(a, j, first), added, mean)
    for j in range(end):
        at = j * stride + first
        t = (load(mean, weights, at) * (load(mean, errors, at) - mean)) * scale
        store(errors, at, where(seen_by(a, j, first), t, 0.0))


@subroutine
def products_by_query(a, rows, row_stride, depth, panels, out):
    """Write rows[j]·x[i] to out[j, i], for x in panels of 16 queries, where any of the 16 sees key j."""
    for first in range(0, a.queries, PANEL):
        multiply(
            rows, ZERO, row_stride, keys_of(a, first), depth, shift(panels, first * depth), PANEL, a.nothing, ZERO, out,
            first, padded_queries(a),
        )  # fmt: skip


@subroutine(forceinline=True)
def combine_tile(like, height, terms, factors, row_step, step, depth, row, values, at, value_stride):
    """Return the sums of `height` rows of a panel; see combine."""
    total = like
    begin, end = ZERO, depth
    if terms == FROM:
        begin = min(row + height - 1, depth)
        for k in range(min(row, depth), begin):
            place = row * row_step + k * step
            total = tile_add_products_of(
                total, factors, place, row_step, values, at + k * value_stride, ZERO, k - row + 1
            )
    if terms == UP_TO:
        end = min(row + 1, depth)
    for k in range(begin, end):
        total = tile_add_products(total, factors, row * row_step + k * step, row_step, values, at + k * value_stride)
    if terms == UP_TO:
        for k in range(end, min(row + height, depth)):
            place = row * row_step + k * step
            total = tile_add_products_of(
                total, factors, place, row_step, values, at + k * value_stride, k - row, height
            )
    return total


@subroutine
def combine(terms, factors, row_step, step, rows, depth, values, value_stride, columns, out, out_stride):
    """Write out[r, c] = Σ_k factors[r·row_step + k·step]·values[k, c], k ascending from +0, over a row's `terms`."""
    for column in range(0, columns, PANEL):
        left = columns - column
        row = ZERO
        while row + TILE_ROWS <= rows:
            like, height = tile_zeros(TILE_ROWS, 16), ZERO + TILE_ROWS
            total = combine_tile(like, height, terms, factors, row_step, step, depth, row, values, column, value_stride)
            put_tile(out, row * out_stride + column, out_stride, total, left, PANEL)
            row += TILE_ROWS
        while row < rows:
            total = combine_tile(
                tile_zeros(1, 16), ONE, terms, factors, row_step, step, depth, row, values, column, value_stride
            )
            put_tile(out, row * out_stride + column, out_stride, total, left, PANEL)
            row += 1


@subroutine
def combine_seen(a, factors, row_step, step, rows, depth, values, value_stride, columns, out, out_stride):
    """Do what combine does, over the terms that the pattern of the mask lets be."""
    for row in range(rows):
        for column in range(0, columns, PANEL):
            total = tile_zeros(1, 16)
            for k in range(depth):
                place = row * row_step + k * step
                if item(a.seen, place) > 0.0:
                    total = tile_add_products(total, factors, place, ONE, values, k * value_stride + column)
            put_tile(out, row * out_stride + column, out_stride, total, columns - column, PANEL)


@subroutine
def over_keys(a, weights, values, value_stride, columns, out, out_stride):
    """Write out[i] = Σ_j weights[j, i]·values[j], over the keys that query i sees."""
    stride, terms = padded_queries(a), ZERO + (UP_TO if a.causal else ALL)
    if a.masked:
        combine_seen(a, weights, ONE, stride, a.queries, a.keys, values, value_stride, columns, out, out_stride)
    else:
        combine(terms, weights, ONE, stride, a.queries, a.keys, values, value_stride, columns, out, out_stride)


@subroutine
def over_queries(a, weights, values, value_stride, columns, out, out_stride):
    """Write out[j] = Σ_i weights[j, i]·values[i], over the queries that see key j."""
    stride, terms = padded_queries(a), ZERO + (FROM if a.causal else ALL)
    if a.masked:
        combine_seen(a, weights, stride, ONE, a.keys, a.queries, values, value_stride, columns, out, out_stride)
    else:
        combine(terms, weights, stride, ONE, a.keys, a.queries, values, value_stride, columns, out, out_stride)


@subroutine
def drop(weights, stays, count, out):
    """Write what dropout leaves of `count` weights, a multiple of 16."""
    for k in range(0, count, 16):
        store(out, k, scaled_or_zero(load(zeros(16), weights, k), load(zeros(16), stays, k)))


@kernel(HEADS)
def attend(rank, size, barrier, a):
    """Write the weights and outputs of this thread's heads."""
    panels, stride = shift(a.work, rank * a.work_stride), padded_queries(a)
    begin, end = part_of(rank, size, a.samples * a.heads)
    for task in range(begin, end):
        m, head = task // a.heads, task % a.heads
        weights = shift(a.weights, task * a.keys * stride)
        q_at, k_at = a.q_begin + m * a.q_sample + head * a.q_head, a.k_begin + m * a.k_sample + head * a.k_head
        v_at, out = a.v_begin + m * a.v_sample + head * a.v_head, shift(a.out, m * a.out_sample + head * a.out_head)
        pack_columns(ZERO, ONE, shift(a.q, q_at), a.width, a.queries, a.q_row, panels)
        products_by_query(a, shift(a.k, k_at), a.k_row, a.width, panels, weights)
        for first in range(0, a.queries, 16):
            weigh(a, weights, first)
        if a.drops:
            left = shift(panels, max(a.width, a.values) * stride)
            drop(weights, shift(a.stays, task * a.keys * stride), a.keys * stride, left)
            weights = left
        over_keys(a, weights, shift(a.v, v_at), a.v_row, a.values, out, a.out_row)


@kernel(HEADS)
def attend_backward(rank, size, barrier, a):
    """Write dq, dk and dv of this thread's heads, given the error in `out`."""
    panels, stride = shift(a.work, rank * a.work_stride), padded_queries(a)
    errors = shift(panels, max(a.width, a.values) * stride)
    begin, end = part_of(rank, size, a.samples * a.heads)
    for task in range(begin, end):
        m, head = task // a.heads, task % a.heads
        weights = shift(a.weights, task * a.keys * stride)
        q_at, k_at = a.q_begin + m * a.q_sample + head * a.q_head, a.k_begin + m * a.k_sample + head * a.k_head
        v_at, given = a.v_begin + m * a.v_sample + head * a.v_head, shift(a.out, m * a.out_sample + head * a.out_head)
        pack_columns(ZERO, ONE, given, a.values, a.queries, a.out_row, panels)
        products_by_query(a, shift(a.v, v_at), a.v_row, a.values, panels, errors)
        if a.drops:
            drop(errors, shift(a.stays, task * a.keys * stride), a.keys * stride, errors)
        for first in range(0, a.queries, 16):
            differentiate(a, weights, errors, first)
        if a.drops:
            drop(weights, shift(a.stays, task * a.keys * stride), a.keys * stride, weights)
        over_keys(a, errors, shift(a.k, k_at), a.k_row, a.width, shift(a.dq, q_at), a.q_row)
        over_queries(a, errors, shift(a.q, q_at), a.q_row, a.width, shift(a.dk, k_at), a.k_row)
        over_queries(a, weights, given, a.out_row, a.values, shift(a.dv, v_at), a.v_row)


class AttentionKernels(OperatorKernels):
    """Attention of plain values."""

    image = False

    def _sizes(self) -> tuple[int, int, int, int, int]:
        """Return the numbers of heads, queries, keys, elements of a key, and elements of a value."""
        q, k, v = self.shapes
        return math.prod(q[:-2]), q[-2], k[-2], q[-1], v[-1]

    def _strides(self) -> dict[str, int]:
        """Return where q, k and v begin, and how many floats samples, heads and rows are apart."""
        heads, queries, keys, width, values = self._sizes()
        each = {"q": (queries, width), "k": (keys, width), "v": (keys, values), "out": (queries, values)}
        strides = dict.fromkeys(("q_begin", "k_begin", "v_begin"), 0)
        for name, (rows, row) in each.items():
            strides |= {f"{name}_sample": heads * rows * row, f"{name}_head": rows * row, f"{name}_row": row}
        return strides

    def _fields(self, plan: Steps) -> dict[str, Any]:
        heads, queries, keys, width, values = self._sizes()
        op, padded = self.operator, -(-queries // 16) * 16
        seen = np.zeros((keys, padded), np.float32)
        if op.masked is not None:
            pattern = ~np.array(op.masked)
            seen[:, :queries] = (pattern & np.tri(queries, keys, dtype=bool) if op.causal else pattern).T
        work, work_stride = plan.each_thread((max(width, values) + keys) * padded + MARGIN)
        scale = 1 / math.sqrt(width) if op.scale is None else op.scale
        return {
            "samples": plan.mu, "heads": heads, "queries": queries, "keys": keys, "width": width, "values": values,
            "causal": op.causal, "seen": seen, "masked": op.masked is not None, "scale": np.array([scale], np.float32),
            "lanes": LANES, "nothing": np.zeros(PANEL, np.float32), **self._strides(),
            "work": work, "work_stride": work_stride,
        }  # fmt: skip

    def _parts(self, value: Sequence[Value]) -> dict[str, Value]:
        return dict(zip(("q", "k", "v"), value, strict=True))

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the weights."""
        heads, queries, keys, _, _ = self._sizes()
        self._weights: Buffer = plan.buffer(plan.mu * heads * keys * -(-queries // 16) * 16)
        self._dropped: dict[str, Any] = {"drops": False, "stays": 0}
        if self.operator.draws and plan.learn:
            self._dropped = {"drops": True, "stays": self._draw(plan)}
        nothing = {"dq": 0, "dk": 0, "dv": 0, **self._dropped}
        plan.step(attend, **self._fields(plan), **self._parts(inputs), out=out, **nothing, weights=self._weights)
        return out

    def _draw(self, plan: Steps) -> Buffer:
        """Add the step that draws which weights stay; return where it writes that, in the order of the weights."""
        heads, queries, keys, _, _ = self._sizes()
        padded = -(-queries // 16) * 16
        stays = plan.buffer(plan.mu * heads * keys * padded)
        plan.step(
            draw_weights, **drawing(plan, self.operator.dropout, self.draws), heads=heads, queries=queries,
            keys=keys, padded=padded, causal=self.operator.causal, out=stays,
        )  # fmt: skip
        return stays

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = [value.error() for value in self.inputs]
        fields = self._fields(plan) | self._parts(self.inputs)
        fields |= {f"d{name}": value for name, value in self._parts(sent).items()}
        plan.step(attend_backward, **fields, out=error, weights=self._weights, **self._dropped)
        return [value if wants else None for value, wants in zip(sent, wanted, strict=True)]
