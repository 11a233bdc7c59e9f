"""The one style of numbers in figures: four significant digits, thin spaces between thousands, and powers of ten."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.ticker import Formatter

from fredsim.show.tables import as_given

__all__ = ["MINUS", "THIN", "TickNumbers", "cut_above", "drawable", "given", "median", "number", "worth"]

THIN = "\u2009"  # the thin space between thousands
MINUS = "\u2212"
DIGITS = 4
LARGE, SMALL = 1e6, 1e-3  # from the one on, and below the other, a number is written with a power of ten
MOST_DRAWN = 1e300  # beyond it, what is computed for an axis overflows
MOST_DECADES = 15  # the most decades of a figure that shows all of its values …
ROOM = 3  # … else it ends so many decades above what is usual in it
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def median(values: Iterable[float]) -> float:
    """Return the median, also where the two values in the middle have a sum beyond the largest float."""
    found = [*values]
    middle = statistics.median(found)
    return 2 * statistics.median(value / 2 for value in found) if math.isinf(middle) else middle


def cut_above(values: Sequence[float], usual: float) -> float:
    """Return the value at which a figure is cut, as its largest values would flatten the others; else infinity.

    That is where its values, all above 0, span too many decades, and the largest is far above one that is `usual`.
    """
    least, most, top = min(values), max(values), usual * 10**ROOM
    return top if 0 < least * 10**MOST_DECADES < most and most > top else math.inf


def worth(value: float) -> float:
    """Return a value for comparisons in which less is better: infinity if it is not finite."""
    return value if math.isfinite(value) else math.inf


def drawable(values: Any) -> Any:
    """Return whether a value, or each of an array, is a number that an axis can have."""
    return np.abs(values) <= MOST_DRAWN


def number(value: float, digits: int = DIGITS) -> str:
    """Return a number with so many significant digits: 0.0292, 12 500, 1.5·10⁶, 10⁻⁵; – for NaN."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    sign, size = (MINUS if value < 0 else ""), abs(value)
    if size == 0:
        return "0"
    if not SMALL <= size < LARGE:
        return sign + _power(size, digits)
    return sign + _plain(size, digits)


def given(value: object) -> str:
    """Return a value of an experiment as it was given, without the last digits that arithmetic added.

    All its digits are kept, so that two values never look alike: 0.30000000000000004 is 0.3, and 0.123456 is itself. A
    text of which nothing is seen is between quotes.
    """
    if isinstance(value, str) and not value.strip():
        return f"'{value}'"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    short = as_given(value)
    mantissa, _, exponent = short.partition("e")
    if exponent:
        return _raised(mantissa, int(exponent)).replace("-", MINUS)
    if isinstance(value, float) and SMALL > abs(value) > 0:
        mantissa, _, exponent = f"{value:.{max(0, len(short.lstrip('-0.')) - 1)}e}".partition("e")
        return _raised(mantissa, int(exponent)).replace("-", MINUS)
    return short


def _plain(size: float, digits: int) -> str:
    """Return a positive number without a power of ten."""
    places = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{size:.{places}f}"
    whole, _, part = text.partition(".")
    part = part.rstrip("0")
    return f"{int(whole):,}".replace(",", THIN) + (f".{part}" if part else "")


def _power(size: float, digits: int) -> str:
    mantissa, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    return _raised(mantissa, int(exponent))


def _raised(mantissa: str, exponent: int) -> str:
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    power = f"10{str(exponent).translate(RAISED)}"
    return {"1": power, "-1": f"-{power}"}.get(mantissa, f"{mantissa}·{power}")


class TickNumbers(Formatter):
    """Writes the numbers of an axis in the style of `number`, all of them with powers of ten if one of them has one.

    `zero`: the text at 0.
    """

    def __init__(self, zero: str = "0") -> None:
        self._zero = zero

    def __call__(self, value: float, pos: int | None = None) -> str:
        """Return the text of one tick."""
        return number(float(f"{value:.12g}"))

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the texts of the ticks of an axis."""
        texts = self._texts(values)
        return [self._zero if text == "0" else text for text in texts]

    def _texts(self, values: Sequence[float]) -> list[str]:
        sizes = [abs(float(f"{value:.12g}")) for value in values]
        most = max(sizes, default=0.0)
        even = len({round(high - low, 12) for low, high in pairwise(values)}) <= 1
        if most >= LARGE and even:
            return [
                number(value) if abs(value) < 1 else (MINUS if value < 0 else "") + _power(abs(value), DIGITS)
                for value in values
            ]
        if even and most < LARGE and any(0 < size < SMALL <= most for size in sizes):
            return [f"{value:.6g}".replace("-", MINUS) for value in values]
        return [self(value) for value in values]
