"""Makes what a report embeds small: each column of numbers once, with six digits, and the whole compressed.

A browser unpacks it (start.js); nothing is fetched.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["Pool", "packed", "packed_json", "thinned"]

DIGITS = 6  # of a number that is drawn; more than a screen has pixels
EXACT = 2**53  # below which each integer is a number of JavaScript
MOST_POINTS = 250  # of the curve of one run beside the others


class Pool:
    """Columns of numbers, each kept once; a figure has the place of a column in `columns`."""

    def __init__(self) -> None:
        self.columns: list[list[float | None]] = []
        self._places: dict[tuple[float | None, ...], int] = {}

    def place(self, column: Iterable[float]) -> int:
        """Return the place of a column, whose numbers are rounded; None takes the place of one that is not finite."""
        rounded = tuple(_rounded(value) for value in column)
        if rounded not in self._places:
            self._places[rounded] = len(self.columns)
            self.columns.append(list(rounded))
        return self._places[rounded]

    def places(self, columns: Any) -> Any:
        """Return the place of a column, or a mapping of choices to the places of their columns."""
        if isinstance(columns, Mapping):
            return {choice: self.place(column) for choice, column in columns.items()}
        return self.place(columns)


def _rounded(value: float) -> float | None:
    """Return a number with few digits; an integer stays as it is, and is written without a point."""
    if not math.isfinite(value):
        return None
    return int(value) if abs(value) < EXACT and value == int(value) else float(f"{value:.{DIGITS}g}")


def thinned(count: int) -> list[int]:
    """Return which of a run's rows are kept for its own curve: at most MOST_POINTS, the first and the last included."""
    rows: list[int] = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int)).tolist()
    return rows


def packed(text: str) -> str:
    """Return a text as Base64 of zlib's format, which a browser calls "deflate"."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def packed_json(data: Any) -> str:
    """Return plain data as packed JSON. Raises ValueError if it has a number that JSON has not."""
    return packed(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
