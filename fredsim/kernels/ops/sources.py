"""Kernels of values that are the same for every sample: fredsim.numerics.ops.sources, and positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int32s, int64s, item, put, shift
from fredsim.kernels.arrays.reductions import copy
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, PARAMS, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sums import gradient_of_samples
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.ops.sources import Constant

__all__ = ["ConstantKernels", "ParameterKernels", "PositionsOfPlaces"]

PIECE = 2048  # floats that are one task


@kernel(batch=int64s, x=floats, begin=int, width=int, samples=int, out=floats)
def repeat_values(rank, size, barrier, a):
    """Write `width` floats for each sample: the parameters from `begin` on, or those of x if it is negative."""
    x = shift(floats(item(a.batch, PARAMS)), a.begin) if a.begin >= 0 else a.x
    pieces = (a.width + PIECE - 1) // PIECE
    begin, end = part_of(rank, size, a.samples * pieces)
    for t in range(begin, end):
        at = t % pieces * PIECE
        copy(shift(x, at), min(PIECE, a.width - at), shift(a.out, t // pieces * a.width + at))


@kernel(samples=int, count=int, out=int32s)
def number_places(rank, size, barrier, a):
    """Write 0 … count − 1 for every sample."""
    begin, end = part_of(rank, size, a.samples * a.count)
    for i in range(begin, end):
        put(a.out, i, np.int32(i % a.count))


class SourceKernels(OperatorKernels):
    """Takes the samples in any form, of which only their number counts, and gives plain values."""

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        return list(given), False

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [None]


class ConstantKernels(SourceKernels):
    """fredsim.numerics.ops.sources.Constant of floats."""

    @classmethod
    def takes(cls, operator: Operator, shapes: Sequence[Shape]) -> bool:
        return isinstance(operator, Constant) and operator.dtype == "float32"

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        values = np.ascontiguousarray(self.operator.values.reshape(-1))
        plan.step(repeat_values, batch=BATCH, x=values, begin=-1, width=out.size, samples=out.samples, out=out)
        return out


class ParameterKernels(SourceKernels):
    """fredsim.numerics.ops.sources.Parameter."""

    shares = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        nothing, begin = np.zeros(1, np.float32), self.tensors["weight"].begin
        plan.step(repeat_values, batch=BATCH, x=nothing, begin=begin, width=out.size, samples=out.samples, out=out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        gradient_of_samples(plan, error, error.size, self.tensors["weight"])
        return [None]


class PositionsOfPlaces(SourceKernels):
    """fredsim.numerics.ops.positions.Positions."""

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        out = out.like(dtype=np.int32)
        plan.step(number_places, samples=out.samples, count=out.size, out=out)
        plan.ranges[id(out.buffer)] = (0, out.size - 1)
        return out
