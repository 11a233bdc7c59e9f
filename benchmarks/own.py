"""fredsim against itself: what a gate costs, and how much time is spent outside the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.cells import Cell, simulate
from benchmarks.rounds import Rounds, alternate, in_brief
from benchmarks.tables import Table

__all__ = ["gates", "overhead"]

GATED = Cell("fasgd", 32, 4)
GATE = {"name": "uniform", "fetch": {"bandwidth_aware": {"c": 0.0625}}}


def gates(least: int, rounds: int, threads: int) -> Table:
    """Time B-FASGD, whose fetches may be dropped by the gradients' mean deviation, against FASGD."""
    iterations = GATED.iterations(least)

    def side(**changes: Any) -> Callable[[], float]:
        return lambda: simulate(GATED, iterations, threads, **changes)[0]["seconds"]

    sides = (side(), side(dispatcher=GATE))
    for one in sides:  # compiles
        one()
    seconds = alternate(sides, rounds)
    each = [f"{1e6 * median(side) / iterations:,.1f}" for side in zip(*seconds, strict=True)]
    return Table(
        "A bandwidth-aware gate",
        f"FASGD with and without the fetch gate {GATE['fetch']}: µs per iteration, medians of {rounds} alternating "
        f"rounds of {iterations:,} iterations. Ratio: with / without; target: 1.4 or less.",
        ("λ", "µ", "without", "with", "ratio", "range"),
        [(*GATED.names[1:], *each, *in_brief([gated / plain for plain, gated in seconds], seconds))],
    )


SHARES = ("gradient and update", "forward and error", "inputs", "waiting")


def overhead(cells: Sequence[Cell], least: int, rounds: int, threads: int) -> Table:
    """Return how a run's time divides: the shares of the kernels' activities, and the rest."""
    rows = []
    for cell in cells:
        iterations = cell.iterations(least)
        summaries = [simulate(cell, iterations, threads)[0] for _ in range(rounds)]
        seconds: Rounds = [(summary["seconds"],) for summary in summaries]
        outside = [1 - summary["seconds_kernels"] / summary["seconds"] for summary in summaries]
        _, spread = in_brief([100 * share for share in outside], seconds)
        shares = [
            median(
                summary["shares_kernels"][name] * (1 - rest) for rest, summary in zip(outside, summaries, strict=True)
            )
            for name in SHARES
        ]
        each = f"{1e6 * median(took for (took,) in seconds) / iterations:,.1f}"
        rows.append((*cell.names, each, *(f"{100 * share:.1f}" for share in (*shares, median(outside))), spread))
    return Table(
        "Where the time goes",
        "µs per iteration without evaluation, and the percentages of it that are spent in kernels (by the threads' "
        f"cycle counters) and outside of them (Python, bookkeeping, recording): medians of {rounds} runs of {least:,} "
        "iterations, or of 10 λ where that is more.",
        ("server", "λ", "µ", "µs", *SHARES, "outside", "outside, range"),
        rows,
    )
