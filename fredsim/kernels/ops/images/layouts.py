"""From the order of the user's data to images with their channels innermost, and back; samples of a minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int32s, int64s, item, put, shift, uint8s
from fredsim.jit.subroutine import subroutine
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, ROWS, Steps
from fredsim.kernels.ops.rows import clear_halo, part_of
from fredsim.kernels.ops.values import Value

__all__ = ["ToImage", "ToPlain", "gather"]


@subroutine
def gather_elements(rank, size, a):
    """Copy this thread's samples of the minibatch, `width` elements each, to `out`."""
    rows = int64s(item(a.batch, ROWS))
    begin, end = part_of(rank, size, a.count)
    for i in range(begin, end):
        source, out = shift(a.x, item(rows, i) * a.width), shift(a.out, i * a.width)
        for k in range(a.width):
            put(out, k, item(source, k))


@kernel(batch=int64s, x=int32s, width=int, count=int, out=int32s)
def gather_words(rank, size, barrier, a):
    """Copy the samples of the minibatch, of words of 32 bits."""
    gather_elements(rank, size, a)


@kernel(batch=int64s, x=uint8s, width=int, count=int, out=uint8s)
def gather_bytes(rank, size, barrier, a):
    """Copy the samples of the minibatch, of bytes."""
    gather_elements(rank, size, a)


@kernel(batch=int64s, x=floats, count=int, channels=int, rows=int, columns=int, sample=int, row=int, gap=int,
        out=floats)  # fmt: skip
def gather_images(rank, size, barrier, a):
    """Write the samples of the minibatch, (channels, rows, columns) each, to `out` as images."""
    places = int64s(item(a.batch, ROWS))
    begin, end = part_of(rank, size, a.count * a.rows)
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        source = shift(a.x, (item(places, i) * a.channels * a.rows + y) * a.columns)
        out = shift(a.out, i * a.sample + y * a.row)
        for c in range(a.channels):
            for k in range(a.columns):
                put(out, k * a.channels + c, item(source, c * a.rows * a.columns + k))
        clear_halo(out, y == 0, a.columns * a.channels, a.gap)


@kernel(x=floats, count=int, channels=int, rows=int, columns=int, sample=int, row=int, gap=int, out=floats)
def to_image(rank, size, barrier, a):
    """Write samples (channels, rows, columns), one after the other, as images."""
    begin, end = part_of(rank, size, a.count * a.rows)
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        source = shift(a.x, (i * a.channels * a.rows + y) * a.columns)
        out = shift(a.out, i * a.sample + y * a.row)
        for k in range(a.columns):
            for c in range(a.channels):
                put(out, k * a.channels + c, item(source, c * a.rows * a.columns + k))
        clear_halo(out, y == 0, a.columns * a.channels, a.gap)


@kernel(x=floats, x_sample=int, x_row=int, count=int, channels=int, rows=int, columns=int, out=floats)
def to_plain(rank, size, barrier, a):
    """Write images as samples (channels, rows, columns), one after the other."""
    begin, end = part_of(rank, size, a.count * a.rows)
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        source = shift(a.x, i * a.x_sample + y * a.x_row)
        out = shift(a.out, (i * a.channels * a.rows + y) * a.columns)
        for c in range(a.channels):
            for k in range(a.columns):
                put(out, c * a.rows * a.columns + k, item(source, k * a.channels + c))


def sizes(value: Value) -> dict[str, int]:
    """Return the sizes of an image."""
    channels, rows, columns = value.shape
    return {"count": value.samples, "channels": channels, "rows": rows, "columns": columns}


def convert(plan: Steps, value: Value, out: Value) -> None:
    """Add the step that writes a value in the other form."""
    if out.image:
        plan.step(to_image, x=value, **sizes(out), **out.written())
    else:
        plan.step(to_plain, **value.read("x"), **sizes(value), out=out)


class ToImage(OperatorKernels):
    """The same values as an image."""

    to_image = True

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        return [not self.to_image], self.to_image

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        convert(plan, inputs[0], out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].error()
        convert(plan, error, sent)
        return [sent]


class ToPlain(ToImage):
    """The same values as an array."""

    to_image = False


def gather(plan: Steps, x: NDArray[Any], out: Value) -> None:
    """Add the step that copies the samples BATCH's rows of x, (n, …) in C order, to a value."""
    if out.image:
        plan.step(gather_images, batch=BATCH, x=x, **sizes(out), **out.written())
        return
    width, words = out.size * x.itemsize, x.itemsize % 4 == 0
    flat = x.reshape(-1).view(np.int32 if words else np.uint8)
    plan.step(
        gather_words if words else gather_bytes, batch=BATCH, x=flat, width=width // 4 if words else width,
        count=out.samples, out=out,
    )  # fmt: skip
