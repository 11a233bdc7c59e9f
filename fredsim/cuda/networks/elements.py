"""Activations, sums, products, extremes and choices of two values on a device: sources/networks/pointwise.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fredsim.cuda.array import strides_of
from fredsim.cuda.kernels import COMBINATIONS
from fredsim.cuda.networks.operator import OperatorKernels
from fredsim.cuda.networks.steps import Steps, Value, blocks_for
from fredsim.numerics.ops.arithmetic import Add, Keep, Maximum, Minimum, Mul
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import ACTIVATIONS, Gelu, Hardtanh, Pointwise, Relu, Sqrt

__all__ = ["AXES", "BothKernels", "PointwiseKernels", "add_values"]

#: The most axes of an array with its samples.
AXES = 8
#: Activations that a field chooses: GELU_TANH and FLAT_SQRT.
OTHERS: Sequence[Pointwise] = Gelu("tanh"), Sqrt(flat=True)
#: The names in COMBINATIONS of an operator, and of what an input's error is multiplied by.
VALUES: dict[type[Operator], str] = {
    Add: "sum", Keep: "kept", Mul: "product", Maximum: "larger", Minimum: "smaller"
}  # fmt: skip
SHARES: dict[type[Operator], str] = {Maximum: "share_of_larger", Minimum: "share_of_smaller"}


class PointwiseKernels(OperatorKernels):
    """The activations of fredsim.numerics.ops.pointwise."""

    operator: Pointwise

    def _add(self, plan: Steps, **fields: Any) -> None:
        operator, size = self.operator, self.inputs[0].size
        if isinstance(operator, Relu):
            plan.step("networks/pointwise", "rectify", blocks_for(-(-size // 4)), size=size, **fields)
            return
        # Numbers are those of the source's enumeration, whose last are those of OTHERS (fredsim.cuda.kernels).
        if operator in OTHERS:
            number = len(ACTIVATIONS) + OTHERS.index(operator)
        else:
            number = [*ACTIVATIONS.values()].index(type(operator))
        by, high, *_ = *operator.numbers, 0.0, 0.0
        if isinstance(operator, Hardtanh) and "errors" in fields:
            by, high = map(float, operator.passing)
        plan.step(
            "networks/pointwise", "apply_function", blocks_for(size), size=size, by=by, high=high, operation=number,
            **fields,
        )  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        self._add(plan, x=inputs[0], out=out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].like()
        self._add(plan, x=self.inputs[0], errors=error, out=sent)
        return [sent]


class BothKernels(OperatorKernels):
    """The operators of fredsim.numerics.ops.arithmetic."""

    axes = AXES - 1

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        a, b = inputs
        _combine(plan, a, b, out, VALUES[type(self.operator)])
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Add the errors, or their products with a factor, summed where an input was repeated."""
        if isinstance(self.operator, Keep):
            chosen, wanted = error.like(), [True, False]
            _combine(plan, error, self.inputs[1], chosen, "kept")
            error = chosen
        sent: list[Value | None] = []
        for own, other, wants in zip(self.inputs, reversed(self.inputs), wanted, strict=True):
            factor = self._factor(plan, own, other, error) if wants else None
            if not wants or (factor is None and own.shape == error.shape):
                sent.append(error if wants else None)
                continue
            value = own.like()
            _combine(plan, error, factor, value, "product")
            sent.append(value)
        return sent

    def _factor(self, plan: Steps, own: Value, other: Value, error: Value) -> Value | None:
        """Return by what the error of an input is multiplied: the other one, or a share of each; None if by nothing."""
        if type(self.operator) not in SHARES:
            return other if isinstance(self.operator, Mul) else None
        share = error.like()
        _combine(plan, own, other, share, SHARES[type(self.operator)])
        return share


def add_values(plan: Steps, before: Value, more: Value) -> Value:
    """Add a launch that adds two values of one shape; return the sum."""
    out = before.like()
    _combine(plan, before, more, out, "sum")
    return out


def _combine(plan: Steps, a: Value, b: Value | None, out: Value, operation: str) -> None:
    """Add a launch that makes one of COMBINATIONS of two values, summed along axes that the output lacks."""
    if b is not None and a.shape == b.shape == out.shape:
        plan.step(
            "networks/pointwise", "combine_alike", blocks_for(-(-out.size // 4)), a=a, b=b, out=out, size=out.size,
            operation=COMBINATIONS.index(operation),
        )  # fmt: skip
        return
    full = (plan.mu, *a.shape) if b is None else (plan.mu, *map(max, a.shape, b.shape))
    kept = (plan.mu, *out.shape)
    fields: dict[str, Any] = {}
    for name, value in (("a", a), ("b", b)):
        shape = kept if value is None else (plan.mu, *value.shape)
        steps = [0 if size == 1 else step for size, step in zip(shape, strides_of(shape), strict=True)]
        fields |= {
            name: 0 if value is None else value, f"{name}_size": 0 if value is None else value.size,
            f"{name}_stride": _padded([step * (size > 1) for step, size in zip(steps, kept, strict=True)], 0),
            f"{name}_step": _padded(steps, 0),
        }  # fmt: skip
    repeats = [size if left == 1 else 1 for size, left in zip(full, kept, strict=True)]
    plan.step(
        "networks/pointwise", "combine", blocks_for(out.size), out=out, size=out.size, shape=_padded(kept, 1),
        repeats=_padded(repeats, 1), operation=COMBINATIONS.index(operation), **fields,
    )  # fmt: skip


def _padded(numbers: Sequence[int], by: int) -> list[int]:
    return [by] * (AXES - len(numbers)) + list(numbers)
