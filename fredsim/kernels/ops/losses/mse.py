"""Losses: fredsim.numerics.ops.losses. Outputs are plain; targets are chosen by BATCH's rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, floats, int64s, item, put, shift
from fredsim.kernels.arrays.elementary import exp32, log32
from fredsim.kernels.ops.operator import LossKernels
from fredsim.kernels.ops.program import BATCH, LOSSES, ROWS, WRONG, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.operator import Shape

__all__ = ["CrossEntropyKernels", "SquaredErrorKernels"]

FLUSH = np.float32(2.0**-62)  # smaller errors become +0
ZERO, ONE, TWO, HALF = np.float32(0), np.float32(1), np.float32(2), np.float32(0.5)


@kernel(batch=int64s, targets=int64s, z=floats, samples=int, classes=int, scratch=floats, scratch_stride=int,
        learn=int, error=floats)  # fmt: skip
def cross_entropy(rank, size, barrier, a):
    """Write losses, and errors if `learn`, else whether answers are wrong: of one label a sample."""
    rows, losses = int64s(item(a.batch, ROWS)), floats(item(a.batch, LOSSES))
    scratch = shift(a.scratch, rank * a.scratch_stride)
    begin, end = part_of(rank, size, a.samples)
    for i in range(begin, end):
        z, label = shift(a.z, i * a.classes), item(a.targets, item(rows, i))
        best = 0
        for j in range(1, a.classes):
            if item(z, j) > item(z, best):
                best = j
        top = item(z, best)
        for j in range(a.classes):
            put(scratch, j, exp32(item(z, j) - top))
        total = ZERO
        for j in range(a.classes):
            total = total + item(scratch, j)
        put(losses, i, log32(total) - (item(z, label) - top))
        if a.learn:
            for j in range(a.classes):
                error = item(scratch, j) / total
                if j == label:
                    error = error - ONE
                put(a.error, i * a.classes + j, ZERO if abs(error) < FLUSH else error)
        else:
            put(doubles(item(a.batch, WRONG)), i, 1.0 if best != label else 0.0)


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


class CrossEntropyKernels(LossKernels):
    """Cross-entropy of one label a sample."""

    @classmethod
    def takes(cls, loss: Any, output: Shape, target: Shape) -> bool:
        """Take one label a sample, without label smoothing."""
        return not target and not loss.smoothing and loss.ignored is None

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        """Compute everything in one step."""
        scratch, stride = plan.each_thread(output.size)
        plan.step(
            cross_entropy, batch=BATCH, targets=np.ascontiguousarray(plan.targets, np.int64), z=output,
            samples=output.samples, classes=output.size, scratch=scratch, scratch_stride=stride, learn=not wrong,
            error=output if error is None else error,
        )  # fmt: skip


class SquaredErrorKernels(LossKernels):
    """The mean squared error."""

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        """Compute everything in one step."""
        plan.step(
            squared_error, batch=BATCH, targets=np.ascontiguousarray(plan.targets, np.float32), z=output,
            samples=output.samples, count=math.prod(output.shape), half=self.loss.half, learn=not wrong,
            error=output if error is None else error,
        )  # fmt: skip
