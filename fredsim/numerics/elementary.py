"""exp, log, pow, sin, cos, tanh, erf, σ, of operations that IEEE 754 defines to the last bit, whatever the library.

Each is one algorithm in float64, after fdlibm (Sun Microsystems, e_exp.c, e_log.c, k_cos.c and k_sin.c): range
reduction, one fixed polynomial in Horner form, assembly of the exponent's bits. The float32 functions widen, compute
and round once, which keeps them within 0.51 ulp. fredsim.kernels.arrays.elementary has the same expressions for
kernels, fredsim/cuda/sources/elementary.h those for devices. Arguments may have any shape. Numbers, which servers
have at each update, are computed as Python's floats, in a twentieth of the time, and the result is one, np.float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["cos64", "erfc64", "exp32", "exp64", "log1p64", "log32", "log64", "pow64", "sigmoid64", "sine64", "tanh64"]

Wide = NDArray[np.float64]
Number = (float, int, np.integer, np.floating)

INVERSE_LN2 = 1.44269504088896338700
LN2_HIGH = 6.93147180369123816490e-01  # 33 bits of ln 2: k·LN2_HIGH is exact for |k| < 2^20
LN2_LOW = 1.90821492927058770002e-10
EXP_POLYNOMIAL = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
LOG_POLYNOMIAL = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
COS_POLYNOMIAL = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
SIN_POLYNOMIAL = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
LOG1P_SMALL = 2.0**-20  # below it 1 + x in float64 would lose bits that float32 has
PI = 3.14159265358979311600
HALF_PI = 1.57079632679489661923
HALF_PI_HIGH = 1.57079632673412561417e00  # 33 bits of π/2: k·HALF_PI_HIGH is exact for |k| < 2^20
HALF_PI_LOW = 6.07710050650619224932e-11
TWO_BY_PI = 0.63661977236758134308
TURNED_OFTEN = 2.0**20  # from here on an angle is reduced by all bits of 2/π, of which each part has 28
TWO_BY_PI_PARTS = tuple(
    bits * 2.0 ** (-28 * i)
    for i, bits in enumerate((0xA2F9836, 0xE4E4415, 0x29FC275, 0x7D1F534, 0xDDC0DB6, 0x295993C, 0x439041F), start=1)
)
SQRT2 = 1.41421356237309514547
TWO_BY_ROOT_PI = 1.12837916709551257390
ERF_SERIES = tuple((-1.0) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(15))
ERFC_POLYNOMIAL = (  # interpolates erfc(x)·exp(x²)/t at the 13 nodes of Chebyshev for 1 ≤ x ≤ 12
    0.28209470349588633,
    0.28209862324507645,
    0.2467579407766034,
    0.17718591090780222,
    0.07692352594298908,
    0.03289147839232942,
    -0.20366449240189902,
    0.36625147293923743,
    -0.8626106901969764,
    1.2591524780948267,
    -1.0092444702378078,
    0.4295023673696332,
    -0.07735046102505506,
)
EXP32_RANGE = (-87.0, 88.72)
EXP64_RANGE = (-708.0, 709.78)
MANTISSA = 0x000F_FFFF_FFFF_FFFF
ONE_BITS = 0x3FF0_0000_0000_0000


def exp64(x: ArrayLike) -> Wide:
    """Return e^x in float64: NaN for NaN, +0 below −708, +∞ above 709.78, exactly 1 at 0."""
    return _exp_of_number(float(x)) if isinstance(x, Number) else _exp_of_array(np.asarray(x, np.float64))


def _exp_of_number(x: float) -> Any:
    low, high = EXP64_RANGE
    if not low <= x <= high:
        return np.float64(np.nan if x != x else 0.0 if x < low else np.inf)
    k = int(x * INVERSE_LN2 + (-0.5 if x < 0.0 else 0.5))
    return np.float64(math.ldexp(_exp_of_rest(x, k), k))


def _exp_of_array(x: Wide) -> Wide:
    low, high = EXP64_RANGE
    inside = (x >= low) & (x <= high)
    y = np.where(inside, x, 0.0)
    k = (y * INVERSE_LN2 + np.where(y < 0.0, -0.5, 0.5)).astype(np.int64)
    # 2^k in two factors, since 2^1024 has no float64.
    half = k >> 1
    value = _exp_of_rest(y, k) * ((half + 1023) << 52).view(np.float64) * ((k - half + 1023) << 52).view(np.float64)
    special = np.where(x < low, 0.0, np.inf)
    return np.where(inside, value, np.where(x != x, np.nan, special))


def _exp_of_rest(y: Any, k: Any) -> Any:
    """Return e^r, where y = k·ln 2 + r with |r| ≤ ln(2)/2; k is y/ln 2, rounded by a cast that truncates toward 0."""
    above = y - k * LN2_HIGH
    below = k * LN2_LOW
    r = above - below
    t = r * r
    p1, p2, p3, p4, p5 = EXP_POLYNOMIAL
    c = r - t * (p1 + t * (p2 + t * (p3 + t * (p4 + t * p5))))
    return 1.0 - ((below - (r * c) / (2.0 - c)) - above)


def exp32(x: ArrayLike) -> NDArray[np.float32]:
    """Return e^x in float32: NaN for NaN, +0 below −87, +∞ above 88.72, exactly 1 at 0."""
    x = np.asarray(x, np.float32)
    low, high = EXP32_RANGE
    inside = (x >= np.float32(low)) & (x <= np.float32(high))
    value = exp64(np.where(inside, x, np.float32(0))).astype(np.float32)
    special = np.where(x < np.float32(low), np.float32(0), np.float32(np.inf))
    return np.where(inside, value, np.where(x != x, np.float32(np.nan), special))


def log64(x: ArrayLike) -> Wide:
    """Return ln x in float64: NaN for NaN and below 0, −∞ at either zero, +∞ at +∞."""
    return _log_of_number(float(x)) if isinstance(x, Number) else _log_of_array(np.asarray(x, np.float64))


def _log_of_number(x: float) -> Any:
    if not 0.0 < x < math.inf:
        return np.float64(-np.inf if x == 0.0 else np.inf if x == math.inf else np.nan)
    m, k = math.frexp(x)  # m in [½, 1)
    return np.float64(_log_of_parts(m, k) if 2.0 * m > SQRT2 else _log_of_parts(2.0 * m, k - 1))


def _log_of_array(x: Wide) -> Wide:
    inside = (x > 0.0) & (x < np.inf)
    y = np.where(inside, x, 1.0)
    # A subnormal is scaled into the normal range first.
    tiny = y < 2.0**-1022
    bits = np.asarray(y * np.where(tiny, 2.0**54, 1.0)).view(np.int64)
    k = (bits >> 52) - 1023 - np.where(tiny, 54, 0)
    m = ((bits & MANTISSA) | ONE_BITS).view(np.float64)
    upper = m > SQRT2
    value = _log_of_parts(np.where(upper, 0.5 * m, m), k + upper)
    special = np.where(x == 0.0, -np.inf, np.where(x == np.inf, np.inf, np.nan))
    return np.where(inside, value, special)


def _log_of_parts(m: Any, k: Any) -> Any:
    """Return ln(2^k·m) for m in (√½, √2]."""
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    l1, l2, l3, l4, l5, l6, l7 = LOG_POLYNOMIAL
    r = z * (l1 + z * (l2 + z * (l3 + z * (l4 + z * (l5 + z * (l6 + z * l7))))))
    h = 0.5 * f * f
    return k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f)


def log32(x: ArrayLike) -> NDArray[np.float32]:
    """Return ln x in float32: NaN for NaN and below 0, −∞ at either zero, +∞ at +∞."""
    return log64(np.asarray(x, np.float32).astype(np.float64)).astype(np.float32)


def log1p64(x: ArrayLike) -> Wide:
    """Return ln(1 + x) in float64 for a float32 x, with a relative error below 2⁻⁵⁰: NaN for NaN and x < −1, −∞ at −1.

    Where |x| < 2⁻²⁰ it is x·(1 − x·(½ − x·⅓)).
    """
    x = np.asarray(x, np.float64)
    return np.where(np.abs(x) < LOG1P_SMALL, x * (1.0 - x * (0.5 - x * (1.0 / 3.0))), log64(1.0 + x))


def pow64(x: ArrayLike, p: Any) -> Wide:
    """Return x^p for x > 0 as exp(p·ln x) in float64: exactly 1 at x = 1."""
    return exp64(p * log64(x))


def cos64(x: ArrayLike) -> Wide:
    """Return cos x in float64 for 0 ≤ x ≤ π, with an absolute error below 2⁻⁵²; schedules of learning rates need it."""
    return _cos_of_number(float(x)) if isinstance(x, Number) else _cos_of_array(np.asarray(x, np.float64))


def _cos_of_number(x: float) -> Any:
    upper = x > PI / 2
    y = PI - x if upper else x  # cos x = −cos(π − x)
    value = _cos_up_to_quarter(y) if y <= PI / 4 else _sin_up_to_quarter(PI / 2 - y)  # cos y = sin(π/2 − y)
    return np.float64(-value if upper else value)


def _cos_of_array(x: Wide) -> Wide:
    upper = x > PI / 2
    y = np.where(upper, PI - x, x)
    value: Wide = np.where(y <= PI / 4, _cos_up_to_quarter(y), _sin_up_to_quarter(PI / 2 - y))
    return np.where(upper, -value, value)


def _cos_up_to_quarter(y: Any) -> Any:
    z = y * y
    c1, c2, c3, c4, c5, c6 = COS_POLYNOMIAL
    return 1.0 - (0.5 * z - z * (z * (c1 + z * (c2 + z * (c3 + z * (c4 + z * (c5 + z * c6)))))))


def _sin_up_to_quarter(w: Any) -> Any:
    v = w * w
    s1, s2, s3, s4, s5, s6 = SIN_POLYNOMIAL
    return w + v * w * (s1 + v * (s2 + v * (s3 + v * (s4 + v * (s5 + v * s6)))))


def sine64(x: ArrayLike, quarters: int = 0) -> Wide:
    """Return sin(x + quarters·π/2) in float64 for a float32 x, of 0 to 3 quarters: NaN for NaN and infinities.

    Its relative error is below 2⁻⁴³ for every float32; rounded to float32 it is within 0.501 ulp.
    """
    k, r = _turned(np.asarray(x, np.float64))
    k = k + (quarters + TURNED_OFTEN)  # above 0, and a whole number of turns more
    k = k - 4.0 * np.trunc(0.25 * k)
    z = r * r
    s1, s2, s3, s4, s5, s6 = SIN_POLYNOMIAL
    sine = r * (1.0 + z * (s1 + z * (s2 + z * (s3 + z * (s4 + z * (s5 + z * s6))))))
    cosine = _cos_up_to_quarter(r)
    return np.where(k == 0.0, sine, np.where(k == 1.0, cosine, np.where(k == 2.0, -sine, -cosine)))


def _turned(x: Wide) -> tuple[Wide, Wide]:
    """Return k and r, x = k·π/2 + r + 2·π·n with whole k and n, |k| < 2²⁰ and |r| ≤ π/4, or hardly more."""
    k = np.trunc(x * TWO_BY_PI + np.where(x < 0.0, -0.5, 0.5))
    r = (x - k * HALF_PI_HIGH) - k * HALF_PI_LOW
    size = np.abs(x)
    near = size < TURNED_OFTEN
    if near.all():
        return k, r
    turns, rest = np.zeros_like(x), np.zeros_like(x)
    for part in TWO_BY_PI_PARTS:
        y = size * part  # exact, and so is all that follows as long as its bits are of weight
        t = rest + (y - 4.0 * np.trunc(0.25 * y))
        n = np.trunc(t + 0.5)
        turns, rest = turns + n, t - n
    far = rest * HALF_PI
    return np.where(near, k, np.where(x < 0.0, -turns, turns)), np.where(near, r, np.where(x < 0.0, -far, far))


def tanh64(x: ArrayLike) -> NDArray[np.float64]:
    """Return tanh x in float64 for a float32 x; rounded to float32 it is within 0.501 ulp.

    From 2⁻⁹ on it is 1 − 2/(exp(2·|x|) + 1) with the sign of x, below that x·(1 − x²·(1/3 − x²·(2/15))).
    """
    x = np.asarray(x, np.float64)
    size = np.abs(x)
    square = x * x
    small = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0)))
    large = 1.0 - 2.0 / (exp64(2.0 * size) + 1.0)
    return np.where(size < 2.0**-9, small, np.where(x < 0.0, -large, large))


def sigmoid64(x: ArrayLike) -> NDArray[np.float64]:
    """Return 1/(1 + exp(−x)), float64; where x < 0, exp(x)/(1 + exp(x))."""
    wide = np.asarray(x, np.float64)
    e = exp64(-np.abs(wide))
    return np.where(wide < 0.0, e, 1.0) / (1.0 + e)


def erfc64(x: ArrayLike) -> NDArray[np.float64]:
    """Return erfc x = 1 − erf x in float64, with a relative error below 2e−12, as the functions of float32 need it.

    From 1 on it is t·P(t)·exp(−x²) with t = 1/(1 + x/2) and a polynomial P, below −1 two minus that; between, one minus
    Taylor's series of erf. From 12 on it is that of 12, below 10⁻⁶³.
    """
    x = np.asarray(x, np.float64)
    size = np.abs(x)
    far = np.where(size < 12.0, np.where(size < 1.0, 1.0, size), 12.0)
    t = 1.0 / (1.0 + 0.5 * far)
    polynomial = np.full_like(t, ERFC_POLYNOMIAL[-1])
    for coefficient in ERFC_POLYNOMIAL[-2::-1]:
        polynomial = coefficient + t * polynomial
    outer = t * polynomial * exp64(-(far * far))
    value = np.where(size < 1.0, 1.0 - _erf_series(x), np.where(x < 0.0, 2.0 - outer, outer))
    return np.where(x != x, np.nan, value)


def _erf_series(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Taylor's series of erf x, for |x| < 1; its terms beyond x²⁹ are below 3e−14."""
    inner = np.where(np.abs(x) < 1.0, x, 0.0)
    square = inner * inner
    series = np.full_like(inner, ERF_SERIES[-1])
    for coefficient in ERF_SERIES[-2::-1]:
        series = coefficient + square * series
    return inner * series * TWO_BY_ROOT_PI
