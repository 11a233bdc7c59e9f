"""Rows at rest: rows of the first layer that the rule, applied with a gradient of +0, leaves unchanged in every bit.

Many rules change state or parameters even if the gradient is +0, for instance by decaying a momentum. But once that has
changed no bit of a row, it will not do so the next time, either, so the row is skipped: it is "at rest" until it gets a
gradient other than +0, or a coefficient on which its state depends changes. A census, in one of CENSUS minibatches,
looks for such rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.pointers import item
from fredsim.jit.subroutine import subroutine
from fredsim.numerics.rules import Rule
from fredsim.numerics.settling import settling_coefficients

__all__ = ["CENSUS", "Resting", "rows_awake"]

CENSUS = 64  # one minibatch in this many has a census, which looks at the rows one by one


@subroutine
def rows_awake(resting, start, end, census):
    """Return the end of the rows from `start` on that are not at rest; in a census, of the first such row alone."""
    k = start
    while k < end and item(resting, k) == 0 and (k == start or not census):
        k += 1
    return k


class Resting:
    """Keeps which rows of the first layer are at rest, in `rows`, uint8 (threads, rows)."""

    def __init__(self, rule: Rule, threads: int, rows: int) -> None:
        self.rows = np.zeros((threads, rows), np.uint8)
        self._settling = list(settling_coefficients(rule))
        self._settled_with = np.zeros(len(self._settling), np.int32)

    def may_rest(self, coefficients: NDArray[np.float32]) -> bool:
        """Return whether rows may be at rest during n updates with these coefficients (n, C).

        If a coefficient on which the rows' state depends has changed, wakes all rows.
        """
        if not len(coefficients):
            return True
        fixed = coefficients[:, self._settling].view(np.int32)
        if not (fixed == self._settled_with).all():
            self.wake()
            if not (fixed == fixed[:1]).all():
                return False
            self._settled_with = fixed[0]
        return True

    def wake(self) -> None:
        """Mark all rows as not at rest."""
        self.rows[...] = 0
