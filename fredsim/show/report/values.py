"""Numbers of the page's own text and tables, as its scripts write those of figures and of the table of runs."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context
from typing import Any

from fredsim.show.plots.numbers import MINUS, number
from fredsim.show.tables import AllDigits, short

__all__ = ["shown"]

FOUR = Context(prec=4, rounding=ROUND_HALF_UP)  # as browsers round


def shown(value: Any) -> str:
    """Return a value as text: of a number four digits, of an integer or a number that an experiment gave all.

    It is what `short` of page.js makes of the same value.
    """
    if not isinstance(value, float) or isinstance(value, AllDigits) or not math.isfinite(value):
        return short(value)
    if value.is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    rounded, size = float(FOUR.create_decimal_from_float(value)), abs(value)
    if 1e3 <= size < 1e6:
        return f"{math.copysign(math.floor(size + 0.5), value):,.0f}"
    return f"{rounded:#.4g}".rstrip(".") if 1e-3 <= size < 1e3 else number(rounded).replace(MINUS, "-")
