"""Rounds of several sides in turn, so that a machine that slows down slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from statistics import median

__all__ = ["STEADY", "Rounds", "alternate", "disturbed", "in_brief"]

SETTLE = 0.3  # seconds between sides: OpenMP's idle threads spin for some milliseconds before they sleep
STEADY = 1.5  # a side's slowest round over its fastest; beyond that something else used the machine

Rounds = list[tuple[float, ...]]  # seconds, or any other cost, of each side


def alternate(sides: Sequence[Callable[[], float]], rounds: int, once: Collection[int] = ()) -> Rounds:
    """Return what each side took in each round; who comes first rotates. Those of `once` run in the first alone."""
    result: Rounds = []
    for turn in range(rounds):
        took = [0.0] * len(sides)
        for place in range(len(sides)):
            side = (turn + place) % len(sides)
            if turn and side in once:
                took[side] = result[0][side]
                continue
            time.sleep(SETTLE)
            took[side] = sides[side]()
        result.append(tuple(took))
    return result


def disturbed(rounds: Rounds) -> bool:
    """Return whether a side's rounds differ so much that they should be run again."""
    return any(max(side) > STEADY * min(side) for side in zip(*rounds, strict=True))


def in_brief(ratios: Sequence[float], rounds: Rounds) -> tuple[str, str]:
    """Return the median of the rounds' ratios, with a mark where they are disturbed, and their range."""
    return f"{median(ratios):.2f}{' *' * disturbed(rounds)}", f"{min(ratios):.2f} to {max(ratios):.2f}"
