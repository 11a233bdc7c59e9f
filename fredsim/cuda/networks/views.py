"""Other shapes and orders, parts, and what is the same for all samples, on a device: sources/networks/copies.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fredsim.cuda.array import strides_of
from fredsim.cuda.networks.elements import AXES
from fredsim.cuda.networks.operator import OperatorKernels
from fredsim.cuda.networks.steps import Given, Steps, Value, blocks_for
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.sources import Constant

__all__ = ["CatKernels", "PermuteKernels", "ReshapeKernels", "SliceKernels", "SourceKernels"]

FAMILY = "networks/copies"


class ReshapeKernels(OperatorKernels):
    """fredsim.numerics.ops.views.Reshape: the same memory."""

    copies = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        return replace(inputs[0], shape=out.shape)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [replace(error, shape=self.shapes[0])]


class DetachKernels(ReshapeKernels):
    """fredsim.numerics.ops.views.Detach: the same memory."""

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [None]


class PermuteKernels(OperatorKernels):
    """fredsim.numerics.ops.views.Permute."""

    copies = True
    axes = AXES - 1

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        _permute(plan, inputs[0], out, self.operator.axes)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].like()
        _permute(plan, error, sent, [int(axis) for axis in np.argsort(self.operator.axes)])
        return [sent]


def _permute(plan: Steps, x: Value, out: Value, axes: Sequence[int]) -> None:
    strides, shape = strides_of((plan.mu, *x.shape)), (plan.mu, *out.shape)
    stride = [strides[0], *(strides[1 + axis] for axis in axes)]
    padding = AXES - len(shape)
    plan.step(
        FAMILY, "permute", blocks_for(out.size), x=x, out=out, size=out.size, stride=[0] * padding + stride,
        shape=[1] * padding + list(shape),
    )  # fmt: skip


def _section(plan: Steps, name: str, x: Value, out: Value, axis: int, begin: int, *, fills: bool = False) -> None:
    """Add the copy of a part to its place along an axis of a sample, or from it."""
    part, whole = (x, out) if name == "put_section" else (out, x)
    plan.step(
        FAMILY, name, blocks_for(out.size), x=x, out=out, outer=plan.mu * math.prod(part.shape[:axis]),
        inner=math.prod(part.shape[axis + 1 :]), whole=whole.shape[axis], begin=begin, count=part.shape[axis],
        fills=int(fills),
    )  # fmt: skip


class SliceKernels(OperatorKernels):
    """fredsim.numerics.ops.views.Slice."""

    copies = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        _section(plan, "take_section", inputs[0], out, self.operator.axis, self.operator.begin)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].like()
        _section(plan, "put_section", error, sent, self.operator.axis, self.operator.begin, fills=True)
        return [sent]


class CatKernels(OperatorKernels):
    """fredsim.numerics.ops.views.Cat."""

    copies = True

    def _begins(self) -> list[int]:
        sizes = [shape[self.operator.axis] for shape in self.shapes]
        return [sum(sizes[:number]) for number in range(len(sizes))]

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        for value, begin in zip(inputs, self._begins(), strict=True):
            _section(plan, "put_section", value, out, self.operator.axis, begin)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = [value.like() if wants else None for value, wants in zip(self.inputs, wanted, strict=True)]
        for value, begin in zip(sent, self._begins(), strict=True):
            if value is not None:
                _section(plan, "take_section", error, value, self.operator.axis, begin)
        return list(sent)


class SourceKernels(OperatorKernels):
    """Constant and Parameter of fredsim.numerics.ops.sources, and Positions."""

    copies = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add a copy of the same numbers for each sample."""
        operator, at, values = self.operator, 0, None
        if isinstance(operator, Positions):
            out = replace(out, whole=True, bounds=(0, operator.count - 1))
            values = np.arange(operator.count, dtype=np.int32)
        elif isinstance(operator, Constant):
            out = replace(out, whole=operator.dtype == "int64")
            values = operator.values.astype(np.int32 if out.whole else np.float32)
            if out.whole:
                out = replace(out, bounds=(int(values.min()), int(values.max())))
        else:
            at = self.tensors["weight"].begin
            out = replace(out, whole=False)
        plan.step(
            FAMILY, "repeat", blocks_for(out.size), values=0 if values is None else plan.table(values),
            held=Given.HELD, out=out, at=at, mu=plan.mu, size=out.each,
        )  # fmt: skip
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Let a sample's own gradient of a tensor be its error."""
        if self.tensors:
            plan.mean_samples(error.buffer, [self.tensors["weight"]], plan.mu)
        return [None] * len(self.inputs)
