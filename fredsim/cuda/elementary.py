"""exp and log of float32: the expressions of the functions of the same names in fredsim.numerics.elementary."""

from __future__ import annotations

import triton
import triton.language as tl

from fredsim.numerics import elementary

__all__ = ["exp32", "log32"]

LOW, HIGH = (tl.constexpr(x) for x in elementary.EXP32_RANGE)
INVERSE_LN2, SQRT2 = tl.constexpr(elementary.INVERSE_LN2), tl.constexpr(elementary.SQRT2)
LN2_HIGH, LN2_LOW = tl.constexpr(elementary.LN2_HIGH), tl.constexpr(elementary.LN2_LOW)
MANTISSA, ONE_BITS = tl.constexpr(elementary.MANTISSA), tl.constexpr(elementary.ONE_BITS)
P1, P2, P3, P4, P5 = (tl.constexpr(x) for x in elementary.EXP_POLYNOMIAL)
L1, L2, L3, L4, L5, L6, L7 = (tl.constexpr(x) for x in elementary.LOG_POLYNOMIAL)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def exp32(x):
    """Return e^x of float32 values."""
    y = tl.where((x >= LOW) & (x <= HIGH), x, 0.0).to(tl.float64)
    k = (y * INVERSE_LN2 + tl.where(y < 0.0, -0.5, 0.5)).to(tl.int64)
    above = y - k.to(tl.float64) * LN2_HIGH
    below = k.to(tl.float64) * LN2_LOW
    r = above - below
    t = r * r
    c = r - t * (P1 + t * (P2 + t * (P3 + t * (P4 + t * P5))))
    value = 1.0 - ((below - (r * c) / (2.0 - c)) - above)
    value = (value * ((k + 1023) << 52).to(tl.float64, bitcast=True)).to(tl.float32)
    special = tl.where(x < LOW, 0.0, tl.where(x > HIGH, INFINITY, float("nan")))
    return tl.where((x >= LOW) & (x <= HIGH), value, special)


@triton.jit
def log32(x):
    """Return ln x of float32 values."""
    inside = (x > 0.0) & (x < INFINITY)
    bits = tl.where(inside, x, 1.0).to(tl.float64).to(tl.int64, bitcast=True)  # a float32 subnormal is normal here
    m = ((bits & MANTISSA) | ONE_BITS).to(tl.float64, bitcast=True)
    upper = m > tl.full([], SQRT2, tl.float64)  # Triton may round a number that is compared to float32
    m = tl.where(upper, 0.5 * m, m)
    k = ((bits >> 52) - 1023 + upper.to(tl.int64)).to(tl.float64)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = z * (L1 + z * (L2 + z * (L3 + z * (L4 + z * (L5 + z * (L6 + z * L7))))))
    h = 0.5 * f * f
    value = (k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f)).to(tl.float32)
    special = tl.where(x == 0.0, -INFINITY, tl.where(x == INFINITY, INFINITY, float("nan")))
    return tl.where(inside, value, special)
