"""Steady rows: rows of the first layer's parameters that an update with a gradient of +0 leaves unchanged in every bit.

Many rules change state or parameters even if the gradient is +0, for instance by decaying a momentum. But once such an
update has changed no bit of a row, the next one will not change any, either. The row is then called steady, and the
kernels skip it until it gets a gradient other than +0, or until a coefficient on which its state depends changes. In
one of CHECK_EVERY minibatches, the kernels check row by row which rows have become steady.

The paths `hand` and `fused` (fredsim.kernels.mlp.window, fredsim.kernels.mlp.fused) skip steady rows. Skipping changes
no bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.pointers import item
from fredsim.jit.subroutine import subroutine
from fredsim.numerics.rules import Rule
from fredsim.numerics.steady import steady_coefficients

__all__ = ["CHECK_EVERY", "SteadyRows", "unsteady_end"]

CHECK_EVERY = 64  # in one minibatch of this many, rows are updated one by one to find those that have become steady


@subroutine
def unsteady_end(steady, start, end, checking):
    """Return the end of the unsteady rows that begin at `start`; if `checking`, the end of the first of them.

    steady[k] (uint8) says whether row k is steady. If row `start` is steady, `start` is returned.
    """
    k = start
    while k < end and item(steady, k) == 0 and (k == start or not checking):
        k += 1
    return k


class SteadyRows:
    """Keeps which rows of the first layer are steady, in `flags`, uint8 (threads, rows); kernels read and write it."""

    def __init__(self, rule: Rule, threads: int, rows: int) -> None:
        self.flags = np.zeros((threads, rows), np.uint8)
        self._coefficients = list(steady_coefficients(rule))
        self._values = np.zeros(len(self._coefficients), np.int32)

    def may_skip(self, coefficients: NDArray[np.float32]) -> bool:
        """Return whether steady rows may be skipped during n updates with these coefficients (n, C).

        If a coefficient on which the rows' state depends has changed since the last call, no row counts as steady.
        """
        if not len(coefficients):
            return True
        bits = coefficients[:, self._coefficients].view(np.int32)
        if not (bits == self._values).all():
            self.clear()
            if not (bits == bits[:1]).all():
                return False
            self._values = bits[0]
        return True

    def clear(self) -> None:
        """Mark all rows as not steady."""
        self.flags[...] = 0
