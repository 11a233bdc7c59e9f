"""Copies, sums and activations: what is done to each element alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

__all__ = ["OF_TWO", "AddKernels", "ReluKernels", "add_values", "combine_rows", "combined", "copy_value", "spans"]


@kernel(x=floats, x_sample=int, x_row=int, samples=int, rows=int, width=int, sample=int, row=int, gap=int, out=floats)
def copy_rows(rank, size, barrier, a):
    """Copy rows of `width` floats between values with other strides."""
    begin, end = part_of(rank, size, a.samples * a.rows)
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        out = shift(a.out, i * a.sample + y * a.row)
        copy(shift(a.x, i * a.x_sample + y * a.x_row), a.width, out)
        clear_halo(out, y == 0, a.width, a.gap)


#: Rows of `width` floats of two operands, and of what is made of them.
OF_TWO = Fields(
    x=floats, x_sample=int, x_row=int, y=floats, y_sample=int, y_row=int, samples=int, rows=int, width=int, sample=int,
    row=int, gap=int, out=floats,
)  # fmt: skip


function: Any = None  # a placeholder: each kernel has its own


def combine_rows(rank, size, barrier, a):
    """Write function(x, y), of vectors, for this thread's rows."""
    begin, end = part_of(rank, size, a.samples * a.rows)
    like = zeros(16)
    for t in range(begin, end):
        i, r = t // a.rows, t % a.rows
        x, y = shift(a.x, i * a.x_sample + r * a.x_row), shift(a.y, i * a.y_sample + r * a.y_row)
        out = shift(a.out, i * a.sample + r * a.row)
        k = 0
        while k + 16 <= a.width:
            store(out, k, function(load(like, x, k), load(like, y, k)))
            k += 16
        if k < a.width:
            rest = a.width - k
            store_part(out, k, function(load_part(like, x, k, rest), load_part(like, y, k, rest)), rest)
        clear_halo(out, r == 0, a.width, a.gap)


@subroutine(forceinline=True)
def plus(x, y):
    """Return x + y."""
    return x + y


@subroutine(forceinline=True)
def where_positive(x, mask):
    """Return x where `mask` is above 0, else +0."""
    return where(mask > 0.0, x, zeros(16))


add_rows = Kernel(with_functions(combine_rows, function=plus), OF_TWO)
select_rows = Kernel(with_functions(combine_rows, function=where_positive), OF_TWO)


def spans(*values: Value) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Return how several values of one shape and form are divided into rows of floats that lie together.

    First the strides `sample` and `row` of each but the last, then those of the last with samples, rows, width, and the
    floats of its halo, `gap`.
    """
    out = values[-1]
    if all(value.dense for value in values):  # each sample is one row
        whole = [{"sample": value.size, "row": 0} for value in values]
        return whole[:-1], {"samples": out.samples, "rows": 1, "width": out.size, "gap": 0, **whole[-1]}
    strides = [{"sample": value.sample, "row": value.row} for value in values]
    channels, rows, columns = out.shape
    sizes = {"samples": out.samples, "rows": rows, "width": columns * channels, "gap": out.halo * channels}
    return strides[:-1], sizes | strides[-1]


def named(name: str, strides: dict[str, int]) -> dict[str, int]:
    """Return strides under the names of a kernel's argument."""
    return {f"{name}_{key}": value for key, value in strides.items()}


def copy_value(plan: Steps, value: Value, out: Value) -> Value:
    """Add the step that copies a value to another of its form; return that."""
    (own,), sizes = spans(value, out)
    plan.step(copy_rows, x=value, **named("x", own), **sizes, out=out)
    return out


def add_values(plan: Steps, x: Value, y: Value, out: Value) -> Value:
    """Add the step that writes x + y to a value of their form; return that."""
    return combined(plan, add_rows, x, y, out)


def select(plan: Steps, x: Value, mask: Value, out: Value) -> Value:
    """Add the step that writes x where `mask` is above 0, else +0; return its output."""
    return combined(plan, select_rows, x, mask, out)


def combined(plan: Steps, combine: Kernel, x: Value, y: Value, out: Value) -> Value:
    """Add a step of two values and what is made of them, all of one form; return its output."""
    (own, other), sizes = spans(x, y, out)
    plan.step(combine, x=x, **named("x", own), y=y, **named("y", other), **sizes, out=out)
    return out


class ReluKernels(OperatorKernels):
    """fredsim.numerics.ops.pointwise.Relu."""

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the output, which is above 0 where the input is."""
        self.out = select(plan, inputs[0], inputs[0], out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Select."""
        return [select(plan, error, self.out, self.inputs[0].error())]


class AddKernels(OperatorKernels):
    """fredsim.numerics.ops.arithmetic.Add of two values of one shape: the error goes to both as it is."""

    passes_errors = True

    @classmethod
    def takes(cls, operator: object, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Take two equal shapes."""
        return shapes[0] == shapes[1]

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take images if one is."""
        return [any(given)] * 2, any(given)

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add."""
        return add_values(plan, *inputs, out)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Pass the error on."""
        return [error if wants else None for wants in wanted]
