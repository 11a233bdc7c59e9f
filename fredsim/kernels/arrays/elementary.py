"""exp and log for scalars: the expressions of the functions of the same names in fredsim.numerics.elementary."""

from __future__ import annotations

import numpy as np

from fredsim.jit.subroutine import subroutine
from fredsim.numerics import elementary
from fredsim.numerics.elementary import INVERSE_LN2, LN2_HIGH, LN2_LOW, MANTISSA, ONE_BITS, SQRT2

__all__ = ["exp32", "exp64", "log32", "log64"]

LOW = np.float32(elementary.EXP32_RANGE[0])
HIGH = np.float32(elementary.EXP32_RANGE[1])
ZERO, INFINITY, NAN = np.float32(0.0), np.float32(np.inf), np.float32(np.nan)
LOW64, HIGH64 = elementary.EXP64_RANGE
P1, P2, P3, P4, P5 = elementary.EXP_POLYNOMIAL
L1, L2, L3, L4, L5, L6, L7 = elementary.LOG_POLYNOMIAL


@subroutine
def _exp_of_rest(above, below):
    """Return e^(above − below), float64, for what is left of x after k·ln 2 is taken away, in two parts."""
    r = above - below
    t = r * r
    c = r - t * (P1 + t * (P2 + t * (P3 + t * (P4 + t * P5))))
    return 1.0 - ((below - (r * c) / (2.0 - c)) - above)


@subroutine
def _log_of_normal(bits, k):
    """Return ln(m·2^k), float64; m in [1, 2) has the mantissa in `bits`."""
    m = np.int64((bits & MANTISSA) | ONE_BITS).view(np.float64)
    if m > SQRT2:
        m = 0.5 * m
        k = k + 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = z * (L1 + z * (L2 + z * (L3 + z * (L4 + z * (L5 + z * (L6 + z * L7))))))
    h = 0.5 * f * f
    return k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f)


@subroutine
def exp32(x):
    """Return e^x of a float32 as a float32, without branches, so that LLVM can vectorise a loop over it."""
    y = np.float64(x if LOW <= x <= HIGH else ZERO)
    k = np.int64(y * INVERSE_LN2 + (-0.5 if y < 0.0 else 0.5))
    value = _exp_of_rest(y - k * LN2_HIGH, k * LN2_LOW)
    inside = np.float32(value * np.int64((k + 1023) << 52).view(np.float64))  # |k| <= 128: one factor 2^k is enough
    outside = ZERO if x < LOW else INFINITY if x > HIGH else NAN
    return inside if LOW <= x <= HIGH else outside


@subroutine
def log32(x):
    """Return ln x of a float32 as a float32."""
    if not (x > np.float32(0.0) and x < np.float32(np.inf)):
        if x == np.float32(0.0):
            return np.float32(-np.inf)
        return x if x == np.float32(np.inf) else np.float32(np.nan)
    bits = np.float64(x).view(np.int64)  # a subnormal float32 is normal as a float64
    return np.float32(_log_of_normal(bits, (bits >> 52) - 1023))


@subroutine
def exp64(x):
    """Return e^x of a float64."""
    if x != x:
        return x
    if x < LOW64:
        return 0.0
    if x > HIGH64:
        return np.inf
    k = np.int64(x * INVERSE_LN2 + (-0.5 if x < 0.0 else 0.5))
    value = _exp_of_rest(x - k * LN2_HIGH, k * LN2_LOW)
    half = k >> 1
    return value * np.int64((half + 1023) << 52).view(np.float64) * np.int64((k - half + 1023) << 52).view(np.float64)


@subroutine
def log64(x):
    """Return ln x of a float64."""
    if not (x > 0.0 and x < np.inf):
        if x == 0.0:
            return -np.inf
        return x if x == np.inf else np.nan
    tiny = x < 2.0**-1022  # a subnormal is scaled into the normal range first
    bits = np.float64(x * 2.0**54 if tiny else x).view(np.int64)
    return _log_of_normal(bits, (bits >> 52) - (1077 if tiny else 1023))
