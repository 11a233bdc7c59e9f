"""Pooling of images: fredsim.numerics.ops.pooling. Windows are given by the parts of them that lie inside the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.jit.kernel import Fields, Kernel, with_functions
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import broadcast, load, zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import clear, clear_halo, part_of, put_lanes
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.pooling import MaxPool2d
from fredsim.numerics.rules import where

__all__ = ["PoolKernels"]


#: Windows of an input, or of what its error is written to. `kept` has the number of each window's largest element, as
#: (samples, rows, columns, channels) floats; of a mean, what each window's sum is divided by.
WINDOWS = {
    "channels": int, "samples": int, "rows": int, "columns": int, "row_spans": int64s, "column_spans": int64s,
    "kept": floats, "sample": int, "row": int, "gap": int, "out": floats,
}  # fmt: skip
FORWARD = Fields(x=floats, x_sample=int, x_row=int, **WINDOWS)
BACKWARD = Fields(
    e=floats, e_sample=int, e_row=int, x_rows=int, apart=int, covered=int, width=int, **WINDOWS,
)  # fmt: skip

of_window: Any = None  # placeholders: the kernels have their own
kept_of: Any = None
share: Any = None


def write_windows(rank, size, barrier, a):
    """Write what `of_window` gives of each window."""
    begin, end = part_of(rank, size, a.samples * a.rows)
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        r0, r1 = item(a.row_spans, 2 * y), item(a.row_spans, 2 * y + 1)
        out = shift(a.out, i * a.sample + y * a.row)
        for x in range(a.columns):
            c0, c1 = item(a.column_spans, 2 * x), item(a.column_spans, 2 * x + 1)
            window = shift(a.x, i * a.x_sample + r0 * a.x_row + c0 * a.channels)
            for k in range(0, a.channels, 16):
                value = of_window(a, shift(window, k), r1 - r0, c1 - c0, i, y * a.columns + x, k)
                put_lanes(out, x * a.channels + k, value, a.channels - k)
        clear_halo(out, y == 0, a.columns * a.channels, a.gap)


@subroutine(forceinline=True)
def largest(a, window, rows, columns, i, t, k):
    """Return the largest element, and keep its number within the window."""
    like = zeros(16)
    top, position = load(like, window, 0), like
    for r in range(rows):
        for c in range(columns):
            v, number = load(like, window, r * a.x_row + c * a.channels), broadcast(16, r * columns + c)
            position = where(v > top, number, position)
            top = where(v > top, v, top)
            position = where(v != v, number, position)
            top = where(v != v, v, top)
    put_lanes(a.kept, (i * a.rows * a.columns + t) * a.channels + k, position, a.channels - k)
    return top


@subroutine(forceinline=True)
def mean(a, window, rows, columns, i, t, k):
    """Return the sum, in row-major order from +0, divided by the window's count."""
    total = zeros(16)
    for r in range(rows):
        for c in range(columns):
            total = total + load(total, window, r * a.x_row + c * a.channels)
    return total / broadcast(16, item(a.kept, t))


def spread(rank, size, barrier, a):
    """Add each window's error to its positions as `share` says, windows in row-major order, from +0."""
    like = zeros(16)
    begin, end = part_of(rank, size, a.samples)
    for i in range(begin, end):
        image = shift(a.out, i * a.sample)
        if a.covered:
            for y in range(a.x_rows):
                clear_halo(shift(image, y * a.row), y == 0, a.width, a.gap)
        else:
            clear(image, -a.gap, a.sample)
        for t in range(a.rows * a.columns):
            y, x = t // a.columns, t % a.columns
            r0, r1 = item(a.row_spans, 2 * y), item(a.row_spans, 2 * y + 1)
            c0, c1 = item(a.column_spans, 2 * x), item(a.column_spans, 2 * x + 1)
            window = shift(image, r0 * a.row + c0 * a.channels)
            e = shift(a.e, i * a.e_sample + y * a.e_row + x * a.channels)
            for k in range(0, a.channels, 16):
                error, kept = load(like, e, k), kept_of(a, i, t, k)
                for r in range(r1 - r0):
                    for c in range(c1 - c0):
                        at = r * a.row + c * a.channels + k
                        before = like if a.apart else load(like, window, at)
                        put_lanes(window, at, before + share(error, kept, r * (c1 - c0) + c), a.channels - k)


@subroutine(forceinline=True)
def kept_positions(a, i, t, k):
    """Return the positions of a window's largest elements."""
    return load(zeros(16), a.kept, (i * a.rows * a.columns + t) * a.channels + k)


@subroutine(forceinline=True)
def to_largest(error, position, number):
    """Return the error of the largest, else +0."""
    return where(position == broadcast(16, number), error, 0.0)


@subroutine(forceinline=True)
def kept_count(a, i, t, k):
    """Return what a window's sum was divided by."""
    return broadcast(16, item(a.kept, t))


@subroutine(forceinline=True)
def to_all(error, count, number):
    """Return the same share for each."""
    return error / count


write_largest = Kernel(with_functions(write_windows, of_window=largest), FORWARD)
write_mean = Kernel(with_functions(write_windows, of_window=mean), FORWARD)
spread_largest = Kernel(with_functions(spread, kept_of=kept_positions, share=to_largest), BACKWARD)
spread_mean = Kernel(with_functions(spread, kept_of=kept_count, share=to_all), BACKWARD)


class PoolKernels(OperatorKernels):
    """The largest element or the mean of windows of an image."""

    image = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the positions of the largest."""
        (x,), op, (channels, rows, columns) = inputs, self.operator, out.shape
        windows = op._windows(x.shape)
        row_spans = np.array([window[:2] for window in windows[::columns]], np.int64)
        column_spans = np.array([window[2:] for window in windows[:columns]], np.int64)
        self.windows: dict[str, Any] = {
            "channels": channels, "samples": out.samples, "rows": rows, "columns": columns, "row_spans": row_spans,
            "column_spans": column_spans,
        }  # fmt: skip
        if isinstance(op, MaxPool2d):
            step, self.windows["kept"] = write_largest, plan.buffer(out.samples * out.size)
        else:
            counts = [op._count(window) for window in windows]
            step, self.windows["kept"] = write_mean, np.array(counts, np.float32)
        plan.step(step, **x.read("x"), **self.windows, **out.written())
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent, channels = self.inputs[0].error(), error.shape[0]
        spans = self.windows["row_spans"], self.windows["column_spans"]
        apart = [all(np.diff(each.reshape(-1)) >= 0) for each in spans]
        covered = [
            each[0, 0] == 0 and each[-1, 1] == size and all(each[1:, 0] == each[:-1, 1])
            for each, size in zip(spans, sent.shape[1:], strict=True)
        ]
        plan.step(
            spread_largest if isinstance(self.operator, MaxPool2d) else spread_mean, **error.read("e"),
            x_rows=sent.shape[1], width=sent.shape[2] * channels, apart=all(apart), covered=all(covered),
            **self.windows, **sent.written(),
        )  # fmt: skip
        return [sent]
