"""fredsim on a CUDA device compared with fredsim on the CPU: equal digests, and iterations per second.

    python -m benchmarks.device [--iterations N] [--rounds N] [--servers NAME,...] [-o FILE]

from the root of the repository; this needs `pip install .[cuda]` and a device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.cells import FIGURE_1, HIDDEN, Cell, simulate
from benchmarks.rounds import alternate, in_brief
from benchmarks.tables import Table, markdown, say, show
from fredsim.simulation.paths.engines import resolve_backend
from fredsim.system.machine import processor_name
from fredsim.system.processors import default_threads

#: (λ, µ) and the widths of hidden layers.
SMALL, LARGE = (HIDDEN,), (2000, 2000)
CELLS = (*((pair, SMALL) for pair in (*FIGURE_1, (1000, 128))), ((32, 4), LARGE), ((100, 128), LARGE))
BACKENDS = ("numba", "cuda")


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

    rows, lengths = [], {SMALL: iterations, LARGE: max(1, iterations // 20)}
    threads = default_threads()
    for server, (pair, hidden) in product(servers.split(","), CELLS):
        cell, length = Cell(server, *pair), lengths[hidden]
        model = "-".join(map(str, (784, *hidden, 10)))
        sides = [_side(cell, length, threads, backend, hidden) for backend in BACKENDS]
        digests = [side()["digest"] for side in sides]
        if len(set(digests)) > 1:
            raise SystemExit(f"{cell.label}, {model}: the digests differ: {digests}")
        seconds = alternate([lambda side=side: side()["seconds"] for side in sides], rounds)
        rates = [f"{length / median(side):,.0f}" for side in zip(*seconds, strict=True)]
        ratio = in_brief([cpu / device for cpu, device in seconds], seconds)
        rows.append((*cell.names, model, *rates, *ratio, digests[0][:16]))
        say(f"{cell.label}, {model}: {rates[0]} and {rates[1]} iterations/s, the same digest")
    table = Table(
        "On a CUDA device",
        f"{name()} beside {threads} cores of {processor_name()}, on MNIST: iterations a second, evaluation apart, "
        f"medians of {rounds} alternating rounds of {iterations:,} iterations (of the larger model "
        f"{lengths[LARGE]:,}). Ratio: device / CPU.",
        ("server", "λ", "µ", "model", "CPU", "device", "ratio", "range", "digest of both"),
        rows,
    )
    show(table)
    if output is not None:
        output.write_text(markdown([], [table]), encoding="utf-8")


def _side(
    cell: Cell, iterations: int, threads: int, backend: str, hidden: tuple[int, ...]
) -> Callable[[], dict[str, Any]]:
    model = {"hidden": list(hidden), "init": "he"}
    return lambda: simulate(cell, iterations, threads, backend=backend, model=model)[0]


if __name__ == "__main__":
    typer.run(run)
