"""Compares a real asynchronous run with its simulation, and with a parameter server on torch.distributed.rpc.

    python -m benchmarks.live [--servers NAME,...] [--cells λxµ,...] [--rounds N] [--updates N] [-o FILE]

Each worker is a process with one thread and one client, so λ is the number of workers. Seconds are counted from the
first gradient on, without starting processes, loading data and compiling.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.cells import HYPER, Cell, simulate
from benchmarks.rounds import alternate, in_brief
from benchmarks.tables import Table, heading, markdown, say, show
from fredsim.runs.checkpoint.checkpoints import NO_CHECKPOINTS
from fredsim.runs.live.live import run_live
from fredsim.runs.single.opening import open_expansion

__all__ = ["live"]

ROOT = Path(__file__).parents[1]
CELLS = "2x4,2x32,2x128"
THREADS = 2  # of the simulation


def live(cells: list[Cell], updates: int, rounds: int, threads: int) -> Table:
    """Time `fredsim live` against the loop on torch.distributed.rpc, and the simulator."""
    rows = []
    for cell in cells:
        simulate(cell, 50, threads)  # compiles
        sides = [lambda cell=cell: really(cell, updates), lambda cell=cell: by_rpc(cell, updates),
                 lambda cell=cell: simulate(cell, updates, threads)[0]["seconds"]]  # fmt: skip
        seconds = alternate(sides, rounds)
        rates = [f"{updates / median(row[place] for row in seconds):,.0f}" for place in range(3)]
        rows.append((*cell.names, *rates, *in_brief([row[1] / row[0] for row in seconds], seconds)))
        say(f"{cell.label}: timed")
    return Table(
        "Real clients",
        f"Updates a second, medians of {rounds} alternating rounds of {updates:,} updates. Ratio: how many times as "
        "fast `fredsim live` is as the loop on torch.distributed.rpc.",
        ("server", "λ", "µ", "fredsim live", "torch rpc", "simulated", "ratio", "range"),
        rows,
    )


def really(cell: Cell, updates: int) -> float:
    """Return the seconds of a live run."""
    data: dict[str, Any] = {
        "seed": 0, "iterations": updates, "data": {"name": cell.data}, "model": {"hidden": [200], "init": "he"},
        "clients": {"count": cell.clients, "batch_size": cell.batch_size}, "server": {"name": cell.server} | cell.hyper,
        "evaluation": {"every": updates + 1}, "threads": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result = run_live(open_expansion(data), folder, workers=cell.clients, policy=NO_CHECKPOINTS)
        return float(result.summary["time"])


def by_rpc(cell: Cell, updates: int) -> float:
    """Return the seconds of the loop on torch.distributed.rpc."""
    words = cell.server, cell.clients, cell.batch_size, cell.data, updates
    command = [sys.executable, "-m", "benchmarks.rpc_loop", *map(str, words)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return float(json.loads(found)["seconds"])


def main(
    servers: Annotated[str, typer.Option(help=f"Servers, by commas: {', '.join(HYPER)}.")] = "asgd,fasgd",
    cells: Annotated[str, typer.Option(help="Cells λxµ, by commas.")] = CELLS,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side.")] = 5,
    updates: Annotated[int, typer.Option(min=1, help="Updates a round.")] = 2000,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the table as Markdown.")] = None,
) -> None:
    """Time real asynchronous runs."""
    pairs = [tuple(map(int, cell.split("x"))) for cell in cells.split(",")]
    table = live([Cell(name, *pair) for pair in pairs for name in servers.split(",")], updates, rounds, THREADS)
    show(table)
    if output is not None:
        output.write_text(markdown(list(heading(THREADS, 1)), [table]), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
