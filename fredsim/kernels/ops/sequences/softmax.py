"""Kernels of softmax and its logarithm over the last axis: fredsim.numerics.ops.products.

Sixteen rows are computed together: sums and maxima over columns are those of vectors with one row in each lane.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, item, shift
from fredsim.jit.shuffles import transpose16
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, load_part, store, store_part, zeros
from fredsim.kernels.arrays.elementary import log32
from fredsim.kernels.arrays.functions import exp_vector
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Value
from fredsim.numerics.rules import where

__all__ = ["LogSoftmaxKernels", "SoftmaxKernels"]

TOGETHER = 16  # rows that are computed together
VECTORS = 2 * TOGETHER  # floats for one number of each row, twice

#: Rows x (rows, columns), and p; if `logs`, `out` gets the logarithms, else it is not used. Backwards, x is the error,
#: and `out` the input's. `work` is each thread's
#: workspace, of `work_stride` floats: VECTORS, and TOGETHER padded rows, twice.
ROWS = Fields(x=floats, p=floats, rows=int, columns=int, logs=int, work=floats, work_stride=int, out=floats)


@subroutine
def turn(rows, width, out):
    """Write 16 rows of `width` floats, whole vectors, as `width` rows of 16."""
    for j in range(0, width, TOGETHER):
        transpose16(rows, np.int64(j), width, out, np.int64(j * TOGETHER), np.int64(TOGETHER))


@subroutine
def largest_of(turned, columns):
    """Return the largest of each lane's numbers: v replaces the best if v > best."""
    best = load(zeros(16), turned, 0)
    for j in range(1, columns):
        value = load(best, turned, j * TOGETHER)
        best = where(value > best, value, best)
    return best


@subroutine
def sum_of(turned, columns):
    """Return the sum of each lane's numbers, ascending from +0."""
    total = zeros(16)
    for j in range(columns):
        total = total + load(total, turned, j * TOGETHER)
    return total


@kernel(ROWS)
def share_out(rank, size, barrier, a):
    """Write p of this thread's rows."""
    width = (a.columns + 15) // 16 * 16
    numbers = shift(a.work, rank * a.work_stride)
    rows = shift(numbers, VECTORS)
    turned = shift(rows, TOGETHER * width)
    begin, end = part_of(rank, size, (a.rows + TOGETHER - 1) // TOGETHER)
    for group in range(begin, end):
        first = group * TOGETHER
        count = min(TOGETHER, a.rows - first)
        for i in range(count):
            for c in range(0, a.columns, 16):
                store(rows, i * width + c, load_part(zeros(16), a.x, (first + i) * a.columns + c, a.columns - c))
        turn(rows, width, turned)
        store(numbers, 0, largest_of(turned, a.columns))
        for i in range(count):
            for c in range(0, a.columns, 16):
                store(rows, i * width + c, exp_vector(load(zeros(16), rows, i * width + c) - item(numbers, i)))
        turn(rows, width, turned)
        store(numbers, TOGETHER, load(zeros(16), numbers, 0))
        store(numbers, 0, sum_of(turned, a.columns))
        for i in range(count):
            for c in range(0, a.columns, 16):
                p = load(zeros(16), rows, i * width + c) / item(numbers, i)
                store_part(a.p, (first + i) * a.columns + c, p, a.columns - c)
            if a.logs:
                write_logs(a, (first + i) * a.columns, item(numbers, TOGETHER + i), log32(item(numbers, i)))


@subroutine
def write_logs(a, at, best, log_total):
    """Write (x − best) − log_total of a row."""
    for c in range(0, a.columns, 16):
        x = load_part(zeros(16), a.x, at + c, a.columns - c)
        store_part(a.out, at + c, (x - best) - log_total, a.columns - c)


@kernel(ROWS)
def share_back(rank, size, barrier, a):
    """Write p·(δ − Σ p·δ) of this thread's rows or, if `logs`, δ − p·(Σ δ)."""
    width = (a.columns + 15) // 16 * 16
    numbers = shift(a.work, rank * a.work_stride)
    rows = shift(numbers, VECTORS)
    turned = shift(rows, TOGETHER * width)
    begin, end = part_of(rank, size, (a.rows + TOGETHER - 1) // TOGETHER)
    for group in range(begin, end):
        first = group * TOGETHER
        count = min(TOGETHER, a.rows - first)
        for i in range(count):
            for c in range(0, a.columns, 16):
                at, left = (first + i) * a.columns + c, a.columns - c
                error = load_part(zeros(16), a.x, at, left)
                store(rows, i * width + c, error if a.logs else load_part(zeros(16), a.p, at, left) * error)
        turn(rows, width, turned)
        store(numbers, 0, sum_of(turned, a.columns))
        for i in range(count):
            for c in range(0, a.columns, 16):
                at, left = (first + i) * a.columns + c, a.columns - c
                p, error = load_part(zeros(16), a.p, at, left), load_part(zeros(16), a.x, at, left)
                total = item(numbers, i)
                store_part(a.out, at, error - p * total if a.logs else p * (error - total), left)


class SoftmaxKernels(OperatorKernels):
    """Softmax of plain values."""

    image = False

    logs = False

    def _fields(self, plan: Steps, x: Value) -> dict[str, object]:
        columns = self.shapes[0][-1]
        work, stride = plan.each_thread(VECTORS + 2 * TOGETHER * -(-columns // 16) * 16)
        return {
            "x": x, "rows": plan.mu * x.size // columns, "columns": columns, "logs": self.logs,
            "work": work, "work_stride": stride,
        }  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep p, which is the output of softmax."""
        self._shares = out.like() if self.logs else out
        plan.step(share_out, **self._fields(plan, inputs[0]), p=self._shares, out=out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].error()
        plan.step(share_back, **self._fields(plan, error), p=self._shares, out=sent)
        return [sent]


class LogSoftmaxKernels(SoftmaxKernels):
    """LogSoftmax of plain values."""

    logs = True
