"""Kernels of dropout: which elements stay is drawn once, by blocks of four random words (fredsim.numerics.ops.draws).

What is drawn is kept as floats: s where an element stays, which is at least 1, and +0 where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.jit.kernel import Kernel, kernel, with_functions
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import zeros
from fredsim.kernels.arrays.streams import philox
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.pointwise import OF_TWO, combine_rows, combined
from fredsim.kernels.ops.program import BATCH, CLIENT, NUMBER, SEED, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.draws import blocks_of
from fredsim.numerics.rules import where
from fredsim.numerics.streams import Stream

__all__ = ["DropoutKernels", "draw_weights", "drawing", "scaled_or_zero"]

EIGHT = np.uint64(8)
STREAM = np.uint64(Stream.DROPOUT)

#: Of all that draw: which drawing operator of the network it is; that a word w drops if w >> 8 is below `threshold`;
#: and s.
DRAWING = {"batch": int64s, "place": int, "threshold": int, "scale": floats, "samples": int, "out": floats}


def drawing(p: float, place: int) -> dict[str, Any]:
    """Return the first arguments of the kernels that draw, for dropout with a share p."""
    scale = np.array([1 / (1 - p)], np.float32)
    return {"batch": BATCH, "place": place, "threshold": math.ceil(p * 2**24), "scale": scale}


@subroutine(forceinline=True)
def scaled_or_zero(x, stays):
    """Return x·s where it stays, else +0."""
    return where(stays > 0.0, x * stays, zeros(16))


@subroutine(forceinline=True)
def stay(word, threshold, scale):
    """Return s if a word lets its element stay, else +0."""
    return scale if word >> EIGHT >= threshold else np.float32(0.0)


@subroutine(forceinline=True)
def four(a, block):
    """Return what block number `block` of this gradient says of four elements."""
    scale, threshold = item(a.scale, 0), np.uint64(a.threshold)
    w0, w1, w2, w3 = philox(
        block, item(a.batch, NUMBER), item(a.batch, CLIENT), a.place, np.uint64(item(a.batch, SEED)), STREAM
    )
    return (
        stay(w0, threshold, scale), stay(w1, threshold, scale), stay(w2, threshold, scale), stay(w3, threshold, scale)
    )  # fmt: skip


@kernel(**DRAWING, size=int, blocks=int, channels=int, rows=int, columns=int, sample=int, row=int)
def draw_stays(rank, size, barrier, a):
    """Draw for a value (samples, channels, rows, columns).

    Element (i, c, y, x) is i·sample + y·row + channels·x + c floats behind the first. A plain value has one channel and one row.
    """
    begin, end = part_of(rank, size, a.samples * a.blocks)
    draws, plane = item(a.batch, NUMBER) >= 0, a.rows * a.columns
    for t in range(begin, end):
        m, first = t // a.blocks, 4 * (t % a.blocks)
        found = four(a, t) if draws else (np.float32(1.0), np.float32(1.0), np.float32(1.0), np.float32(1.0))
        out = shift(a.out, m * a.sample)
        if a.channels == 1 and a.rows == 1 and first + 4 <= a.size:
            put(out, first, found[0])
            put(out, first + 1, found[1])
            put(out, first + 2, found[2])
            put(out, first + 3, found[3])
        else:
            for lane in range(min(4, a.size - first)):
                c, at = (first + lane) // plane, (first + lane) % plane
                value = found[0] if lane == 0 else found[1] if lane == 1 else found[2] if lane == 2 else found[3]
                put(out, at // a.columns * a.row + at % a.columns * a.channels + c, value)


@kernel(**DRAWING, heads=int, queries=int, keys=int, padded=int, causal=int)
def draw_weights(rank, size, barrier, a):
    """Draw for weights (samples, heads, queries, keys), kept as (samples, heads, keys, padded queries).

    If they are causal, those after the query's own place are left out, by whole blocks: +0.
    """
    begin, end = part_of(rank, size, a.samples * a.heads)
    draws, head = item(a.batch, NUMBER) >= 0, a.queries * a.keys
    blocks = (a.heads * head + 3) // 4
    for task in range(begin, end):
        m, h = task // a.heads, task % a.heads
        out = shift(a.out, task * a.keys * a.padded)
        for block in range(h * head // 4, ((h + 1) * head + 3) // 4):
            first = 4 * block - h * head
            i, j = first // a.keys, first % a.keys
            hidden = a.causal and j > i and j + 4 <= a.keys and first >= 0
            found = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
            if draws and not hidden:
                found = four(a, m * blocks + block)
            elif not hidden:
                found = np.float32(1.0), np.float32(1.0), np.float32(1.0), np.float32(1.0)
            for lane in range(max(0, -first), min(4, head - first)):
                i, j = (first + lane) // a.keys, (first + lane) % a.keys
                value = found[0] if lane == 0 else found[1] if lane == 1 else found[2] if lane == 2 else found[3]
                put(out, j * a.padded + i, value)


drop_rows = Kernel(with_functions(combine_rows, function=scaled_or_zero), OF_TWO)


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
            draw_stays, **drawing(self.operator.p, self.draws), samples=plan.mu, out=stays, size=stays.size,
            blocks=blocks_of(stays.size), channels=channels, rows=rows, columns=columns, sample=stays.sample,
            row=stays.row if stays.image else stays.size,
        )  # fmt: skip
        return combined(plan, drop_rows, inputs[0], stays, out)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Drop the same elements."""
        if self._stays is None:
            return [error]
        return [combined(plan, drop_rows, error, self._stays, self.inputs[0].error())]
