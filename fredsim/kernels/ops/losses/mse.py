"""Kernel of the mean squared error: fredsim.numerics.ops.losses.mse."""

from __future__ import annotations

import math

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, floats, int64s, item, put, shift
from fredsim.kernels.ops.operator import LossKernels
from fredsim.kernels.ops.program import BATCH, LOSSES, ROWS, WRONG, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Value

__all__ = ["SquaredErrorKernels"]

ZERO, TWO, HALF = np.float32(0), np.float32(2), np.float32(0.5)


@kernel(batch=int64s, targets=floats, z=floats, samples=int, count=int, half=int, learn=int, error=floats)
def squared_error(rank, size, barrier, a):
    """Write losses, and errors if `learn`, else that answers are neither right nor wrong."""
    rows, losses = int64s(item(a.batch, ROWS)), floats(item(a.batch, LOSSES))
    count = np.float32(a.count)
    begin, end = part_of(rank, size, a.samples)
    for i in range(begin, end):
        z, y = shift(a.z, i * a.count), shift(a.targets, item(rows, i) * a.count)
        error, total = shift(a.error, i * a.count), ZERO
        for k in range(a.count):
            e = item(z, k) - item(y, k)
            total = total + e * e
            if a.learn:
                put(error, k, e if a.half else (e * TWO) / count)
        put(losses, i, total * HALF if a.half else total / count)
        if not a.learn:
            put(doubles(item(a.batch, WRONG)), i, np.nan)


class SquaredErrorKernels(LossKernels):
    """The mean squared error."""

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        plan.step(
            squared_error, batch=BATCH, targets=np.ascontiguousarray(plan.targets, np.float32), z=output,
            samples=output.samples, count=math.prod(output.shape), half=self.loss.half, learn=not wrong,
            error=output if error is None else error,
        )  # fmt: skip
