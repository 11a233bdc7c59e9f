"""Kernel of binary cross-entropy of logits: fredsim.numerics.ops.losses.bce."""

from __future__ import annotations

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, floats, int64s, item, put
from fredsim.kernels.arrays.elementary import exp64, log64
from fredsim.kernels.ops.fallback import FallbackLoss
from fredsim.kernels.ops.program import BATCH, LOSSES, ROWS, WRONG, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Value

__all__ = ["BinaryCrossEntropyKernels"]


@kernel(batch=int64s, output=floats, targets=floats, samples=int, count=int, learn=int, errors=floats, wrong=int)
def binary_cross_entropy(rank, size, barrier, a):
    """Write the losses of this thread's samples and, if `learn`, their errors, and if `wrong`, their wrong answers.

    A sample has `count` logits; the targets are (n, count).
    """
    rows, losses = int64s(item(a.batch, ROWS)), floats(item(a.batch, LOSSES))
    count = np.float32(a.count)
    begin, end = part_of(rank, size, a.samples)
    for m in range(begin, end):
        total, misses = np.float32(0.0), 0
        for i in range(a.count):
            z = np.float64(item(a.output, m * a.count + i))
            y = np.float64(item(a.targets, item(rows, m) * a.count + i))
            e = exp64(-abs(z))
            loss = (z if z > 0.0 else 0.0) - z * y + log64(1.0 + e)
            total = total + np.float32(loss if z == z else np.nan)
            misses += (z > 0.0) != (y > 0.5)
            if a.learn:
                error = (e if z < 0.0 else 1.0) / (1.0 + e) - y
                put(a.errors, m * a.count + i, np.float32(error) / count)
        put(losses, m, total / count)
        if a.wrong:
            put(doubles(item(a.batch, WRONG)), m, np.float64(misses) / np.float64(a.count))


class BinaryCrossEntropyKernels(FallbackLoss):
    """Binary cross-entropy of float32 targets."""

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        targets = np.ascontiguousarray(plan.targets)
        if targets.dtype != np.float32:
            super().losses(plan, output, error, wrong=wrong)
            return
        plan.step(
            binary_cross_entropy, batch=BATCH, output=output, targets=targets, samples=output.samples,
            count=output.size, learn=error is not None, errors=0 if error is None else error, wrong=wrong,
        )  # fmt: skip
