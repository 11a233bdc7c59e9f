"""fredsim against what one would write instead: a plain PyTorch loop, and a simulation compiled by JAX.

Nothing is timed before all sides agree on the parameters. Then their rounds alternate. fredsim's time is `seconds` of
the run's summary: it includes the dispatcher, losses, staleness and digests, which the peers do not compute. No side's
time includes compilation, loading and evaluation. What a cell used is freed before the next cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import jax_loop, torch_loop
from benchmarks.cells import Cell, simulate
from benchmarks.floor import floor, work
from benchmarks.rates import measure
from benchmarks.rounds import Rounds, alternate, in_brief
from benchmarks.tables import Table, say

__all__ = ["CHECKED", "agreement", "contest", "own_server"]

CHECKED = 200  # iterations after which the parameters must agree
TOLERANCE = 1e-3  # for max|Δθ| / max|θ|, as the order of summation differs

Array = NDArray[np.float32]
Side = Callable[[], tuple[float, Array]]  # seconds, final parameters
Maker = Callable[[int], Side]  # makes a side that runs this many iterations


def fredsim_side(cell: Cell, threads: int, **changes: Any) -> Maker:
    """Return the maker of fredsim's side."""

    def run(iterations: int) -> tuple[float, Array]:
        summary, params = simulate(cell, iterations, threads, **changes)
        return summary["seconds"], params

    return lambda iterations: partial(run, iterations)


def torch_side(cell: Cell) -> Maker:
    """Return the maker of PyTorch's side."""
    return lambda iterations: partial(torch_loop.run, cell, iterations)


def jax_side(cell: Cell) -> Maker:
    """Return the maker of JAX's side; making it compiles."""
    return partial(jax_loop.Compiled, cell)


def agreement(cell: Cell, own: Maker, peers: dict[str, Maker]) -> str:
    """Return max|Δθ| / max|θ| of the peer that differs most from fredsim; this also warms all sides up.

    Exits if they disagree. With few clients, FASGD learns so fast that one hidden unit whose input is 0 except for
    rounding may change all parameters within a hundred iterations (λ = 4: an input of 5·10⁻⁷ at iteration 86). Then it
    is enough that they agree at the end of the first 10 λ iterations, in which every client has come again.
    """
    for iterations in sorted({CHECKED, min(CHECKED, 10 * cell.clients)}, reverse=True):
        ours = own(iterations)()[1]
        found = {
            name: float(np.abs(ours - make(iterations)()[1]).max() / np.abs(ours).max()) for name, make in peers.items()
        }
        said = ", ".join(f"{name} by {difference:.1e}" for name, difference in found.items())
        say(f"{cell.label}: after {iterations} iterations max|Δθ|/max|θ| differs from {said}")
        if all(difference <= TOLERANCE for difference in found.values()):  # NaN does not
            return f"{max(found.values()):.0e}{f' at {iterations}' * (iterations != CHECKED)}"
    raise SystemExit(f"{cell.label}: that is above {TOLERANCE}: they do not simulate the same thing")


def contest(cells: Sequence[Cell], least: int, rounds: int, threads: int, *, quick: bool = False) -> Table:
    """Time fredsim, PyTorch and JAX in each cell, for `least` iterations or more; `quick`: PyTorch in one round."""
    differences = []
    for cell in cells:
        peers = {"torch": torch_side(cell), "JAX": jax_side(cell)}
        differences.append(agreement(cell, fredsim_side(cell, threads), peers))
    needs = {cell: work(cell, cell.iterations(least)) for cell in cells}
    rates = measure(threads, tuple(sorted({need.swept for need in needs.values()})))
    timings: list[Rounds] = []
    for cell in cells:
        iterations = cell.iterations(least)
        sides = [make(iterations) for make in (fredsim_side(cell, threads), torch_side(cell), jax_side(cell))]
        timings.append(alternate([seconds_of(side) for side in sides], rounds, once=[1] if quick else []))
        say(f"{cell.label}: timed over {iterations:,} iterations")
    rates = rates.best_of(measure(threads, tuple(rates.near)))

    rows = []
    for cell, seconds, difference in zip(cells, timings, differences, strict=True):
        iterations = cell.iterations(least)
        per_second = [f"{median(iterations / took for took in side):,.0f}" for side in zip(*seconds, strict=True)]
        ratios = [min(torch, jax) / own for own, torch, jax in seconds]
        least_time = floor(needs[cell], rates)
        took = median(own for own, _, _ in seconds) / iterations
        times = f"{1e6 * least_time.seconds:.1f} {least_time.bound}", f"{took / least_time.seconds:.1f}"
        measured = *per_second, *in_brief(ratios, seconds), *times, least_time.shares(took)
        rows.append((*cell.names, *measured, difference))
    return Table(
        "fredsim and its peers",
        f"Iterations per second: medians of {rounds} alternating rounds of {least:,} iterations, or of 10 λ where that "
        f"is more{'; of PyTorch one round' * quick}. Ratio: the time of the faster of the two peers / fredsim's, round "
        "by round. Floor: the least time of an iteration (µs) at the rates below, and what limits it "
        "(benchmarks/floor.py says what it leaves out); × floor: fredsim's time / the floor. Reached: the percentage "
        f"of each of these rates that fredsim reaches. {rates.describe()}",
        ("server", "λ", "µ", "fredsim it/s", "torch it/s", "JAX it/s", "ratio", "range", "floor µs", "× floor",
         "reached", "max|Δθ|/max|θ|"),
        rows,
    )  # fmt: skip


def own_server(sizes: Sequence[tuple[int, int]], least: int, rounds: int, threads: int) -> Table:
    """Time a user's server in plain NumPy against PyTorch, in cells (λ, µ)."""
    rows = []
    for clients, batch_size in sizes:
        cell = Cell("asgd", clients, batch_size)
        server = {"name": "benchmarks.plain:PlainASGD", **cell.hyper}
        makers = fredsim_side(cell, threads, server=server), torch_side(cell)
        agreement(cell, makers[0], {"torch": makers[1]})
        iterations = cell.iterations(least)
        sides = [make(iterations) for make in makers]
        seconds = alternate([seconds_of(side) for side in sides], rounds)
        per_second = [f"{median(iterations / took for took in side):,.0f}" for side in zip(*seconds, strict=True)]
        rows.append((*cell.names[1:], *per_second, *in_brief([torch / own for own, torch in seconds], seconds)))
    return Table(
        "A server of your own, in plain NumPy",
        f"Iterations per second of benchmarks.plain:PlainASGD: medians of {rounds} alternating rounds of {least:,} "
        "iterations, or of 10 λ where that is more. Ratio: PyTorch's time / fredsim's; target: 2.5 or more.",
        ("λ", "µ", "fredsim it/s", "torch it/s", "ratio", "range"),
        rows,
    )


def seconds_of(side: Side) -> Callable[[], float]:
    """Return a function that runs a side and returns its seconds, without keeping its parameters."""
    return lambda: side()[0]
