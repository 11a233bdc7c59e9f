"""Runs several sides in turn, round by round, so that a machine that becomes slower slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from statistics import median

__all__ = ["MAX_RATIO", "Rounds", "alternate", "disturbed", "in_brief"]

PAUSE = 0.3  # seconds between sides: OpenMP's idle threads spin for some milliseconds before they sleep
MAX_RATIO = 1.5  # of a side's slowest round to its fastest; beyond it, something else used the machine

Rounds = list[tuple[float, ...]]  # seconds, or any other cost, of each side


def alternate(sides: Sequence[Callable[[], float]], rounds: int, once: Collection[int] = ()) -> Rounds:
    """Return what each side took in each round; the side that comes first rotates.

    The sides whose indices are in `once` run only in the first round.
    """
    result: Rounds = []
    for turn in range(rounds):
        took = [0.0] * len(sides)
        for place in range(len(sides)):
            side = (turn + place) % len(sides)
            if turn and side in once:
                took[side] = result[0][side]
                continue
            time.sleep(PAUSE)
            took[side] = sides[side]()
        result.append(tuple(took))
    return result


def disturbed(rounds: Rounds) -> bool:
    """Return whether the rounds of a side differ so much that they should be run again."""
    return any(max(side) > MAX_RATIO * min(side) for side in zip(*rounds, strict=True))


def in_brief(ratios: Sequence[float], rounds: Rounds) -> tuple[str, str]:
    """Return the median of the rounds' ratios, with a mark if they are disturbed, and their range."""
    return f"{median(ratios):.2f}{' *' * disturbed(rounds)}", f"{min(ratios):.2f} to {max(ratios):.2f}"
