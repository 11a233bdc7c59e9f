"""exp, tanh, erfc and the logistic function of vectors: the bits of fredsim.numerics.elementary, without branches.

Every lane computes all cases and selects its own. A case that no lane needs may be left out; that changes no bit.
Vectors of float64 are called wide; theirs are arguments that come from float32, so 2^k is always a normal number.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.doubles import both, fill, narrow, power_of_two, some, truncate, widen
from fredsim.jit.subroutine import subroutine
from fredsim.numerics import elementary
from fredsim.numerics.elementary import INVERSE_LN2, LN2_HIGH, LN2_LOW, TWO_BY_ROOT_PI
from fredsim.numerics.rules import absolute, where

__all__ = ["erfc_wide", "exp_vector", "exp_wide", "sigmoid_wide", "tanh_wide"]

LOW, HIGH = (np.float32(bound) for bound in elementary.EXP32_RANGE)
LOWEST = elementary.EXP64_RANGE[0]
P1, P2, P3, P4, P5 = elementary.EXP_POLYNOMIAL
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
def tanh_wide(x):
    """Return tanh x of a wide vector: elementary.tanh64."""
    size, square = absolute(x), x * x
    small = x * (1.0 - square * (THIRD - square * TWO_FIFTEENTHS))
    large = 1.0 - 2.0 / (exp_inside(2.0 * where(size > TANH_ONE, TANH_ONE, size)) + 1.0)
    return where(size < TANH_SMALL, small, where(x < 0.0, -large, large))


@subroutine(forceinline=True)
def sigmoid_wide(x):
    """Return 1/(1 + exp(−x)) of a wide vector: fredsim.numerics.ops.pointwise.sigmoid64."""
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
