"""Copies, sums and activations: what is done to each element alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.jit.kernel import Fields, Kernel, kernel, with_functions
from fredsim.jit.pointers import floats, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, load_part, store, store_part, zeros
from fredsim.kernels.arrays.reductions import copy
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import clear_halo, part_of
from fredsim.kernels.ops.values import Value
from fredsim.numerics.rules import where

__all__ = [
    "OF_TWO", "ROWS", "ReluKernels", "add_rows", "combine_rows", "combined", "copy_value",
    "multiply_rows", "named", "piece_of", "plus", "select_rows", "spans", "times",
    "where_positive",
]  # fmt: skip


PIECE = 2048  # the most floats of a row that are one task

#: Rows of `width` floats, in `pieces` of PIECE; `gap` is the halo of the last operand.
ROWS = {"samples": int, "rows": int, "width": int, "pieces": int, "sample": int, "row": int, "gap": int}


@subroutine
def piece_of(a, t):
    """Return the sample, the row, and the first and the last element but one of task t."""
    row, begin = t // a.pieces, t % a.pieces * PIECE
    return row // a.rows, row % a.rows, begin, min(begin + PIECE, a.width)


@kernel(**ROWS, x=floats, x_sample=int, x_row=int, out=floats)
def copy_rows(rank, size, barrier, a):
    """Copy rows between values with other strides."""
    begin, end = part_of(rank, size, a.samples * a.rows * a.pieces)
    for t in range(begin, end):
        i, y, k, last = piece_of(a, t)
        out = shift(a.out, i * a.sample + y * a.row)
        copy(shift(a.x, i * a.x_sample + y * a.x_row + k), last - k, shift(out, k))
        if k == 0:
            clear_halo(out, y == 0, a.width, a.gap)


#: Rows of two operands, and of what is made of them; `numbers` are others that the function takes.
OF_TWO = Fields(
    **ROWS, x=floats, x_sample=int, x_row=int, y=floats, y_sample=int, y_row=int, numbers=floats, out=floats
)


function: Any = None  # a placeholder: each kernel has its own


def combine_rows(rank, size, barrier, a):
    """Write function(x, y, numbers), of vectors, for this thread's rows."""
    begin, end = part_of(rank, size, a.samples * a.rows * a.pieces)
    like = zeros(16)
    for t in range(begin, end):
        i, r, k, last = piece_of(a, t)
        x, y = shift(a.x, i * a.x_sample + r * a.x_row), shift(a.y, i * a.y_sample + r * a.y_row)
        out = shift(a.out, i * a.sample + r * a.row)
        if k == 0:
            clear_halo(out, r == 0, a.width, a.gap)
        while k + 16 <= last:
            store(out, k, function(load(like, x, k), load(like, y, k), a.numbers))
            k += 16
        if k < last:
            rest = last - k
            store_part(out, k, function(load_part(like, x, k, rest), load_part(like, y, k, rest), a.numbers), rest)


@subroutine(forceinline=True)
def plus(x, y, numbers):
    """Return x + y."""
    return x + y


@subroutine(forceinline=True)
def times(x, y, numbers):
    """Return x·y."""
    return x * y


@subroutine(forceinline=True)
def where_positive(x, mask, numbers):
    """Return x where `mask` is above 0, else +0."""
    return where(mask > 0.0, x, zeros(16))


add_rows = Kernel(with_functions(combine_rows, function=plus), OF_TWO)
multiply_rows = Kernel(with_functions(combine_rows, function=times), OF_TWO)
select_rows = Kernel(with_functions(combine_rows, function=where_positive), OF_TWO)


def spans(*values: Value) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Return how several values of one shape and form are divided into rows of floats that lie together.

    First the strides `sample` and `row` of each but the last, then ROWS of the last.
    """
    out = values[-1]
    if all(value.dense for value in values):  # all samples are one row
        whole, width = {"sample": 0, "row": 0}, out.samples * out.size
        sizes = {"samples": 1, "rows": 1, "width": width, **pieces(width), "gap": 0}
        return [whole] * (len(values) - 1), sizes | whole
    strides = [{"sample": value.sample, "row": value.row} for value in values]
    channels, rows, columns = out.shape
    width = columns * channels
    sizes = {"samples": out.samples, "rows": rows, "width": width, **pieces(width), "gap": out.halo * channels}
    return strides[:-1], sizes | strides[-1]


def pieces(width: int) -> dict[str, int]:
    """Return how many tasks a row of so many floats is."""
    return {"pieces": max(1, -(-width // PIECE))}


def named(name: str, strides: dict[str, int]) -> dict[str, int]:
    """Return strides under the names of a kernel's argument."""
    return {f"{name}_{key}": value for key, value in strides.items()}


def copy_value(plan: Steps, value: Value, out: Value) -> Value:
    """Add the step that copies a value to another of its form; return that."""
    (own,), sizes = spans(value, out)
    plan.step(copy_rows, x=value, **named("x", own), **sizes, out=out)
    return out


def combined(plan: Steps, combine: Kernel, x: Value, y: Value, out: Value, numbers: Sequence[float] = (0,)) -> Value:
    """Add a step of two values and what is made of them, all of one form; return its output."""
    (own, other), sizes = spans(x, y, out)
    given = np.array(numbers, np.float32)
    plan.step(combine, x=x, **named("x", own), y=y, **named("y", other), **sizes, numbers=given, out=out)
    return out


class ReluKernels(OperatorKernels):
    """fredsim.numerics.ops.pointwise.Relu."""

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the output, which is above 0 where the input is."""
        self.out = combined(plan, select_rows, inputs[0], inputs[0], out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [combined(plan, select_rows, error, self.out, self.inputs[0].error())]
