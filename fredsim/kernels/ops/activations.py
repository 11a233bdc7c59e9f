"""Kernels of activations, functions of each element alone, and of products of elements.

The forward pass writes the slope beside the value, so that the backward pass is one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fredsim.jit.doubles import narrow, widen
from fredsim.jit.kernel import Fields, Kernel, with_functions
from fredsim.jit.pointers import floats, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import broadcast, load, load_part, store, store_part, zeros
from fredsim.kernels.arrays.functions import erfc_wide, exp_vector, exp_wide, sigmoid_wide, tanh_wide
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.pointwise import (
    OF_TWO,
    ROWS,
    combine_rows,
    combined,
    multiply_values,
    named,
    piece_of,
    spans,
)
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import clear_halo, part_of
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.pointwise import (
    ELU_SMALL,
    GELU_CUBIC,
    LOG1P_SERIES,
    ROOT_1_BY_2PI,
    ROOT_2_BY_PI,
    ROOT_HALF,
)
from fredsim.numerics.rules import absolute, sqrt, where

__all__ = [
    "AbsKernels", "EluKernels", "ExpKernels", "GeluKernels", "HardsigmoidKernels", "HardswishKernels",
    "HardtanhKernels", "LeakyReluKernels", "MishKernels", "ReciprocalKernels", "RsqrtKernels", "ScaleKernels",
    "ShiftKernels", "SigmoidKernels", "SiluKernels", "SoftplusKernels", "SqrtKernels", "TanhKernels",
]  # fmt: skip

THREE_CUBIC = 3.0 * GELU_CUBIC
L0, L1, L2, L3, L4, L5, L6, L7, L8, L9, L10, L11 = LOG1P_SERIES

#: Values x, and where to write the values of a function and, if `learn`, its slopes. `numbers` are others that the
#: function takes.
ACTIVATION = Fields(
    **ROWS, x=floats, x_sample=int, x_row=int, numbers=floats, y=floats, learn=int, slope=floats, slope_sample=int,
    slope_row=int,
)  # fmt: skip


@subroutine(forceinline=True)
def tanh_value(x, numbers, learn):
    """Return tanh and its slope: fredsim.numerics.ops.pointwise.Tanh, as the others here."""
    y = narrow(tanh_wide(widen(x)))
    return y, 1.0 - y * y


@subroutine(forceinline=True)
def sigmoid_value(x, numbers, learn):
    """Return σ and its slope."""
    y = narrow(sigmoid_wide(widen(x)))
    return y, y * (1.0 - y)


@subroutine(forceinline=True)
def silu_value(x, numbers, learn):
    """Return x·σ(x) and its slope."""
    wide = widen(x)
    s = sigmoid_wide(wide)
    return narrow(wide * s), narrow(s * (1.0 + wide * (1.0 - s)))


@subroutine(forceinline=True)
def leaky_relu_value(x, numbers, learn):
    """Return x or x·numbers[0], and 1 or numbers[0]."""
    below = item(numbers, 0)
    return where(x > 0.0, x, x * below), where(x > 0.0, 1.0, below)


@subroutine(forceinline=True)
def gelu_value(x, numbers, learn):
    """Return x·Φ(x) and its slope."""
    wide = widen(x)
    part = 0.5 * erfc_wide(-wide * ROOT_HALF)
    slope = x
    if learn:
        slope = narrow(part + wide * (ROOT_1_BY_2PI * exp_wide(-0.5 * (wide * wide))))
    return narrow(wide * part), slope


@subroutine(forceinline=True)
def gelu_tanh_value(x, numbers, learn):
    """Return the approximation of x·Φ(x) by tanh, and its slope."""
    wide = widen(x)
    t = tanh_wide(ROOT_2_BY_PI * (wide + GELU_CUBIC * (wide * wide * wide)))
    rate = ROOT_2_BY_PI * (1.0 + THREE_CUBIC * (wide * wide))
    part = 0.5 * (1.0 + t)
    return narrow(wide * part), narrow(part + 0.5 * wide * (1.0 - t * t) * rate)


@subroutine(forceinline=True)
def elu_value(x, numbers, learn):
    """Return x or numbers[0]·(exp(x) − 1), and its slope."""
    wide, alpha = widen(x), widen(broadcast(16, item(numbers, 0)))
    e = exp_wide(where(wide > 0.0, 0.0, wide))
    below = where(wide > -ELU_SMALL, wide * (1.0 + 0.5 * wide), e - 1.0)
    return narrow(where(wide > 0.0, wide, alpha * below)), narrow(where(wide > 0.0, 1.0, alpha * e))


@subroutine(forceinline=True)
def hardtanh_value(x, numbers, learn):
    """Return x between numbers[0] and numbers[1]; its errors are selected by the result."""
    low, high = broadcast(16, item(numbers, 0)), broadcast(16, item(numbers, 1))
    return where(x <= low, low, where(x >= high, high, x)), x


@subroutine(forceinline=True)
def hardsigmoid_value(x, numbers, learn):
    """Return 0, 1 or (x + 3)/6, and its slope, whose value is numbers[0]."""
    wide, like = widen(x), zeros(16)
    value = where(wide <= -3.0, 0.0, where(wide >= 3.0, 1.0, (wide + 3.0) / 6.0))
    slope = broadcast(16, item(numbers, 0))
    return narrow(value), where(x <= -3.0, like, where(x >= 3.0, like, slope))


@subroutine(forceinline=True)
def hardswish_value(x, numbers, learn):
    """Return 0, x or x·(x + 3)/6, and its slope."""
    wide = widen(x)
    value = where(wide <= -3.0, 0.0, where(wide >= 3.0, wide, wide * (wide + 3.0) / 6.0))
    return narrow(value), narrow(where(wide < -3.0, 0.0, where(wide > 3.0, 1.0, wide / 3.0 + 0.5)))


@subroutine(forceinline=True)
def rsqrt_value(x, numbers, learn):
    """Return 1/√x and its slope."""
    r = 1.0 / sqrt(x)
    return r, r * r * r * -0.5


@subroutine(forceinline=True)
def abs_value(x, numbers, learn):
    """Return abs x and its slope."""
    like = zeros(16)
    return absolute(x), where(x > 0.0, broadcast(16, 1.0), where(x < 0.0, broadcast(16, -1.0), like))


@subroutine(forceinline=True)
def exp_value(x, numbers, learn):
    """Return exp x, twice."""
    y = exp_vector(x)
    return y, y


@subroutine(forceinline=True)
def sqrt_value(x, numbers, learn):
    """Return √x and its slope."""
    y = sqrt(x)
    return y, 0.5 / y


@subroutine(forceinline=True)
def reciprocal_value(x, numbers, learn):
    """Return 1/x and its slope."""
    y = 1.0 / x
    return y, -(y * y)


@subroutine(forceinline=True)
def softplus_value(x, numbers, learn):
    """Return log(1 + exp(x)) and its slope."""
    wide = widen(x)
    e = exp_wide(-absolute(wide))
    s = e / (2.0 + e)
    z = s * s
    series = L0 + z * (L1 + z * (L2 + z * (L3 + z * (L4 + z * (L5 + z * (L6 + z * (L7 + z * (L8 + z * (
        L9 + z * (L10 + z * L11))))))))))  # fmt: skip
    slope = x
    if learn:
        slope = narrow(sigmoid_wide(wide))
    return narrow(where(wide < 0.0, 0.0, wide) + 2.0 * s * series), slope


@subroutine(forceinline=True)
def mish_value(x, numbers, learn):
    """Return x·tanh(log(1 + exp(x))) and its slope."""
    wide = widen(x)
    e = exp_wide(-absolute(wide))
    below, above = e * (e + 2.0), 1.0 + 2.0 * e
    t = where(wide < 0.0, below / (below + 2.0), above / (above + 2.0 * (e * e)))
    slope = x
    if learn:
        slope = narrow(t + wide * (sigmoid_wide(wide) * (1.0 - t * t)))
    return narrow(wide * t), slope


@subroutine(forceinline=True)
def scale_value(x, numbers, learn):
    """Return x·numbers[0]."""
    return x * item(numbers, 0), x


@subroutine(forceinline=True)
def shift_value(x, numbers, learn):
    """Return x + numbers[0]."""
    return x + item(numbers, 0), x


@subroutine(forceinline=True)
def where_between(x, y, numbers):
    """Return +0 where y is numbers[0] at most, or numbers[1] at least, else x."""
    low, high, like = broadcast(16, item(numbers, 0)), broadcast(16, item(numbers, 1)), zeros(16)
    return where(y <= low, like, where(y >= high, like, x))


function: Any = None  # a placeholder: each kernel has its own


def write_values(rank, size, barrier, a):
    """Write a function's values and, if they are wanted, its slopes, of this thread's rows."""
    begin, end = part_of(rank, size, a.samples * a.rows * a.pieces)
    for t in range(begin, end):
        i, r, k, last = piece_of(a, t)
        x, out = shift(a.x, i * a.x_sample + r * a.x_row), shift(a.y, i * a.sample + r * a.row)
        slopes = shift(a.slope, i * a.slope_sample + r * a.slope_row)
        if k == 0:
            clear_halo(out, r == 0, a.width, a.gap)
        while k + 16 <= last:
            y, slope = function(load(zeros(16), x, k), a.numbers, a.learn)
            store(out, k, y)
            if a.learn:
                store(slopes, k, slope)
            k += 16
        if k < last:
            y, slope = function(load_part(zeros(16), x, k, last - k), a.numbers, a.learn)
            store_part(out, k, y, last - k)
            if a.learn:
                store_part(slopes, k, slope, last - k)


(
    tanh, sigmoid, silu, leaky_relu, gelu, gelu_tanh, elu, hardtanh, hardsigmoid, hardswish, rsqrt, scale, shifted,
    absolutes, exponentials, roots, reciprocals, softplus, mish,
) = (
    Kernel(with_functions(write_values, function=value), ACTIVATION)
    for value in (
        tanh_value, sigmoid_value, silu_value, leaky_relu_value, gelu_value, gelu_tanh_value, elu_value,
        hardtanh_value, hardsigmoid_value, hardswish_value, rsqrt_value, scale_value, shift_value,
        abs_value, exp_value, sqrt_value, reciprocal_value, softplus_value, mish_value,
    )
)  # fmt: skip
select_between = Kernel(with_functions(combine_rows, function=where_between), OF_TWO)


def apply(plan: Steps, kernel: Kernel, x: Value, numbers: Sequence[float], out: Value, slope: Value | None) -> Value:
    """Add the step that writes a function of x to a value of its form, and its slopes if they are wanted."""
    (own, slopes), sizes = spans(x, slope or out, out)
    plan.step(
        kernel, x=x, **named("x", own), numbers=np.array([*numbers, 0], np.float32), **sizes, y=out,
        learn=slope is not None, slope=0 if slope is None else slope, **named("slope", slopes),
    )  # fmt: skip
    return out


class ActivationKernels(OperatorKernels):
    """An activation."""

    function: ClassVar[Kernel]

    def _function(self) -> Kernel:
        return self.function

    def _numbers(self) -> list[float]:
        return []

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the slopes."""
        self.slope = out.like(halo=0) if plan.learn else None
        return apply(plan, self._function(), inputs[0], self._numbers(), out, self.slope)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Multiply by the slopes."""
        assert self.slope is not None
        return [multiply_values(plan, error, self.slope, self.inputs[0].error())]


class TanhKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Tanh."""

    function = tanh


class SigmoidKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Sigmoid."""

    function = sigmoid


class SiluKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Silu."""

    function = silu


class LeakyReluKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.LeakyRelu."""

    function = leaky_relu

    def _numbers(self) -> list[float]:
        return [self.operator.slope_below]


class GeluKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Gelu."""

    def _function(self) -> Kernel:
        return gelu if self.operator.approximate == "none" else gelu_tanh


class EluKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Elu."""

    function = elu

    def _numbers(self) -> list[float]:
        return [self.operator.alpha]


class HardsigmoidKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Hardsigmoid."""

    function = hardsigmoid

    def _numbers(self) -> list[float]:
        return [1.0 / 6.0]


class HardswishKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Hardswish."""

    function = hardswish


class RsqrtKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Rsqrt."""

    function = rsqrt


class AbsKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Abs."""

    function = absolutes


class ExpKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Exp."""

    function = exponentials


class SqrtKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Sqrt."""

    function = roots


class ReciprocalKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Reciprocal."""

    function = reciprocals


class SoftplusKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Softplus."""

    function = softplus


class MishKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Mish."""

    function = mish


class HardtanhKernels(ActivationKernels):
    """fredsim.numerics.ops.pointwise.Hardtanh."""

    function = hardtanh

    def _numbers(self) -> list[float]:
        return [self.operator.low, self.operator.high]

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the output, which lies between the bounds where the input does."""
        self.out = apply(plan, self.function, inputs[0], self._numbers(), out, None)
        return self.out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Select."""
        return [combined(plan, select_between, error, self.out, self.inputs[0].error(), self._numbers())]


class ScaleKernels(OperatorKernels):
    """fredsim.numerics.ops.pointwise.Scale."""

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Multiply."""
        return apply(plan, scale, inputs[0], [self.operator.by], out, None)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Multiply the error."""
        return [apply(plan, scale, error, [self.operator.by], self.inputs[0].error(), None)]


class ShiftKernels(OperatorKernels):
    """fredsim.numerics.ops.pointwise.Shift: the error goes on as it is."""

    passes_errors = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add."""
        return apply(plan, shifted, inputs[0], [self.operator.by], out, None)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Return the error."""
        return [error]
