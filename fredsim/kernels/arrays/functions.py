"""exp, log, sin, cos, tanh, erfc and the logistic function of vectors, without branches.

Their bits are those of fredsim.numerics.elementary. Every lane computes all cases and selects its own. A case that no
lane needs may be left out; that changes no bit. Vectors of float64 are called wide; theirs are arguments that come from
float32, so 2^k is always a normal number.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.doubles import both, exponent, fill, mantissa, narrow, power_of_two, some, truncate, widen
from fredsim.jit.subroutine import subroutine
from fredsim.numerics import elementary
from fredsim.numerics.elementary import (
    HALF_PI,
    HALF_PI_HIGH,
    HALF_PI_LOW,
    INVERSE_LN2,
    LN2_HIGH,
    LN2_LOW,
    LOG1P_SMALL,
    SQRT2,
    TURNED_OFTEN,
    TWO_BY_PI,
    TWO_BY_ROOT_PI,
)
from fredsim.numerics.rules import absolute, where

__all__ = [
    "circle_wide", "erfc_wide", "exp_vector", "exp_wide", "log1p_wide", "log_wide", "sigmoid_wide", "sine_of",
    "tanh_wide",
]  # fmt: skip

LOW, HIGH = (np.float32(bound) for bound in elementary.EXP32_RANGE)
LOWEST = elementary.EXP64_RANGE[0]
P1, P2, P3, P4, P5 = elementary.EXP_POLYNOMIAL
L1, L2, L3, L4, L5, L6, L7 = elementary.LOG_POLYNOMIAL
C1, C2, C3, C4, C5, C6 = elementary.COS_POLYNOMIAL
S1, S2, S3, S4, S5, S6 = elementary.SIN_POLYNOMIAL
T0, T1, T2, T3, T4, T5, T6 = elementary.TWO_BY_PI_PARTS
E0, E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, E13, E14 = elementary.ERF_SERIES
Q0, Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8, Q9, Q10, Q11, Q12 = elementary.ERFC_POLYNOMIAL
TANH_SMALL = 2.0**-9
TANH_ONE = 40.0  # from here on exp(2·x) + 1 is so large that 1 − 2/(exp(2·x) + 1) is 1
ERFC_LAST = 12.0
THIRD, TWO_FIFTEENTHS = 1.0 / 3.0, 2.0 / 15.0


@subroutine(forceinline=True)
def exp_inside(x):
    """Return e^x of a wide vector from −708 to 709; a NaN stays a NaN."""
    k = truncate(x * INVERSE_LN2 + where(x < 0.0, fill(x, -0.5), 0.5))
    above = x - k * LN2_HIGH
    below = k * LN2_LOW
    r = above - below
    t = r * r
    c = r - t * (P1 + t * (P2 + t * (P3 + t * (P4 + t * P5))))
    return (1.0 - ((below - (r * c) / (2.0 - c)) - above)) * power_of_two(k)


@subroutine(forceinline=True)
def exp_vector(x):
    """Return e^x of a vector of float32: elementary.exp32."""
    inside = both(x >= LOW, x <= HIGH)
    value = narrow(exp_inside(widen(where(inside, x, 0.0))))
    return where(inside, value, where(x < LOW, 0.0, where(x > HIGH, np.inf, x)))


@subroutine(forceinline=True)
def exp_wide(x):
    """Return e^x of a wide vector that is 709 at most, or NaN: elementary.exp64."""
    return where(x < LOWEST, 0.0, exp_inside(where(x < LOWEST, 0.0, x)))


@subroutine(forceinline=True)
def log_wide(x):
    """Return ln x of a wide vector, without subnormal numbers: elementary.log64."""
    inside = both(x > 0.0, x < np.inf)
    y = where(inside, x, 1.0)
    m, k = mantissa(y), exponent(y)
    upper = m > SQRT2
    m, k = where(upper, 0.5 * m, m), where(upper, k + 1.0, k)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = z * (L1 + z * (L2 + z * (L3 + z * (L4 + z * (L5 + z * (L6 + z * L7))))))
    h = 0.5 * f * f
    value = k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f)
    return where(inside, value, where(x == 0.0, -np.inf, where(x == np.inf, x, np.nan)))


@subroutine(forceinline=True)
def log1p_wide(x):
    """Return ln(1 + x) of a wide vector: elementary.log1p64."""
    return where(absolute(x) < LOG1P_SMALL, x * (1.0 - x * (0.5 - x * THIRD)), log_wide(1.0 + x))


@subroutine(forceinline=True)
def add_turns(turns, rest, y):
    """Add y, in quarters of a turn, to whole ones and the rest, which stays between −½ and ½."""
    t = rest + (y - 4.0 * truncate(0.25 * y))
    n = truncate(t + 0.5)
    return turns + n, t - n


@subroutine(forceinline=True)
def circle_wide(x):
    """Return the quarter of a turn in which x lies, sin r and cos r of what is left: elementary.sine64."""
    k = truncate(x * TWO_BY_PI + where(x < 0.0, fill(x, -0.5), 0.5))
    r = (x - k * HALF_PI_HIGH) - k * HALF_PI_LOW
    size = absolute(x)
    if some(size >= TURNED_OFTEN):
        turns, rest = add_turns(fill(x, 0.0), fill(x, 0.0), size * T0)
        turns, rest = add_turns(turns, rest, size * T1)
        turns, rest = add_turns(turns, rest, size * T2)
        turns, rest = add_turns(turns, rest, size * T3)
        turns, rest = add_turns(turns, rest, size * T4)
        turns, rest = add_turns(turns, rest, size * T5)
        turns, rest = add_turns(turns, rest, size * T6)
        near, far = size < TURNED_OFTEN, rest * HALF_PI
        k = where(near, k, where(x < 0.0, -turns, turns))
        r = where(near, r, where(x < 0.0, -far, far))
    z = r * r
    sine = r * (1.0 + z * (S1 + z * (S2 + z * (S3 + z * (S4 + z * (S5 + z * S6))))))
    cosine = 1.0 - (0.5 * z - z * (z * (C1 + z * (C2 + z * (C3 + z * (C4 + z * (C5 + z * C6)))))))
    return k, sine, cosine


@subroutine(forceinline=True)
def sine_of(circle, quarters):
    """Return sin(x + quarters·π/2) of what circle_wide returned."""
    k, sine, cosine = circle
    k = k + (quarters + TURNED_OFTEN)
    k = k - 4.0 * truncate(0.25 * k)
    return where(k == 0.0, sine, where(k == 1.0, cosine, where(k == 2.0, -sine, -cosine)))


@subroutine(forceinline=True)
def tanh_wide(x):
    """Return tanh x of a wide vector: elementary.tanh64."""
    size, square = absolute(x), x * x
    small = x * (1.0 - square * (THIRD - square * TWO_FIFTEENTHS))
    large = 1.0 - 2.0 / (exp_inside(2.0 * where(size > TANH_ONE, TANH_ONE, size)) + 1.0)
    return where(size < TANH_SMALL, small, where(x < 0.0, -large, large))


@subroutine(forceinline=True)
def sigmoid_wide(x):
    """Return 1/(1 + exp(−x)) of a wide vector: fredsim.numerics.elementary.sigmoid64."""
    e = exp_wide(-absolute(x))
    return where(x < 0.0, e, 1.0) / (1.0 + e)


@subroutine(forceinline=True)
def erf_series(x):
    """Return Taylor's series of erf of a wide vector, for |x| < 1."""
    s = x * x
    upper = E8 + s * (E9 + s * (E10 + s * (E11 + s * (E12 + s * (E13 + s * E14)))))
    series = E0 + s * (E1 + s * (E2 + s * (E3 + s * (E4 + s * (E5 + s * (E6 + s * (E7 + s * upper)))))))
    return x * series * TWO_BY_ROOT_PI


@subroutine(forceinline=True)
def erfc_tail(x):
    """Return erfc of a wide vector from 1 to 12."""
    t = 1.0 / (1.0 + 0.5 * x)
    upper = Q6 + t * (Q7 + t * (Q8 + t * (Q9 + t * (Q10 + t * (Q11 + t * Q12)))))
    return t * (Q0 + t * (Q1 + t * (Q2 + t * (Q3 + t * (Q4 + t * (Q5 + t * upper)))))) * exp_inside(-(x * x))


@subroutine(forceinline=True)
def erfc_wide(x):
    """Return erfc x of a wide vector: elementary.erfc64."""
    size = absolute(x)
    near = size < 1.0
    value = x
    if some(near):
        value = 1.0 - erf_series(where(near, x, 0.0))
    if some(size >= 1.0):
        outer = erfc_tail(where(size < ERFC_LAST, where(near, 1.0, size), ERFC_LAST))
        value = where(near, value, where(x < 0.0, 2.0 - outer, outer))
    return where(x != x, x, value)
