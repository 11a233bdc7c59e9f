"""Activations: functions of each element alone.

A value is computed in float64 and rounded once; a derivative likewise, and the error is multiplied by it in float32.
relu, leaky_relu, hardtanh, abs, exp, log, sqrt, rsqrt, reciprocal, tanh and sigmoid need float32 alone for the latter.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fredsim.numerics.elementary import erfc64, exp32, exp64, log1p64, log32, sigmoid64, sine64, tanh64
from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors, quiet

__all__ = [
    "ACTIVATIONS", "Abs", "Cos", "Elu", "Exp", "Gelu", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyRelu", "Log",
    "Log1p", "Mish", "Pointwise", "Reciprocal", "Relu", "Rsqrt", "Scale", "Shift", "Sigmoid", "Silu", "Sin", "Softplus",
    "Sqrt", "Tanh",
]  # fmt: skip

ZERO, ONE = np.float32(0), np.float32(1)
ROOT_HALF = 0.70710678118654752440
ROOT_2_BY_PI = 0.79788456080286535588
ROOT_1_BY_2PI = 0.39894228040143267794
GELU_CUBIC = 0.044715
LOG1P_SERIES = tuple(1.0 / (2 * n + 1) for n in range(12))
ELU_SMALL = 2.0**-20  # below it exp(x) − 1 in float64 would lose bits that float32 has


class Pointwise(Operator):
    """y = f(x) for each element; the input error is δ·f'(x)."""

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    @property
    def numbers(self) -> list[float]:
        """The numbers that it takes besides x, in the order of its fields."""
        given = vars(self).values()
        return [number for number in given if isinstance(number, int | float) and not isinstance(number, bool)]

    @abstractmethod
    def _value(self, x: Array) -> Array:
        """Return f(x), float32."""

    @abstractmethod
    def _slope(self, x: Array) -> Array:
        """Return f'(x), float32."""

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Array]:
        """Keep x."""
        with quiet():
            return self._value(inputs[0]), inputs[0]

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        """Return δ·f'(x)."""
        with quiet():
            return [error * self._slope(kept)]


@dataclass(frozen=True)
class Relu(Pointwise):
    """x if x > 0, else +0; the error passes where x > 0, else it is +0."""

    def _value(self, x: Array) -> Array:
        return np.where(x > 0, x, ZERO)

    def _slope(self, x: Array) -> Array:
        return np.where(x > 0, ONE, ZERO)

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        """Select instead of multiplying: an infinite error of a dead unit is +0."""
        return [np.where(kept > 0, error, ZERO)]


@dataclass(frozen=True)
class LeakyRelu(Pointwise):
    """x if x > 0, else x·`slope_below`, which is rounded to float32."""

    slope_below: float = 0.01

    def _value(self, x: Array) -> Array:
        return np.where(x > 0, x, x * np.float32(self.slope_below))

    def _slope(self, x: Array) -> Array:
        return np.where(x > 0, ONE, np.float32(self.slope_below))


@dataclass(frozen=True)
class Hardtanh(Pointwise):
    """x if `low` < x < `high`, else the nearer of them, rounded to float32; ReLU6 is that of 0 and 6.

    The error passes where low < x < high, and if `inclusive` also where x is one of them, else it is +0; a NaN stays
    one, and its error passes.
    """

    added: ClassVar[frozenset[str]] = frozenset({"inclusive"})

    low: float = -1.0
    high: float = 1.0
    inclusive: bool = False

    def shape(self, *shapes: Shape) -> Shape:
        """Return the input's shape. Raises ValueError unless low < high."""
        if not np.float32(self.low) < np.float32(self.high):
            raise ValueError(f"hardtanh: low = {self.low} is not below high = {self.high}")
        return shapes[0]

    def _value(self, x: Array) -> Array:
        low, high = np.float32(self.low), np.float32(self.high)
        return np.where(x <= low, low, np.where(x >= high, high, x))

    @property
    def passing(self) -> tuple[np.float32, np.float32]:
        """The bounds between which the error passes, themselves apart."""
        low, high = np.float32(self.low), np.float32(self.high)
        if not self.inclusive:
            return low, high
        with quiet():
            return np.nextafter(low, np.float32(-np.inf)), np.nextafter(high, np.float32(np.inf))

    def _slope(self, x: Array) -> Array:
        low, high = self.passing
        return np.where((x <= low) | (x >= high), ZERO, ONE)

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        """Select instead of multiplying, as Relu does."""
        return [np.where(self._slope(kept) > 0, error, ZERO)]


@dataclass(frozen=True)
class Scale(Pointwise):
    """x·`by`, which is rounded to float32."""

    by: float

    def _value(self, x: Array) -> Array:
        return x * np.float32(self.by)

    def _slope(self, x: Array) -> Array:
        return np.full_like(x, self.by)


@dataclass(frozen=True)
class Shift(Pointwise):
    """x + `by`, which is rounded to float32."""

    by: float

    def _value(self, x: Array) -> Array:
        return x + np.float32(self.by)

    def _slope(self, x: Array) -> Array:
        return np.ones_like(x)


@dataclass(frozen=True)
class Tanh(Pointwise):
    """tanh x; the derivative is 1 − y·y in float32."""

    def _value(self, x: Array) -> Array:
        return tanh64(x).astype(np.float32)

    def _slope(self, x: Array) -> Array:
        y = self._value(x)
        return ONE - y * y


@dataclass(frozen=True)
class Sigmoid(Pointwise):
    """1/(1 + exp(−x)); the derivative is y·(1 − y) in float32."""

    def _value(self, x: Array) -> Array:
        return sigmoid64(x).astype(np.float32)

    def _slope(self, x: Array) -> Array:
        y = self._value(x)
        return y * (ONE - y)


class _Wide(Pointwise):
    """A function of which value and derivative are computed in float64, and each rounded once."""

    @abstractmethod
    def _wide_value(self, x: Array) -> Array:
        """Return f(x), float64, of float64."""

    @abstractmethod
    def _wide_slope(self, x: Array) -> Array:
        """Return f'(x), float64, of float64."""

    def _value(self, x: Array) -> Array:
        return self._wide_value(x.astype(np.float64)).astype(np.float32)

    def _slope(self, x: Array) -> Array:
        return self._wide_slope(x.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class Silu(_Wide):
    """x·σ(x); the derivative is σ·(1 + x·(1 − σ))."""

    def _wide_value(self, x: Array) -> Array:
        return x * sigmoid64(x)

    def _wide_slope(self, x: Array) -> Array:
        s = sigmoid64(x)
        return s * (1.0 + x * (1.0 - s))


@dataclass(frozen=True)
class Hardsigmoid(_Wide):
    """0 from −3 down, 1 from 3 up, (x + 3)/6 between; the derivative is 1/6 there, else 0 (Howard et al. 2019)."""

    def _wide_value(self, x: Array) -> Array:
        return np.where(x <= -3.0, 0.0, np.where(x >= 3.0, 1.0, (x + 3.0) / 6.0))

    def _wide_slope(self, x: Array) -> Array:
        return np.where((x <= -3.0) | (x >= 3.0), 0.0, 1.0 / 6.0)


@dataclass(frozen=True)
class Hardswish(_Wide):
    """0 from −3 down, x from 3 up, x·(x + 3)/6 between (Howard et al. 2019).

    The derivative is 0 below −3, 1 above 3, x/3 + ½ else.
    """

    def _wide_value(self, x: Array) -> Array:
        return np.where(x <= -3.0, 0.0, np.where(x >= 3.0, x, x * (x + 3.0) / 6.0))

    def _wide_slope(self, x: Array) -> Array:
        return np.where(x < -3.0, 0.0, np.where(x > 3.0, 1.0, x / 3.0 + 0.5))


@dataclass(frozen=True)
class Elu(_Wide):
    """x if x > 0, else α·(exp(x) − 1), α being `alpha` rounded to float32; the derivative is 1, else α·exp(x).

    If x > −2⁻²⁰, exp(x) − 1 is x·(1 + ½·x).
    """

    alpha: float = 1.0

    def _wide_value(self, x: Array) -> Array:
        below = np.where(x > -ELU_SMALL, x * (1.0 + 0.5 * x), exp64(x) - 1.0)
        return np.where(x > 0.0, x, np.float64(np.float32(self.alpha)) * below)

    def _wide_slope(self, x: Array) -> Array:
        return np.where(x > 0.0, 1.0, np.float64(np.float32(self.alpha)) * exp64(x))


@dataclass(frozen=True)
class Rsqrt(Pointwise):
    """r = 1/√x, both operations rounded; the derivative is (r·r)·r·(−½)."""

    def _value(self, x: Array) -> Array:
        return np.asarray(ONE / np.sqrt(x))

    def _slope(self, x: Array) -> Array:
        r = self._value(x)
        return r * r * r * np.float32(-0.5)


@dataclass(frozen=True)
class Abs(Pointwise):
    """x without its sign; the derivative is 1 where x > 0, −1 where x < 0, else 0."""

    def _value(self, x: Array) -> Array:
        return np.abs(x)

    def _slope(self, x: Array) -> Array:
        return np.where(x > 0, ONE, np.where(x < 0, -ONE, ZERO))


@dataclass(frozen=True)
class Exp(Pointwise):
    """exp x, which is its derivative, too."""

    def _value(self, x: Array) -> Array:
        return exp32(x)

    _slope = _value


@dataclass(frozen=True)
class Log(Pointwise):
    """log x, NaN below 0, −∞ at 0; the derivative is 1/x."""

    def _value(self, x: Array) -> Array:
        return log32(x)

    def _slope(self, x: Array) -> Array:
        return np.asarray(ONE / x)


@dataclass(frozen=True)
class Log1p(_Wide):
    """log(1 + x); the derivative is 1/(1 + x)."""

    def _wide_value(self, x: Array) -> Array:
        return log1p64(x)

    def _wide_slope(self, x: Array) -> Array:
        return np.asarray(1.0 / (1.0 + x))


@dataclass(frozen=True)
class Sin(_Wide):
    """sin x; the derivative is cos x."""

    def _wide_value(self, x: Array) -> Array:
        return sine64(x)

    def _wide_slope(self, x: Array) -> Array:
        return sine64(x, 1)


@dataclass(frozen=True)
class Cos(_Wide):
    """cos x; the derivative is −sin x."""

    def _wide_value(self, x: Array) -> Array:
        return sine64(x, 1)

    def _wide_slope(self, x: Array) -> Array:
        return sine64(x, 2)


@dataclass(frozen=True)
class Sqrt(Pointwise):
    """y = √x; the derivative is ½/y, or, if `flat` and x = 0, 0, as that of a vector's length is in PyTorch."""

    added: ClassVar[frozenset[str]] = frozenset({"flat"})

    flat: bool = False

    def _value(self, x: Array) -> Array:
        return np.asarray(np.sqrt(x))

    def _slope(self, x: Array) -> Array:
        slope = np.asarray(np.float32(0.5) / np.sqrt(x))
        return np.where(x == 0, ZERO, slope) if self.flat else slope


@dataclass(frozen=True)
class Reciprocal(Pointwise):
    """y = 1/x; the derivative is −(y·y)."""

    def _value(self, x: Array) -> Array:
        return np.asarray(ONE / x)

    def _slope(self, x: Array) -> Array:
        y = self._value(x)
        return -(y * y)


@dataclass(frozen=True)
class Softplus(_Wide):
    """log(1 + exp(x)) as max(x, 0) + 2·s·(1 + s²/3 + … + s²²/23), s = e/(2 + e), e = exp(−|x|); the derivative is σ."""

    def _wide_value(self, x: Array) -> Array:
        e = exp64(-np.abs(x))
        s = e / (2.0 + e)
        square, series = s * s, np.full_like(s, LOG1P_SERIES[-1])
        for c in LOG1P_SERIES[-2::-1]:
            series = c + square * series
        return np.where(x < 0.0, 0.0, x) + 2.0 * s * series

    def _wide_slope(self, x: Array) -> Array:
        return sigmoid64(x)


@dataclass(frozen=True)
class Mish(_Wide):
    """x·t, t = tanh(log(1 + exp(x))) (Misra 2019); the derivative is t + x·(σ·(1 − t·t)).

    With e = exp(−|x|), t is (1 + 2·e)/(1 + 2·e + 2·(e·e)), or, where x < 0, n/(n + 2), n = e·(e + 2).
    """

    @staticmethod
    def _share(x: Array) -> Array:
        e = exp64(-np.abs(x))
        below = e * (e + 2.0)
        above = 1.0 + 2.0 * e
        return np.where(x < 0.0, below / (below + 2.0), above / (above + 2.0 * (e * e)))

    def _wide_value(self, x: Array) -> Array:
        return x * self._share(x)

    def _wide_slope(self, x: Array) -> Array:
        t = self._share(x)
        return t + x * (sigmoid64(x) * (1.0 - t * t))


@dataclass(frozen=True)
class Gelu(_Wide):
    """x·Φ(x) (Hendrycks and Gimpel 2016), with Φ(x) = ½·erfc(−x/√2), or their approximation by tanh.

    The approximation is ½·x·(1 + tanh u), u = √(2/π)·(x + 0.044715·x³).
    """

    approximate: Literal["none", "tanh"] = "none"

    def _share(self, x: Array) -> Array:
        if self.approximate == "none":
            return 0.5 * erfc64(-x * ROOT_HALF)
        return 0.5 * (1.0 + tanh64(self._inner(x)))

    def _inner(self, x: Array) -> Array:
        return ROOT_2_BY_PI * (x + GELU_CUBIC * (x * x * x))

    def _wide_value(self, x: Array) -> Array:
        return x * self._share(x)

    def _wide_slope(self, x: Array) -> Array:
        """Return Φ(x) + x·Φ'(x); of the approximation ½·(1 + t) + ½·x·(1 − t·t)·u', t = tanh u."""
        if self.approximate == "none":
            return self._share(x) + x * (ROOT_1_BY_2PI * exp64(-0.5 * (x * x)))
        t = tanh64(self._inner(x))
        rate = ROOT_2_BY_PI * (1.0 + 3.0 * GELU_CUBIC * (x * x))
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * rate


#: The activations by their names in files.
ACTIVATIONS: dict[str, type[Pointwise]] = {
    "relu": Relu, "leaky_relu": LeakyRelu, "gelu": Gelu, "tanh": Tanh, "sigmoid": Sigmoid, "silu": Silu, "elu": Elu,
    "hardtanh": Hardtanh, "hardsigmoid": Hardsigmoid, "hardswish": Hardswish, "softplus": Softplus, "mish": Mish,
    "abs": Abs, "exp": Exp, "log": Log, "log1p": Log1p, "sin": Sin, "cos": Cos,
    "sqrt": Sqrt, "rsqrt": Rsqrt, "reciprocal": Reciprocal, "scale": Scale, "shift": Shift,
}  # fmt: skip
