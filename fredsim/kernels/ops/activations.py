"""Kernels of activations, functions of each element alone, and of products of elements.

The forward pass writes the slope beside the value, so that the backward pass is one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.jit.doubles import narrow, widen
from fredsim.jit.kernel import Fields, Kernel, with_functions
from fredsim.jit.pointers import floats, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import broadcast, load, load_part, store, store_part, zeros
from fredsim.kernels.arrays.functions import (
    circle_wide,
    erfc_wide,
    exp_vector,
    exp_wide,
    log1p_wide,
    log_wide,
    sigmoid_wide,
    sine_of,
    tanh_wide,
)
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.pointwise import (
    OF_TWO,
    ROWS,
    combine_rows,
    combined,
    multiply_rows,
    named,
    piece_of,
    spans,
)
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import clear_halo, part_of
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops import pointwise
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import (
    ELU_SMALL,
    GELU_CUBIC,
    LOG1P_SERIES,
    ROOT_1_BY_2PI,
    ROOT_2_BY_PI,
    ROOT_HALF,
)
from fredsim.numerics.rules import absolute, sqrt, where

__all__ = ["KERNELS"]

THREE_CUBIC, SIXTH = 3.0 * GELU_CUBIC, 1.0 / 6.0
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
    """Return 0, 1 or (x + 3)/6, and its slope."""
    wide = widen(x)
    value = where(wide <= -3.0, 0.0, where(wide >= 3.0, 1.0, (wide + 3.0) / 6.0))
    return narrow(value), where(x <= -3.0, 0.0, where(x >= 3.0, 0.0, SIXTH))


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
    return absolute(x), where(x > 0.0, 1.0, where(x < 0.0, -1.0, 0.0))


@subroutine(forceinline=True)
def exp_value(x, numbers, learn):
    """Return exp x, twice."""
    y = exp_vector(x)
    return y, y


@subroutine(forceinline=True)
def log_value(x, numbers, learn):
    """Return log x and its slope."""
    return narrow(log_wide(widen(x))), 1.0 / x


@subroutine(forceinline=True)
def log1p_value(x, numbers, learn):
    """Return log(1 + x) and its slope."""
    wide = widen(x)
    return narrow(log1p_wide(wide)), narrow(1.0 / (1.0 + wide))


@subroutine(forceinline=True)
def sin_value(x, numbers, learn):
    """Return sin x and its slope."""
    circle = circle_wide(widen(x))
    return narrow(sine_of(circle, 0)), narrow(sine_of(circle, 1))


@subroutine(forceinline=True)
def cos_value(x, numbers, learn):
    """Return cos x and its slope."""
    circle = circle_wide(widen(x))
    return narrow(sine_of(circle, 1)), narrow(sine_of(circle, 2))


@subroutine(forceinline=True)
def sqrt_value(x, numbers, learn):
    """Return √x and its slope."""
    y = sqrt(x)
    return y, 0.5 / y


@subroutine(forceinline=True)
def flat_sqrt_value(x, numbers, learn):
    """Return √x and its slope, which is 0 at 0."""
    y = sqrt(x)
    return y, where(x == 0.0, 0.0, 0.5 / y)


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


def activation(function: Any) -> Kernel:
    """Return the kernel of a function of each element."""
    return Kernel(with_functions(write_values, function=function), ACTIVATION)


ACTIVATIONS: dict[type[Operator], Kernel] = {
    pointwise.Abs: activation(abs_value),
    pointwise.Cos: activation(cos_value),
    pointwise.Elu: activation(elu_value),
    pointwise.Exp: activation(exp_value),
    pointwise.Gelu: activation(gelu_value),
    pointwise.Hardsigmoid: activation(hardsigmoid_value),
    pointwise.Hardswish: activation(hardswish_value),
    pointwise.Hardtanh: activation(hardtanh_value),
    pointwise.LeakyRelu: activation(leaky_relu_value),
    pointwise.Log: activation(log_value),
    pointwise.Log1p: activation(log1p_value),
    pointwise.Mish: activation(mish_value),
    pointwise.Reciprocal: activation(reciprocal_value),
    pointwise.Rsqrt: activation(rsqrt_value),
    pointwise.Scale: activation(scale_value),
    pointwise.Shift: activation(shift_value),
    pointwise.Sigmoid: activation(sigmoid_value),
    pointwise.Silu: activation(silu_value),
    pointwise.Sin: activation(sin_value),
    pointwise.Softplus: activation(softplus_value),
    pointwise.Sqrt: activation(sqrt_value),
    pointwise.Tanh: activation(tanh_value),
}
#: Those that a field chooses.
OTHERS: dict[Operator, Kernel] = {
    pointwise.Gelu("tanh"): activation(gelu_tanh_value),
    pointwise.Sqrt(flat=True): activation(flat_sqrt_value),
}
select_between = Kernel(with_functions(combine_rows, function=where_between), OF_TWO)


class ActivationKernels(OperatorKernels):
    """An activation; its slopes are kept."""

    operator: pointwise.Pointwise
    keeps_slope = True

    def _apply(self, plan: Steps, x: Value, out: Value, slope: Value | None = None) -> Value:
        """Add the step that writes the function of x to a value of its form, and its slopes if they are wanted."""
        kernel = OTHERS.get(self.operator, ACTIVATIONS[type(self.operator)])
        (own, slopes), sizes = spans(x, slope or out, out)
        plan.step(
            kernel, x=x, **named("x", own), numbers=np.array([*self.operator.numbers, 0], np.float32), **sizes, y=out,
            learn=slope is not None, slope=0 if slope is None else slope, **named("slope", slopes),
        )  # fmt: skip
        return out

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the slopes, if the error is multiplied by them."""
        self.slope = out.like(halo=0) if plan.learn and self.keeps_slope else None
        return self._apply(plan, inputs[0], out, self.slope)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        assert self.slope is not None
        return [combined(plan, multiply_rows, error, self.slope, self.inputs[0].error())]


class HardtanhKernels(ActivationKernels):
    """Hardtanh: the output, which lies between the bounds where the input does, is kept; of inclusive ones the input.

    The output says nothing about inclusive bounds, which it has outside of them, too.
    """

    operator: pointwise.Hardtanh

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the output or the input."""
        applied = self._apply(plan, inputs[0], out)
        self.kept = inputs[0] if self.operator.inclusive else applied
        return applied

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        passing = list(map(float, self.operator.passing))
        return [combined(plan, select_between, error, self.kept, self.inputs[0].error(), passing)]


class ScaleKernels(ActivationKernels):
    """Scale: the error is multiplied, too."""

    keeps_slope = False

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [self._apply(plan, error, self.inputs[0].error())]


class ShiftKernels(ScaleKernels):
    """Shift: the error goes on as it is."""

    passes_errors = True

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [error]


#: The kernels of each activation but ReLU.
KERNELS: dict[type[Operator], type[OperatorKernels]] = {
    **dict.fromkeys(ACTIVATIONS, ActivationKernels),
    pointwise.Hardtanh: HardtanhKernels,
    pointwise.Scale: ScaleKernels,
    pointwise.Shift: ShiftKernels,
}
