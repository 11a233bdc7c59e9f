"""Kernels of dropout: which elements stay is drawn once, by blocks of four random words (fredsim.numerics.ops.draws).

What is drawn is kept as floats: s where an element stays, which is at least 1, and +0 where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.jit.kernel import Kernel, kernel, with_functions
from fredsim.jit.philox import BLOCKS, store_kept
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import store, zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.pointwise import OF_TWO, combine_rows, combined
from fredsim.kernels.ops.program import BATCH, CLIENT, NUMBER, SEED, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.draws import blocks_of
from fredsim.numerics.rules import where
from fredsim.numerics.streams import Stream

__all__ = ["DropoutKernels", "draw_weights", "drawing", "scaled_or_zero"]

ZERO = np.int64(0)
STREAM = np.int64(Stream.DROPOUT)
ELEMENTS = 4 * BLOCKS  # that are drawn together

#: Of all that draw: which drawing operator of the network it is; that a word w drops if w >> 8 is below `threshold`;
#: s; and room for ELEMENTS numbers for each thread.
DRAWING = {
    "batch": int64s, "place": int, "threshold": int, "scale": floats, "room": floats, "samples": int, "out": floats,
}  # fmt: skip


def drawing(plan: Steps, p: float, place: int) -> dict[str, Any]:
    """Return the first arguments of the kernels that draw, for dropout with a share p."""
    scale = np.array([1 / (1 - p)], np.float32)
    return {
        "batch": BATCH, "place": place, "threshold": math.ceil(p * 2**24), "scale": scale,
        "room": plan.buffer(ELEMENTS * plan.threads), "samples": plan.mu,
    }  # fmt: skip


@subroutine(forceinline=True)
def scaled_or_zero(x, stays):
    """Return x·s where it stays, else +0."""
    return where(stays > 0.0, x * stays, zeros(16))


@subroutine(forceinline=True)
def drop_of(x, stays, numbers):
    """Return x·s where it stays, else +0."""
    return scaled_or_zero(x, stays)


@subroutine
def keep(a, block, out, index):
    """Write what 16 blocks of this gradient say of 64 elements."""
    batch = a.batch
    number = item(batch, NUMBER)
    if number >= 0:
        store_kept(
            out, index, block, number, item(batch, CLIENT), a.place, item(batch, SEED), STREAM, a.threshold,
            item(a.scale, 0),
        )  # fmt: skip
    else:
        for i in range(0, ELEMENTS, 16):
            store(out, index + i, zeros(16) + np.float32(1.0))


@kernel(**DRAWING, size=int, blocks=int, channels=int, rows=int, columns=int, sample=int, row=int)
def draw_stays(rank, size, barrier, a):
    """Draw for a value (samples, channels, rows, columns), of which a plain one has one channel and one row.

    Element (i, c, y, x) is i·sample + y·row + channels·x + c floats behind the first.
    """
    room, plane = shift(a.room, rank * ELEMENTS), a.rows * a.columns
    parts = (a.size + ELEMENTS - 1) // ELEMENTS
    begin, end = part_of(rank, size, a.samples * parts)
    for t in range(begin, end):
        m, first = t // parts, t % parts * ELEMENTS
        out, block, left = shift(a.out, m * a.sample), m * a.blocks + first // 4, min(ELEMENTS, a.size - first)
        if a.channels == 1 and a.rows == 1 and left == ELEMENTS:
            keep(a, block, out, first)
            continue
        keep(a, block, room, ZERO)
        c, y, x = first // plane, first % plane // a.columns, first % a.columns
        for i in range(left):
            put(out, y * a.row + x * a.channels + c, item(room, i))
            x += 1
            if x == a.columns:
                x, y = ZERO, y + 1
                if y == a.rows:
                    y, c = ZERO, c + 1


@kernel(**DRAWING, heads=int, queries=int, keys=int, padded=int, causal=int)
def draw_weights(rank, size, barrier, a):
    """Draw for weights (samples, heads, queries, keys), kept as (samples, heads, keys, padded queries).

    If they are causal, those after the query's own position need not be written.
    """
    room, head = shift(a.room, rank * ELEMENTS), a.queries * a.keys
    blocks = (a.heads * head + 3) // 4
    begin, end = part_of(rank, size, a.samples * a.heads)
    for task in range(begin, end):
        m, h = task // a.heads, task % a.heads
        out = shift(a.out, task * a.keys * a.padded)
        for block in range(h * head // 4, ((h + 1) * head + 3) // 4, BLOCKS):
            first = 4 * block - h * head
            at, last = max(ZERO, -first), min(ZERO + ELEMENTS, head - first)
            i, j = (first + at) // a.keys, (first + at) % a.keys
            if a.causal and j > i and j + ELEMENTS <= a.keys:
                continue
            keep(a, m * blocks + block, room, ZERO)
            while at < last:
                put(out, j * a.padded + i, item(room, at))
                at, j = at + 1, j + 1
                if j == a.keys:
                    i, j = i + 1, ZERO


drop_rows = Kernel(with_functions(combine_rows, function=drop_of), OF_TWO)


class DropoutKernels(OperatorKernels):
    """fredsim.numerics.ops.dropout.Dropout."""

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep what is drawn; while evaluating, the input stands for the output."""
        self._stays: Value | None = None
        if not (self.operator.draws and plan.learn):
            return inputs[0]
        self._stays = stays = out.like(halo=0)
        channels, rows, columns = stays.shape if stays.image else (1, 1, stays.size)
        plan.step(
            draw_stays, **drawing(plan, self.operator.p, self.draws), out=stays, size=stays.size,
            blocks=blocks_of(stays.size), channels=channels, rows=rows, columns=columns, sample=stays.sample,
            row=stays.row if stays.image else stays.size,
        )  # fmt: skip
        return combined(plan, drop_rows, inputs[0], stays, out)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        if self._stays is None:
            return [error]
        return [combined(plan, drop_rows, error, self._stays, self.inputs[0].error())]
