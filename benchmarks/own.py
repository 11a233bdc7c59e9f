"""fredsim against itself: what a gate costs, and what it spends outside its kernels."""

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
        f"FASGD with and without the fetch gate {GATE['fetch']}: µs an iteration, medians of {rounds} alternating "
        f"rounds of {iterations:,} iterations. Ratio: with / without; target: 2 or less.",
        ("λ", "µ", "without", "with", "ratio", "range"),
        [(*GATED.names[1:], *each, *in_brief([gated / plain for plain, gated in seconds], seconds))],
    )


def overhead(cells: Sequence[Cell], least: int, rounds: int, threads: int) -> Table:
    """Return the share of a run's time that its kernels do not account for."""
    rows = []
    for cell in cells:
        iterations = cell.iterations(least)
        seconds: Rounds = []
        outside: list[tuple[float, float]] = []  # share, seconds
        for _ in range(rounds):
            summary, _ = simulate(cell, iterations, threads)
            seconds.append((summary["seconds"],))
            if "seconds_kernels" in summary:
                rest = summary["seconds"] - summary["seconds_kernels"]
                outside.append((rest / summary["seconds"], rest))
        each = f"{1e6 * median(took for (took,) in seconds) / iterations:,.1f}"
        if not outside:
            rows.append((*cell.names, each, "not recorded", "", ""))
            continue
        shares = [share for share, _ in outside]
        _, spread = in_brief([100 * share for share in shares], seconds)
        rest = f"{1e6 * median(rest for _, rest in outside) / iterations:,.2f}"
        rows.append((*cell.names, each, rest, f"{100 * median(shares):.1f}", spread))
    return Table(
        "Outside the kernels",
        f"1 − seconds_kernels / seconds of the run's summary, evaluation apart in both: medians of {rounds} runs of "
        f"{least:,} iterations, or 10 λ where that is more.",
        ("server", "λ", "µ", "µs an iteration", "outside, µs", "outside, %", "range, %"),
        rows,
    )
