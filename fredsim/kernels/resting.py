"""Rows at rest: an update with a gradient of +0 has changed no bit of them, and they are left out until it may."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fredsim.jit.pointers import item
from fredsim.numerics.rules import Rule
from fredsim.numerics.settling import settling_coefficients

__all__ = ["CENSUS", "Resting", "rows_awake"]

CENSUS = 64  # one of so many minibatches looks for rows at rest, one by one


@njit(error_model="numpy")
def rows_awake(resting, start, end, census):
    """Return where the rows end, from `start` on, that are not at rest; in a census the first of them alone."""
    k = start
    while k < end and item(resting, k) == 0 and (k == start or not census):
        k += 1
    return k


class Resting:
    """Which rows of the first layer are at rest, uint8 (threads, rows): `rows`."""

    def __init__(self, rule: Rule, threads: int, rows: int) -> None:
        self.rows = np.zeros((threads, rows), np.uint8)
        self._settling = list(settling_coefficients(rule))
        self._settled_with = np.zeros(len(self._settling), np.int32)

    def may_rest(self, coefficients: NDArray[np.float32]) -> bool:
        """Return whether rows may come to rest in updates with these coefficients (n, C).

        All wake where a coefficient on which their state depends changes.
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
        """Wake all rows."""
        self.rows[...] = 0
