"""Kernels of norms over the last axis, at each position alone: LayerNorm and RmsNorm of fredsim.numerics.ops.norms.

Sixteen positions are computed together: the tree over channels adds vectors with one position in each lane.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fredsim.compute.buffers import Buffer
from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.shuffles import transpose16
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, load_part, store, store_part, zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, PARAMS, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sequences.dense_positions import sum_products
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.norms import RmsNorm
from fredsim.numerics.rules import sqrt

__all__ = ["LayerNormKernels"]

TOGETHER = 16  # positions that are computed together
LEVELS = 32  # the most levels of a tree
#: The floats of a thread's workspace beside two of TOGETHER padded rows: a block, a stack, and three vectors.
BESIDE = TOGETHER * TOGETHER + LEVELS * TOGETHER + 3 * TOGETHER

#: x (rows, channels), and what is kept of it: x̂ (rows, channels), and r (rows,), if `learn`. `gamma` and `beta` are
#: where γ and β begin among the parameters, or −1; `centred` is 0 for RmsNorm. `work` is each thread's workspace, of
#: `work_stride` floats. Backwards, `x` is the error, and `out` gets the input's error and
#: `scaled` δ·x̂.
NORM = Fields(
    batch=int64s, x=floats, rows=int, channels=int, eps=floats, gamma=int, beta=int, centred=int, learn=int,
    normal=floats, r=floats, work=floats, work_stride=int, out=floats, scaled=floats,
)  # fmt: skip


@subroutine
def tree_of_columns(block):
    """Return the sums of 16 rows of a block (16, 16), lane by lane, by the tree."""
    like = zeros(16)
    one = (load(like, block, 0) + load(like, block, 16)) + (load(like, block, 32) + load(like, block, 48))
    two = (load(like, block, 64) + load(like, block, 80)) + (load(like, block, 96) + load(like, block, 112))
    three = (load(like, block, 128) + load(like, block, 144)) + (load(like, block, 160) + load(like, block, 176))
    four = (load(like, block, 192) + load(like, block, 208)) + (load(like, block, 224) + load(like, block, 240))
    return (one + two) + (three + four)


@subroutine
def tree_of_rows(rows, width, work):
    """Return the sums, one in each lane, of 16 rows of `width` floats, whole vectors, by the tree."""
    stack, last = shift(work, TOGETHER * TOGETHER), width // 16 - 1
    total = zeros(16)
    for b in range(last + 1):
        transpose16(rows, 16 * b, width, work, np.int64(0), np.int64(TOGETHER))
        total = tree_of_columns(work)
        rest, level = b, np.int64(0)
        while rest > 0 and (b == last or rest & 1):
            if rest & 1:
                total = load(total, stack, level * TOGETHER) + total
            rest >>= 1
            level += 1
        if b < last:
            store(stack, level * TOGETHER, total)
    return total + 0.0


@subroutine
def scale_of(variance, eps):
    """Return 1/√(variance + ε)."""
    return 1.0 / sqrt(variance + eps)


@kernel(NORM)
def normalise(rank, size, barrier, a):
    """Write the norm of this thread's rows."""
    width = (a.channels + 15) // 16 * 16
    apart = shift(a.work, rank * a.work_stride)
    squares = shift(apart, TOGETHER * width)
    work = shift(squares, TOGETHER * width)
    moments = shift(work, BESIDE - 3 * TOGETHER)
    clear_beside(squares, width)
    begin, end = part_of(rank, size, (a.rows + TOGETHER - 1) // TOGETHER)
    for group in range(begin, end):
        first = group * TOGETHER
        count = min(TOGETHER, a.rows - first)
        x = shift(a.x, first * a.channels)
        if a.centred:
            for i in range(count):
                copy_padded(x, i * a.channels, a.channels, apart, i * width)
            store(moments, 0, tree_of_rows(apart, width, work) / a.channels)
        else:
            store(moments, 0, zeros(16))
        for i in range(count):
            take_apart(x, i * a.channels, a.channels, item(moments, i), a.centred, apart, squares, i * width)
        store(moments, 16, scale_of(tree_of_rows(squares, width, work) / a.channels, item(a.eps, 0)))
        for i in range(count):
            finish_row(a, apart, i * width, item(moments, 16 + i), (first + i) * a.channels)
            if a.learn:
                store_part(a.r, first + i, zeros(16) + item(moments, 16 + i), 1)


@subroutine
def clear_beside(rows, width):
    """Write +0 to the last vector of each of 16 rows, of which only the channels are written later."""
    for i in range(TOGETHER):
        store(rows, i * width + width - 16, zeros(16))


@subroutine
def copy_padded(x, at, channels, out, to):
    """Copy a row, with +0 behind it up to a whole vector."""
    for c in range(0, channels, 16):
        store(out, to + c, load_part(zeros(16), x, at + c, channels - c))


@subroutine
def take_apart(x, at, channels, mean, centred, apart, squares, to):
    """Write x − mean, or x, of a row, and its squares, behind which nothing is written."""
    for c in range(0, channels, 16):
        value = load_part(zeros(16), x, at + c, channels - c)
        if centred:
            value = value - mean
        store(apart, to + c, value)
        store_part(squares, to + c, value * value, channels - c)


@subroutine
def finish_row(a, apart, at, r, to):
    """Write x̂·γ + β of a row, and x̂."""
    params = floats(item(a.batch, PARAMS))
    for c in range(0, a.channels, 16):
        normal, left = load(zeros(16), apart, at + c) * r, a.channels - c
        y = normal
        if a.gamma >= 0:
            y = y * load(y, params, a.gamma + c)
        if a.beta >= 0:
            y = y + load(y, params, a.beta + c)
        store_part(a.out, to + c, y, left)
        if a.learn:
            store_part(a.normal, to + c, normal, left)


@kernel(NORM)
def normalise_backward(rank, size, barrier, a):
    """Write the input's error, and δ·x̂, of this thread's rows."""
    width = (a.channels + 15) // 16 * 16
    d = shift(a.work, rank * a.work_stride)
    products = shift(d, TOGETHER * width)
    work = shift(products, TOGETHER * width)
    moments = shift(work, BESIDE - 3 * TOGETHER)
    clear_beside(d, width)
    clear_beside(products, width)
    begin, end = part_of(rank, size, (a.rows + TOGETHER - 1) // TOGETHER)
    for group in range(begin, end):
        first = group * TOGETHER
        count = min(TOGETHER, a.rows - first)
        for i in range(count):
            multiply_row(a, (first + i) * a.channels, d, products, i * width)
        store(moments, 0, tree_of_rows(d, width, work) / a.channels)
        store(moments, 16, tree_of_rows(products, width, work) / a.channels)
        for i in range(count):
            r, at = item(a.r, first + i), (first + i) * a.channels
            for c in range(0, a.channels, 16):
                value, normal = load(zeros(16), d, i * width + c), load(zeros(16), a.normal, at + c)
                if a.centred:
                    value = value - item(moments, i)
                store_part(a.out, at + c, r * (value - normal * item(moments, 16 + i)), a.channels - c)


@subroutine
def multiply_row(a, at, d, products, to):
    """Write d = δ·γ and d·x̂ of a row, behind which nothing is written, and δ·x̂."""
    params = floats(item(a.batch, PARAMS))
    for c in range(0, a.channels, 16):
        left = a.channels - c
        error, normal = load(zeros(16), a.x, at + c), load(zeros(16), a.normal, at + c)
        value = error
        if a.gamma >= 0:
            value = error * load(error, params, a.gamma + c)
            store_part(a.scaled, at + c, error * normal, left)
        store_part(d, to + c, value, left)
        store_part(products, to + c, value * normal, left)


class LayerNormKernels(OperatorKernels):
    """LayerNorm and RmsNorm, of plain values."""

    image = False

    shares = True

    def _place(self, role: str) -> int:
        return self.tensors[role].begin if role in self.tensors else -1

    def _fields(self, plan: Steps, x: Value) -> dict[str, object]:
        channels = self.shapes[0][-1]
        width = -(-channels // 16) * 16
        work, stride = plan.each_thread(2 * TOGETHER * width + BESIDE)
        return {
            "batch": BATCH, "x": x, "rows": x.samples * x.size // channels, "channels": channels,
            "eps": np.array([self.operator.eps], np.float32),
            "gamma": self._place("weight"), "beta": self._place("bias"),
            "centred": not isinstance(self.operator, RmsNorm), "learn": plan.learn,
            "work": work, "work_stride": stride,
        }  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep x̂ and r."""
        self.normal: Value | int = out.like() if plan.learn else 0
        self.r: Buffer | int = plan.buffer(out.samples * out.size // self.shapes[0][-1]) if plan.learn else 0
        fields = self._fields(plan, inputs[0])
        plan.step(normalise, **fields, normal=self.normal, r=self.r, out=out, scaled=0)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Compute the input's error; sum δ·x̂ and δ over positions."""
        sent, scaled = self.inputs[0].error(), error.like()
        fields = self._fields(plan, error)
        plan.step(normalise_backward, **fields, normal=self.normal, r=self.r, out=sent, scaled=scaled)
        for role, values in (("weight", scaled), ("bias", error)):
            if role in self.tensors:
                sum_products(plan, self.tensors[role], None, values)
        return [sent if wanted[0] else None]
