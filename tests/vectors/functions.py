"""Functions of one number of docs/numerics.md, "Operators of networks" and "exp, log, sin, tanh and erf", exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.vectors.contract import NAN, ZERO, exp32, exp64, horner, log32, log64
from tests.vectors.ieee import FLOAT32, FLOAT64, Number, number, sqrt

__all__ = ["POINTWISE", "erfc64", "sigmoid64", "tanh64"]

Q = (0.28209470349588633, 0.28209862324507645, 0.2467579407766034, 0.17718591090780222, 0.07692352594298908,
     0.03289147839232942, -0.20366449240189902, 0.36625147293923743, -0.8626106901969764, 1.2591524780948267,
     -1.0092444702378078, 0.4295023673696332, -0.07735046102505506)  # fmt: skip
E = tuple((-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(15))
LOG1P = tuple(1 / (2 * n + 1) for n in range(12))
C = (4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05, -2.75573143513906633035e-07,
     2.08757232129817482790e-09, -1.13596475577881948265e-11)  # fmt: skip
S = (-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
     -2.50507602534068634195e-08, 1.58969099521155010221e-10)  # fmt: skip
TWO_BY_PI_DIGITS = "A2F9836 E4E4415 29FC275 7D1F534 DDC0DB6 295993C 439041F"
TWO_BY_PI, HALF_PI = 0.63661977236758134308, 1.57079632679489661923
HALF_PI_HIGH, HALF_PI_LOW = 1.57079632673412561417e00, 6.07710050650619224932e-11
TWO_BY_ROOT_PI, ROOT_HALF = 1.12837916709551257390, 0.70710678118654752440
ROOT_2_BY_PI, ROOT_1_BY_2PI = 0.79788456080286535588, 0.39894228040143267794

Function = Callable[[Number], Number]


def wide(x: Number) -> Number:
    return x.to(FLOAT64)


def tanh64(x: Number) -> Number:
    if abs(x) < 2.0**-9:
        square = x * x
        return x * (1.0 - square * (number(FLOAT64, 1.0 / 3.0) - square * number(FLOAT64, 2.0 / 15.0)))
    value = 1.0 - 2.0 / (exp64(2.0 * abs(x)) + 1.0)
    return -value if x < 0 else value


def erfc64(x: Number) -> Number:
    size = abs(x)
    if size < 1.0:
        return 1.0 - x * horner(E, x * x) * TWO_BY_ROOT_PI
    far = size if size < 12.0 else number(FLOAT64, 12.0)
    t = 1.0 / (1.0 + 0.5 * far)
    outer = t * horner(Q, t) * exp64(-(far * far))
    return 2.0 - outer if x < 0 else outer


def sigmoid64(x: Number) -> Number:
    e = exp64(-abs(x))
    return (e if x < 0 else number(FLOAT64, 1)) / (1.0 + e)


def whole(x: Number) -> Number:
    """Return x, truncated."""
    return number(FLOAT64, math.trunc(x.exact))


def turned(x: Number) -> tuple[int, Number]:
    """Return k and r of "sin x"."""
    if abs(x) < 2.0**20:
        k = whole(x * TWO_BY_PI + (-0.5 if x < 0 else 0.5))
        return int(k.exact), (x - k * HALF_PI_HIGH) - k * HALF_PI_LOW
    turns, rest = 0, number(FLOAT64, 0)
    for place, digits in enumerate(TWO_BY_PI_DIGITS.split(), start=1):
        y = abs(x) * (int(digits, 16) * 2.0 ** (-28 * place))
        t = rest + (y - 4.0 * whole(0.25 * y))
        n = whole(t + 0.5)
        turns, rest = turns + int(n.exact), t - n
    far = rest * HALF_PI
    return (-turns, -far) if x < 0 else (turns, far)


def sine(quarters: int) -> Function:
    """Return sin(x + quarters·π/2)."""

    def function(x: Number) -> Number:
        if x.special:
            return wide(NAN)
        k, r = turned(x)
        z = r * r
        if (k + quarters) % 2:
            found = 1.0 - (0.5 * z - z * (z * horner(C, z)))
        else:
            found = r * (1.0 + z * horner(S, z))
        return -found if (k + quarters) % 4 > 1 else found

    return function


def log1p(x: Number) -> Number:
    if abs(x) < 2.0**-20:
        return x * (1.0 - x * (0.5 - x * number(FLOAT64, 1.0 / 3.0)))
    above = 1.0 + x
    special = above.special or above.negative or above == 0
    return wide(log32(above.to(FLOAT32))) if special else log64(above)


def gelu_share(x: Number) -> Number:
    return 0.5 * erfc64(-x * ROOT_HALF)


def inner(x: Number) -> Number:
    return ROOT_2_BY_PI * (x + 0.044715 * (x * x * x))


def gelu(o: dict[str, Any]) -> tuple[Function, Function]:
    if o.get("approximate") == "tanh":

        def slope(x: Number) -> Number:
            t, rate = tanh64(inner(x)), ROOT_2_BY_PI * (1.0 + number(FLOAT64, 3.0 * 0.044715) * (x * x))
            return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * rate

        return lambda x: x * (0.5 * (1.0 + tanh64(inner(x)))), slope
    return (
        lambda x: x * gelu_share(x),
        lambda x: gelu_share(x) + x * (ROOT_1_BY_2PI * exp64(-0.5 * (x * x))),
    )


def in_float64(pair: tuple[Function, Function]) -> tuple[Callable[..., Number], Callable[..., Number]]:
    """Return f and δ·f' of functions in float64, each rounded once."""
    value, slope = pair
    return lambda x: value(wide(x)).to(FLOAT32), lambda x, d: d * slope(wide(x)).to(FLOAT32)


def silu_slope(x: Number) -> Number:
    s = sigmoid64(x)
    return s * (1.0 + x * (1.0 - s))


def by_answer(
    value: Function, slope: Callable[[Number], Number]
) -> tuple[Callable[..., Number], Callable[..., Number]]:
    """Return f, in float64 and rounded once, and δ·(slope of the rounded y in float32)."""

    def rounded(x: Number) -> Number:
        return value(wide(x)).to(FLOAT32)

    return rounded, lambda x, d: d * slope(rounded(x))


def leaky(o: dict[str, Any]) -> tuple[Callable[..., Number], Callable[..., Number]]:
    s = number(FLOAT32, o.get("slope_below", 0.01))
    return lambda x: x if x > 0 else x * s, lambda x, d: d if x > 0 else d * s


def scale(o: dict[str, Any]) -> tuple[Callable[..., Number], Callable[..., Number]]:
    c = number(FLOAT32, o["by"])
    return lambda x: x * c, lambda x, d: d * c


def shift(o: dict[str, Any]) -> tuple[Callable[..., Number], Callable[..., Number]]:
    c = number(FLOAT32, o["by"])
    return lambda x: x + c, lambda x, d: d


def elu(o: dict[str, Any]) -> tuple[Function, Function]:
    alpha = wide(number(FLOAT32, o.get("alpha", 1.0)))

    def value(x: Number) -> Number:
        if x > 0:
            return x
        return alpha * (x * (1.0 + 0.5 * x) if x > -(2.0**-20) else exp64(x) - 1.0)

    return value, lambda x: number(FLOAT64, 1) if x > 0 else alpha * exp64(x)


def hardtanh(o: dict[str, Any]) -> tuple[Callable[..., Number], Callable[..., Number]]:
    low, high = number(FLOAT32, o.get("low", -1.0)), number(FLOAT32, o.get("high", 1.0))

    def outside(x: Number) -> bool:
        return x < low or x > high if o.get("inclusive") else x <= low or x >= high

    return lambda x: low if x <= low else high if x >= high else x, lambda x, d: ZERO if outside(x) else d


def hardsigmoid(x: Number) -> Number:
    return number(FLOAT64, 0) if x <= -3 else number(FLOAT64, 1) if x >= 3 else (x + 3.0) / 6.0


def hardswish(x: Number) -> Number:
    return number(FLOAT64, 0) if x <= -3 else x if x >= 3 else x * (x + 3.0) / 6.0


def hardswish_slope(x: Number) -> Number:
    return number(FLOAT64, 0) if x < -3 else number(FLOAT64, 1) if x > 3 else x / 3.0 + 0.5


def rsqrt(x: Number) -> Number:
    return number(FLOAT32, 1) / sqrt(x)


def rsqrt_error(x: Number, d: Number) -> Number:
    r = rsqrt(x)
    return d * (r * r * r * number(FLOAT32, -0.5))


def root_error(x: Number, d: Number) -> Number:
    return d * (number(FLOAT32, 0.5) / sqrt(x))


def reciprocal_error(x: Number, d: Number) -> Number:
    y = number(FLOAT32, 1) / x
    return d * -(y * y)


def sign(x: Number) -> Number:
    return number(FLOAT32, 1 if x > 0 else -1 if x < 0 else 0)


def softplus(x: Number) -> Number:
    e = exp64(-abs(x))
    s = e / (2.0 + e)
    return (number(FLOAT64, 0) if x < 0 else x) + 2.0 * s * horner(LOG1P, s * s)


def mish_share(x: Number) -> Number:
    e = exp64(-abs(x))
    n, above = e * (e + 2.0), 1.0 + 2.0 * e
    return n / (n + 2.0) if x < 0 else above / (above + 2.0 * (e * e))


def mish_slope(x: Number) -> Number:
    t = mish_share(x)
    return t + x * (sigmoid64(x) * (1.0 - t * t))


#: By the operator's name: what returns f(x) and the error of the input, given x and δ, from the operator's options.
POINTWISE: dict[str, Callable[[dict[str, Any]], tuple[Callable[..., Number], Callable[..., Number]]]] = {
    "Abs": lambda o: (abs, lambda x, d: d * sign(x)),
    "Elu": lambda o: in_float64(elu(o)),
    "Cos": lambda o: in_float64((sine(1), sine(2))),
    "Exp": lambda o: (exp32, lambda x, d: d * exp32(x)),
    "Log": lambda o: (log32, lambda x, d: d * (number(FLOAT32, 1) / x)),
    "Log1p": lambda o: in_float64((log1p, lambda x: 1.0 / (1.0 + x))),
    "Mish": lambda o: in_float64((lambda x: x * mish_share(x), mish_slope)),
    "Reciprocal": lambda o: (lambda x: number(FLOAT32, 1) / x, reciprocal_error),
    "Softplus": lambda o: in_float64((softplus, sigmoid64)),
    "Sqrt": lambda o: (sqrt, lambda x, d: d * ZERO if o.get("flat") and x == 0 else root_error(x, d)),
    "Hardsigmoid": lambda o: in_float64(
        (hardsigmoid, lambda x: number(FLOAT64, 0 if x <= -3 or x >= 3 else 1.0 / 6.0))
    ),
    "Hardswish": lambda o: in_float64((hardswish, hardswish_slope)),
    "Hardtanh": hardtanh,
    "Rsqrt": lambda o: (rsqrt, rsqrt_error),
    "Gelu": lambda o: in_float64(gelu(o)),
    "LeakyRelu": leaky,
    "Relu": lambda o: (lambda x: x if x > 0 else ZERO, lambda x, d: d if x > 0 else ZERO),
    "Scale": scale,
    "Shift": shift,
    "Sigmoid": lambda o: by_answer(sigmoid64, lambda y: y * (1 - y)),
    "Sin": lambda o: in_float64((sine(0), sine(1))),
    "Silu": lambda o: in_float64((lambda x: x * sigmoid64(x), silu_slope)),
    "Tanh": lambda o: by_answer(tanh64, lambda y: 1 - y * y),
}
