"""Kernels of activations, functions of each element alone, and of products of elements.

The forward pass writes the slope beside the value, so that the backward pass is one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fredsim.jit.doubles import narrow, widen
from fredsim.jit.kernel import Fields, Kernel, kernel, with_functions
from fredsim.jit.pointers import floats, item
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import share
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.arrays.functions import erfc_wide, exp_wide, sigmoid_wide, tanh_wide
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.pointwise import GELU_CUBIC, ROOT_1_BY_2PI, ROOT_2_BY_PI, ROOT_HALF
from fredsim.numerics.rules import where

__all__ = ["GeluKernels", "LeakyReluKernels", "MulKernels", "SigmoidKernels", "SiluKernels", "TanhKernels"]

THREE_CUBIC = 3.0 * GELU_CUBIC

#: Values x (count,), and where to write the values of a function and, if `learn`, its slopes. `numbers` are others
#: that the function takes.
ACTIVATION = Fields(x=floats, count=int, numbers=floats, y=floats, learn=int, slope=floats)


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


function: Any = None  # a placeholder: each kernel has its own


def write_values(rank, size, barrier, a):
    """Write a function's values and, if they are wanted, its slopes, of this thread's share."""
    i, end = share(rank, size, a.count)
    while i < end:
        y, slope = function(load(zeros(16), a.x, i), a.numbers, a.learn)
        store(a.y, i, y)
        if a.learn:
            store(a.slope, i, slope)
        i += 16


tanh, sigmoid, silu, leaky_relu, gelu, gelu_tanh = (
    Kernel(with_functions(write_values, function=value), ACTIVATION)
    for value in (tanh_value, sigmoid_value, silu_value, leaky_relu_value, gelu_value, gelu_tanh_value)
)


@kernel(x=floats, y=floats, count=int, out=floats)
def multiply(rank, size, barrier, a):
    """Write x·y, element by element."""
    i, end = share(rank, size, a.count)
    while i < end:
        store(a.out, i, load(zeros(16), a.x, i) * load(zeros(16), a.y, i))
        i += 16


def add_product(plan: Steps, x: Value, y: Value, out: Value) -> Value:
    """Add the step that writes x·y to a value of their shape; return that."""
    plan.step(multiply, x=x, y=y, count=out.samples * out.size, out=out)
    return out


class ActivationKernels(OperatorKernels):
    """An activation, of plain values."""

    function: ClassVar[Kernel]

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take and give plain values."""
        return [False], False

    def _function(self) -> Kernel:
        return self.function

    def _numbers(self) -> list[float]:
        return []

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep the slopes."""
        self.slope = out.like()
        numbers = np.array([*self._numbers(), 0], np.float32)
        plan.step(
            self._function(), x=inputs[0], count=out.samples * out.size, numbers=numbers, y=out, learn=plan.learn,
            slope=self.slope if plan.learn else 0,
        )  # fmt: skip
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Multiply by the slopes."""
        return [add_product(plan, error, self.slope, self.inputs[0].error())]


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


class MulKernels(OperatorKernels):
    """fredsim.numerics.ops.arithmetic.Mul of two plain values of one shape."""

    @classmethod
    def takes(cls, operator: object, shapes: Sequence[Shape]) -> bool:
        """Take two equal shapes."""
        return shapes[0] == shapes[1]

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take and give plain values."""
        return [False] * 2, False

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Multiply."""
        return add_product(plan, *inputs, out)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Multiply the error by the other input."""
        a, b = self.inputs
        others = zip(self.inputs, (b, a), wanted, strict=True)
        return [add_product(plan, error, other, x.error()) if wants else None for x, other, wants in others]
