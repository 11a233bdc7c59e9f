"""Who is near the lowest error with the fewest bytes: the answer of figures against what runs cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.answers import equals, most_wins, own_parts

__all__ = ["FEWEST", "NEAR_TEXT", "Cost", "cheapest", "limit_of"]

NEAR = 0.1  # how far above the lowest, relative to it, an error is about the lowest
NEAR_TEXT = f"{number(100 * NEAR)} %"
#: The superlative of what an axis counts, with its noun.
FEWEST = {
    "bytes": "fewest bytes", "iterations": "fewest iterations", "updates": "fewest updates", "seconds": "least time",
    "pushes": "fewest pushes", "fetches": "fewest fetches",
}  # fmt: skip


class Cost(NamedTuple):
    """What a point of a line cost, its value, of which less is better, and its name."""

    cost: float
    value: float
    name: str = ""


def limit_of(best: float) -> float:
    """Return up to which value one is about the lowest."""
    return best + NEAR * abs(best)


def cheapest(
    panels: Sequence[Mapping[str, Sequence[Cost]]], names: Mapping[str, str], x: str,
    amount: Callable[[float], str], of: str = "",
) -> str:  # fmt: skip
    """Return which line is about as low as the lowest at the least cost; of several panels, in how many.

    A line of which this is asked alone has the names of its points. `of`: what all points have that are compared.
    """
    most = FEWEST[x]
    start = f"{most[0].upper()}{most[1:]} within {NEAR_TEXT} of the lowest{of and f' at {of}'}"
    found = [order for order in map(_order, panels) if order]
    if not found:
        return ""
    called = own_parts({label: names.get(label, label) for costs in panels for label in costs})
    if len(found) > 1:
        return f"{start}: {most_wins([*map(_first, found)], called, len(panels), 'panels')}"
    (order,) = found
    start += f" in 1 of {len(panels)} panels" if len(panels) > 1 else ""

    def shown(label: str, cost: Cost) -> str:
        return f"{called[label] if len(called) > 1 else cost.name} ({amount(cost.cost)}, {number(cost.value)})"

    if len(tied := _first(order)) > 1:
        some = equals([called[label] for label in tied], len(order))
        return f"{start}: {some} ({amount(order[0][1].cost)}, {number(order[0][1].value)} each)"
    text = f"{start}: {shown(*order[0])}"
    lowest = [(label, _lowest(some)) for costs in panels for label, some in costs.items()]
    least = min(lowest, key=lambda one: one[1].value)
    if least[1].value < order[0][1].value:
        return f"{text}; lowest: {shown(*least)}"
    return f"{text}; next: {shown(*order[1])}" if len(order) > 1 else text


def _lowest(costs: Sequence[Cost]) -> Cost:
    none = Cost(math.inf, math.inf)
    return min(
        (cost for cost in costs if math.isfinite(cost.value)), key=lambda one: (one.value, one.cost), default=none
    )


def _order(costs: Mapping[str, Sequence[Cost]]) -> list[tuple[str, Cost]]:
    """Return each line that is about as low as the lowest with its cheapest such point, the cheapest first."""
    limit = limit_of(min((_lowest(some).value for some in costs.values()), default=math.inf))
    if not math.isfinite(limit):
        return []
    good = {label: [cost for cost in some if cost.value <= limit] for label, some in costs.items()}
    return sorted(((label, min(some)) for label, some in good.items() if some), key=lambda one: one[1])


def _first(order: Sequence[tuple[str, Cost]]) -> list[str]:
    """Return the line that is first in this order, and those that are equal to it."""
    best = order[0][1]
    return [label for label, cost in order if (cost.cost, cost.value) == (best.cost, best.value)]
