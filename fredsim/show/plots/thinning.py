"""Which rows of long columns are enough to draw them: in a page that keeps what it draws, each row is text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["outlined"]

FEW = 10  # up to so many rows for each part, all of them are kept


def outlined(columns: Sequence[NDArray[np.float64]], parts: int) -> NDArray[np.int64]:
    """Return the rows, ascending, that columns of the same length need to look the same; all, if these are few.

    The rows are divided into `parts`; those at the beginning into more, of lengths in a geometric sequence, as the axis
    may be logarithmic. Of each part there is the first row, and those with the smallest and the largest value of each
    column, and the first NaN after a value, where a line has a gap; and of each column the first and the last value.
    """
    count = len(columns[0])
    if count <= FEW * parts:
        return np.arange(count, dtype=np.int64)
    ends = np.concatenate([np.linspace(0, count, parts + 1), np.geomspace(1, count, parts // 2)])
    begins = np.unique(np.minimum(ends.astype(np.int64), count))[:-1]
    kept: list[NDArray[Any]] = [begins, np.array([count - 1])]
    part = np.searchsorted(begins, np.arange(count), "right") - 1
    for column in columns:
        for extreme in (np.fmin, np.fmax):
            rows = np.flatnonzero(column == extreme.reduceat(column, begins)[part])
            kept.append(rows[np.unique(part[rows], return_index=True)[1]])
        known = np.flatnonzero(~np.isnan(column))
        gaps = np.flatnonzero(np.isnan(column[1:]) & ~np.isnan(column[:-1])) + 1
        kept += [known[:1], known[-1:], gaps[np.unique(part[gaps], return_index=True)[1]]]
    found: NDArray[np.int64] = np.unique(np.concatenate(kept))
    return found
