"""Kernels of fredsim.numerics.ops.views: the same memory, or copies of elements to other places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.vector import load, zeros
from fredsim.kernels.arrays.reductions import copy
from fredsim.kernels.ops.fallback import FallbackKernels
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.pointwise import copy_value
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import clear, clear_halo, part_of, put_lanes
from fredsim.kernels.ops.values import Value

__all__ = ["CatKernels", "PermuteKernels", "ReshapeKernels", "SliceKernels"]

WORD = 4  # bytes; elements are copied as one or two float32, whatever they are


@kernel(x=floats, x_begin=int, x_stride=int, rows=int, width=int, out=floats, begin=int, stride=int, around=int)
def copy_part(rank, size, barrier, a):
    """Copy `width` floats of each of `rows` rows, from x_begin to `begin`; if `around`, write +0 beside them."""
    first, end = part_of(rank, size, a.rows)
    for row in range(first, end):
        out = shift(a.out, row * a.stride)
        if a.around:
            clear(out, 0, a.begin)
            clear(out, a.begin + a.width, a.stride - a.begin - a.width)
        copy(shift(a.x, row * a.x_stride + a.x_begin), a.width, shift(out, a.begin))


@kernel(x=floats, x_begin=int, x_sample=int, x_row=int, x_pixel=int, samples=int, rows=int, columns=int, width=int,
        out=floats, begin=int, sample=int, row=int, pixel=int, gap=int)  # fmt: skip
def copy_channels(rank, size, barrier, a):
    """Copy `width` channels of each pixel of images, from x_begin to `begin`; where a gap is given, clear the halo."""
    first, end = part_of(rank, size, a.samples * a.rows)
    for t in range(first, end):
        i, y = t // a.rows, t % a.rows
        x, line = shift(a.x, i * a.x_sample + y * a.x_row + a.x_begin), shift(a.out, i * a.sample + y * a.row)
        out = shift(line, a.begin)
        for column in range(a.columns):
            from_x, to = shift(x, column * a.x_pixel), shift(out, column * a.pixel)
            for c in range(0, a.width, 16):
                put_lanes(to, c, load(zeros(16), from_x, c), a.width - c)
        clear_halo(line, y == 0, a.columns * a.pixel, a.gap)


@kernel(x=floats, axes=int, sizes=int64s, strides=int64s, count=int, out=floats)
def copy_in_order(rank, size, barrier, a):
    """Write the elements of an array of these sizes and strides, `count` in all, one after the other."""
    width, step = item(a.sizes, a.axes - 1), item(a.strides, a.axes - 1)
    first, end = part_of(rank, size, a.count // width)
    for row in range(first, end):
        rest, at = row, 0
        for axis in range(a.axes - 2, -1, -1):
            length = item(a.sizes, axis)
            at += rest % length * item(a.strides, axis)
            rest //= length
        x, out = shift(a.x, at), shift(a.out, row * width)
        if step == 1:
            copy(x, width, out)
        else:
            for i in range(width):
                put(out, i, item(x, i * step))


def words_of(value: Value) -> int:
    """Return how many words an element takes; 0 if it is no whole number of them."""
    itemsize = np.dtype(value.dtype).itemsize
    return 0 if itemsize % WORD else itemsize // WORD


def pass_range(plan: Steps, inputs: Sequence[Value], out: Value) -> None:
    """Note that integers of a copy are those of what it is copied from."""
    known = [plan.ranges.get(id(value.buffer)) for value in inputs]
    ranges = [found for found in known if found is not None]
    if len(ranges) == len(known):
        plan.ranges[id(out.buffer)] = min(low for low, _ in ranges), max(high for _, high in ranges)
        if any(id(value.buffer) in plan.parts for value in inputs):
            plan.parts.add(id(out.buffer))


class ReshapeKernels(OperatorKernels):
    """fredsim.numerics.ops.views.Reshape of plain values: the same memory. An image is converted before."""

    image = False

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        return replace(inputs[0], shape=out.shape)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [replace(error, shape=self.inputs[0].shape)]


class DetachKernels(OperatorKernels):
    """fredsim.numerics.ops.views.Detach: the same memory."""

    passes_values = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        return inputs[0]

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [None]


class SliceKernels(FallbackKernels):
    """Slice of plain values."""

    def _sizes(self, words: int) -> tuple[int, int, int]:
        """Return how many rows a sample has, a row's length, and that of an element of the axis, in words."""
        (x,), axis = self.shapes, self.operator.axis
        inner = math.prod(x[axis + 1 :]) * words
        return math.prod(x[:axis]), x[axis] * inner, inner

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        words = words_of(inputs[0])
        if not words:
            return super().forward(plan, inputs, out)
        out = out.like(dtype=inputs[0].dtype)
        rows, length, inner = self._sizes(words)
        width = (self.operator.end - self.operator.begin) * inner
        plan.step(
            copy_part, x=inputs[0], x_begin=self.operator.begin * inner, x_stride=length, rows=out.samples * rows,
            width=width, out=out, begin=0, stride=width, around=0,
        )  # fmt: skip
        pass_range(plan, inputs, out)
        plan.parts.add(id(out.buffer))
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].error()
        rows, length, inner = self._sizes(1)
        width = (self.operator.end - self.operator.begin) * inner
        plan.step(
            copy_part, x=error, x_begin=0, x_stride=width, rows=sent.samples * rows, width=width, out=sent,
            begin=self.operator.begin * inner, stride=length, around=1,
        )  # fmt: skip
        return [sent]


class CatKernels(FallbackKernels):
    """Cat of plain values, or of images along their channels."""

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take images if one is, and channels are joined."""
        image = self.floats and any(given) and self.operator.axis == 0
        return [image] * len(given), image

    def _parts(self, words: int) -> tuple[int, list[int]]:
        """Return how many rows a sample has, and how many words of each row each input has."""
        axis = self.operator.axis
        return math.prod(self.shapes[0][:axis]), [math.prod(shape[axis:]) * words for shape in self.shapes]

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        if out.image:
            begin = 0
            for value in inputs:
                copy_pixels(plan, value, 0, out, begin, value.shape[0])
                begin += value.shape[0]
            return out
        words = words_of(inputs[0])
        if not words or len({np.dtype(value.dtype) for value in inputs}) > 1:
            return super().forward(plan, inputs, out)
        out = out.like(dtype=inputs[0].dtype)
        rows, widths = self._parts(words)
        for i, (value, width) in enumerate(zip(inputs, widths, strict=True)):
            plan.step(
                copy_part, x=value, x_begin=0, x_stride=width, rows=out.samples * rows, width=width, out=out,
                begin=sum(widths[:i]), stride=sum(widths), around=0,
            )  # fmt: skip
        pass_range(plan, inputs, out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        rows, widths = self._parts(1)
        sent: list[Value | None] = []
        for i, (value, width, wants) in enumerate(zip(self.inputs, widths, wanted, strict=True)):
            part = value.error() if wants else None
            sent.append(part)
            if part is not None and part.image:
                begin = sum(shape[0] for shape in self.shapes[:i])
                copy_pixels(plan, error, begin, part, 0, part.shape[0])
            elif part is not None:
                plan.step(
                    copy_part, x=error, x_begin=sum(widths[:i]), x_stride=sum(widths), rows=error.samples * rows,
                    width=width, out=part, begin=0, stride=width, around=0,
                )  # fmt: skip
        return sent


def copy_pixels(plan: Steps, x: Value, x_begin: int, out: Value, begin: int, width: int) -> None:
    """Add the step that copies `width` channels of an image to others of another one."""
    _, rows, columns = out.shape
    plan.step(
        copy_channels, **x.read("x"), x_begin=x_begin, x_pixel=x.shape[0], samples=out.samples, rows=rows,
        columns=columns, width=width, begin=begin, pixel=out.shape[0],
        **out.written() | ({"gap": 0} if begin else {}),
    )  # fmt: skip


#: Permutations by which an image with its channels innermost becomes a plain value with the same memory, and back.
OF_IMAGE, TO_IMAGE = (1, 2, 0), (2, 0, 1)


class PermuteKernels(FallbackKernels):
    """Permute: of plain values, or between an image and a plain value whose elements lie in the same order."""

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take an image whose channels become the last axis; give one if the last axis becomes its channels."""
        return [given[0] and self.operator.axes == OF_IMAGE], self.floats and self.operator.axes == TO_IMAGE

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        (x,) = inputs
        if x.image or out.image:
            dense = x if x.dense else copy_value(plan, x, x.like(halo=0))
            return replace(dense, shape=out.shape, image=out.image, halo=0)
        if not words_of(x):
            return super().forward(plan, inputs, out)
        out = out.like(dtype=x.dtype)
        reorder(plan, x, self.operator.axes, out)
        pass_range(plan, inputs, out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        (x,) = self.inputs
        if x.image or error.image:
            dense = error if error.dense else copy_value(plan, error, error.like(halo=0))
            return [replace(dense, shape=x.shape, image=x.image, halo=0, error_halo=0)]
        sent = x.error()
        reorder(plan, error, tuple(int(axis) for axis in np.argsort(self.operator.axes)), sent)
        return [sent]


def reorder(plan: Steps, x: Value, axes: Sequence[int], out: Value) -> None:
    """Add the step that writes the axes of x in another order."""
    words = words_of(x)
    whole = (x.samples, *x.shape, words)
    strides = [math.prod(whole[axis + 1 :]) for axis in range(len(whole))]
    order = [0, *(axis + 1 for axis in axes), len(whole) - 1]
    sizes, steps = [whole[order[0]]], [strides[order[0]]]
    for axis in order[1:]:
        if steps[-1] == strides[axis] * whole[axis]:  # an axis that goes on where the one before does: one axis
            sizes[-1] *= whole[axis]
            steps[-1] = strides[axis]
        elif whole[axis] > 1:
            sizes.append(whole[axis])
            steps.append(strides[axis])
    plan.step(
        copy_in_order, x=x, axes=len(sizes), sizes=np.array(sizes, np.int64), strides=np.array(steps, np.int64),
        count=math.prod(whole), out=out,
    )  # fmt: skip
