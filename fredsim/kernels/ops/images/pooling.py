"""Pooling of images: fredsim.numerics.ops.pooling. Windows are given by the parts of them that lie inside the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.vector import broadcast, load, zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import clear, clear_halo, part_of, put_lanes
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.pooling import MaxPool2d
from fredsim.numerics.rules import where

__all__ = ["PoolKernels"]


@kernel(x=floats, x_sample=int, x_row=int, channels=int, samples=int, rows=int, columns=int, row_spans=int64s,
        column_spans=int64s, sample=int, row=int, gap=int, best=floats, out=floats)  # fmt: skip
def largest(rank, size, barrier, a):
    """Write each window's largest element to `out`, and its number within the window, a float, to `best`.

    `best` is (samples, rows, columns, channels).
    """
    like = zeros(16)
    begin, end = part_of(rank, size, a.samples * a.rows)
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        r0, r1 = item(a.row_spans, 2 * y), item(a.row_spans, 2 * y + 1)
        out = shift(a.out, i * a.sample + y * a.row)
        best = shift(a.best, t * a.columns * a.channels)
        for x in range(a.columns):
            c0, c1 = item(a.column_spans, 2 * x), item(a.column_spans, 2 * x + 1)
            window = shift(a.x, i * a.x_sample + r0 * a.x_row + c0 * a.channels)
            at = x * a.channels
            for k in range(0, a.channels, 16):
                top, position = load(like, window, k), like
                for r in range(r1 - r0):
                    for c in range(c1 - c0):
                        v = load(like, window, r * a.x_row + c * a.channels + k)
                        number = broadcast(16, r * (c1 - c0) + c)
                        position = where(v > top, number, position)
                        top = where(v > top, v, top)
                        position = where(v != v, number, position)
                        top = where(v != v, v, top)
                put_lanes(out, at + k, top, a.channels - k)
                put_lanes(best, at + k, position, a.channels - k)
        clear_halo(out, y == 0, a.columns * a.channels, a.gap)


@kernel(e=floats, e_sample=int, e_row=int, channels=int, samples=int, rows=int, columns=int, row_spans=int64s,
        column_spans=int64s, x_rows=int, sample=int, row=int, apart=int, covered=int, width=int, gap=int, best=floats,
        out=floats)  # fmt: skip
def spread_largest(rank, size, barrier, a):
    """Add each window's error to the position of its largest element, windows in row-major order, from +0."""
    like = zeros(16)
    begin, end = part_of(rank, size, a.samples)
    for i in range(begin, end):
        image = shift(a.out, i * a.sample)
        if a.covered:
            for y in range(a.x_rows):
                clear_halo(shift(image, y * a.row), y == 0, a.width, a.gap)
        else:
            gap = a.sample - a.x_rows * a.row
            clear(image, -gap, a.sample)
        for t in range(a.rows * a.columns):
            y, x = t // a.columns, t % a.columns
            r0, r1 = item(a.row_spans, 2 * y), item(a.row_spans, 2 * y + 1)
            c0, c1 = item(a.column_spans, 2 * x), item(a.column_spans, 2 * x + 1)
            window = shift(image, r0 * a.row + c0 * a.channels)
            e = shift(a.e, i * a.e_sample + y * a.e_row + x * a.channels)
            best = shift(a.best, (i * a.rows * a.columns + t) * a.channels)
            for k in range(0, a.channels, 16):
                error, position = load(like, e, k), load(like, best, k)
                for r in range(r1 - r0):
                    for c in range(c1 - c0):
                        at = r * a.row + c * a.channels + k
                        chosen = where(position == broadcast(16, r * (c1 - c0) + c), error, like)
                        before = like if a.apart else load(like, window, at)
                        put_lanes(window, at, before + chosen, a.channels - k)


@kernel(x=floats, x_sample=int, x_row=int, channels=int, samples=int, rows=int, columns=int, row_spans=int64s,
        column_spans=int64s, counts=floats, sample=int, row=int, gap=int, out=floats)  # fmt: skip
def mean(rank, size, barrier, a):
    """Write each window's sum, in row-major order from +0, divided by its count."""
    like = zeros(16)
    begin, end = part_of(rank, size, a.samples * a.rows)
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        r0, r1 = item(a.row_spans, 2 * y), item(a.row_spans, 2 * y + 1)
        out = shift(a.out, i * a.sample + y * a.row)
        for x in range(a.columns):
            c0, c1 = item(a.column_spans, 2 * x), item(a.column_spans, 2 * x + 1)
            window = shift(a.x, i * a.x_sample + r0 * a.x_row + c0 * a.channels)
            count = broadcast(16, item(a.counts, y * a.columns + x))
            for k in range(0, a.channels, 16):
                total = like
                for r in range(r1 - r0):
                    for c in range(c1 - c0):
                        total = total + load(like, window, r * a.x_row + c * a.channels + k)
                put_lanes(out, x * a.channels + k, total / count, a.channels - k)
        clear_halo(out, y == 0, a.columns * a.channels, a.gap)


@kernel(e=floats, e_sample=int, e_row=int, channels=int, samples=int, rows=int, columns=int, row_spans=int64s,
        column_spans=int64s, counts=floats, x_rows=int, sample=int, row=int, out=floats)  # fmt: skip
def spread_mean(rank, size, barrier, a):
    """Add each window's error, divided by its count, to all of its positions, windows in row-major order, from +0."""
    like = zeros(16)
    begin, end = part_of(rank, size, a.samples)
    for i in range(begin, end):
        image = shift(a.out, i * a.sample)
        gap = a.sample - a.x_rows * a.row
        clear(image, -gap, a.sample)
        for t in range(a.rows * a.columns):
            y, x = t // a.columns, t % a.columns
            r0, r1 = item(a.row_spans, 2 * y), item(a.row_spans, 2 * y + 1)
            c0, c1 = item(a.column_spans, 2 * x), item(a.column_spans, 2 * x + 1)
            window = shift(image, r0 * a.row + c0 * a.channels)
            e = shift(a.e, i * a.e_sample + y * a.e_row + x * a.channels)
            count = broadcast(16, item(a.counts, t))
            for k in range(0, a.channels, 16):
                error = load(like, e, k) / count
                for r in range(r1 - r0):
                    for c in range(c1 - c0):
                        at = r * a.row + c * a.channels + k
                        put_lanes(window, at, load(like, window, at) + error, a.channels - k)


class PoolKernels(OperatorKernels):
    """The largest element or the mean of windows of an image."""

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take and give images."""
        return [True], True

    def _spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows and the columns that windows cover, and what each window's sum is divided by."""
        op, shape = self.operator, self.shapes[0]
        _, _, columns = op.shape(shape)
        windows = op._windows(shape)
        rows = np.array([window[:2] for window in windows[::columns]], np.int64)
        across = np.array([window[2:] for window in windows[:columns]], np.int64)
        if isinstance(op, MaxPool2d):
            return rows, across, np.empty(0, np.float32)
        return rows, across, np.array([op._count(window) for window in windows], np.float32)

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the positions of the largest."""
        (x,), (channels, rows, columns) = inputs, out.shape
        self.spans = row_spans, column_spans, counts = self._spans()
        fields: dict[str, Any] = {
            "x": x, "x_sample": x.sample, "x_row": x.row, "channels": channels, "samples": out.samples, "rows": rows,
            "columns": columns, "row_spans": row_spans, "column_spans": column_spans, "sample": out.sample,
            "row": out.row, "gap": out.halo * channels, "out": out,
        }  # fmt: skip
        if isinstance(self.operator, MaxPool2d):
            self.best = plan.buffer(out.samples * out.size)
            plan.step(largest, best=self.best, **fields)
        else:
            plan.step(mean, counts=counts, **fields)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Spread the error."""
        sent, (channels, rows, columns) = self.inputs[0].error(), error.shape
        row_spans, column_spans, counts = self.spans
        fields: dict[str, Any] = {
            "e": error, "e_sample": error.sample, "e_row": error.row, "channels": channels, "samples": error.samples,
            "rows": rows, "columns": columns, "row_spans": row_spans, "column_spans": column_spans,
            "x_rows": sent.shape[1], "sample": sent.sample, "row": sent.row, "out": sent,
        }  # fmt: skip
        if isinstance(self.operator, MaxPool2d):
            apart = [all(np.diff(spans.reshape(-1)) >= 0) for spans in (row_spans, column_spans)]
            covered = [
                spans[0, 0] == 0 and spans[-1, 1] == size and all(spans[1:, 0] == spans[:-1, 1])
                for spans, size in zip((row_spans, column_spans), sent.shape[1:], strict=True)
            ]
            plan.step(
                spread_largest, best=self.best, apart=all(apart), covered=all(covered),
                width=sent.shape[2] * channels, gap=sent.halo * channels, **fields,
            )  # fmt: skip
        else:
            plan.step(spread_mean, counts=counts, **fields)
        return [sent]
