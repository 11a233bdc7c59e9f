"""fredsim on a CUDA device compared with fredsim on the CPU: equal digests, and iterations per second.

    python -m benchmarks.device [--iterations N] [--rounds N] [--servers NAME,...] [-o FILE]

from the root of the repository; this needs `pip install .[cuda]` and a device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.cells import FIGURE_1, HIDDEN, Cell, simulate
from benchmarks.rounds import alternate, in_brief
from benchmarks.tables import Table, markdown, say, show
from fredsim.simulation.engines import resolve_backend
from fredsim.system.machine import processor_name
from fredsim.system.processors import default_threads

CELLS = (*FIGURE_1, (1000, 128))


def run(
    iterations: Annotated[int, typer.Option(min=1, help="Iterations a round.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side.")] = 5,
    servers: Annotated[str, typer.Option(help="Servers, by commas.")] = "asgd,fasgd",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the table as Markdown.")] = None,
) -> None:
    """Time the device and the CPU in turn; end with an error if their digests differ."""
    if resolve_backend("auto") != "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        say("No CUDA device here: nothing was run.")
        return
    from fredsim.cuda.device import name

    rows = []
    threads = default_threads()
    for cell in [Cell(server, *pair) for pair in CELLS for server in servers.split(",")]:
        digests = {backend: simulate(cell, iterations, threads, backend=backend)[0]["digest"] for backend in BACKENDS}
        if len(set(digests.values())) > 1:
            raise SystemExit(f"{cell.label}: the digests differ: {digests}")
        seconds = alternate([_side(cell, iterations, threads, backend) for backend in BACKENDS], rounds)
        rates = [f"{iterations / median(side):,.0f}" for side in zip(*seconds, strict=True)]
        ratio = in_brief([cpu / device for cpu, device in seconds], seconds)
        rows.append((*cell.names, *rates, *ratio, digests["cuda"][:16]))
        say(f"{cell.label}: {rates[0]} and {rates[1]} iterations/s, the same digest")
    table = Table(
        "On a CUDA device",
        f"{name()} beside {threads} cores of {processor_name()}, 784-{HIDDEN}-10 on MNIST: iterations a second, "
        f"evaluation apart, medians of {rounds} alternating rounds of {iterations:,} iterations. Ratio: device / CPU.",
        ("server", "λ", "µ", "CPU", "device", "ratio", "range", "digest of both"),
        rows,
    )
    show(table)
    if output is not None:
        output.write_text(markdown([], [table]), encoding="utf-8")


BACKENDS = ("numba", "cuda")


def _side(cell: Cell, iterations: int, threads: int, backend: str) -> Callable[[], float]:
    return lambda: simulate(cell, iterations, threads, backend=backend)[0]["seconds"]


if __name__ == "__main__":
    typer.run(run)
