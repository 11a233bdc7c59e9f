"""Random words and normal numbers for scalars: the expressions of fredsim.numerics.streams, compiled.

Used by fredsim.kernels.arrays.draws, .ternary and .quadratic.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.subroutine import subroutine
from fredsim.kernels.arrays.elementary import log64
from fredsim.numerics import streams

__all__ = ["normal_quantile", "philox", "uniform24"]

LOW = np.uint64(0xFFFF_FFFF)
SHIFT = np.uint64(32)
(A0, A1, A2, A3, A4, A5, A6, A7), (B0, B1, B2, B3, B4, B5, B6, B7) = streams.CENTRAL
(C0, C1, C2, C3, C4, C5, C6, C7), (D0, D1, D2, D3, D4, D5, D6, D7) = streams.MIDDLE


@subroutine
def philox(block, step, client, attempt, k0, k1):
    """Return the four words of Philox4x32-10, as uint64: fredsim.numerics.streams.philox4x32.

    The counter is (block, step, client, attempt), the key (k0, k1), uint64 below 2³².
    """
    c0, c1, c2, c3 = np.uint64(block), np.uint64(step), np.uint64(client), np.uint64(attempt)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> SHIFT) ^ c1 ^ k0, p1 & LOW, (p0 >> SHIFT) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & LOW, (k1 + np.uint64(0xBB67AE85)) & LOW
    return c0, c1, c2, c3


@subroutine
def uniform24(word):
    """Return u = (word >> 8)·2⁻²⁴, a uniform number in [0, 1) with 24 bits, from a 32-bit word."""
    return np.float64(word >> np.uint64(8)) * 2.0**-24


@subroutine
def normal_quantile(word):
    """Return the standard normal quantile of (word + ½)·2⁻³²: AS 241 in float64."""
    p = (np.float64(word) + 0.5) * 2.0**-32
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = ((((((A7 * r + A6) * r + A5) * r + A4) * r + A3) * r + A2) * r + A1) * r + A0
        below = ((((((B7 * r + B6) * r + B5) * r + B4) * r + B3) * r + B2) * r + B1) * r + B0
        return q * (above / below)
    r = np.sqrt(-log64(p if q < 0.0 else 1.0 - p)) - 1.6
    above = ((((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
    below = ((((((D7 * r + D6) * r + D5) * r + D4) * r + D3) * r + D2) * r + D1) * r + D0
    return -(above / below) if q < 0.0 else above / below
