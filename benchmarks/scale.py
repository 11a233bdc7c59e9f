"""How time and memory grow with the number of clients; each run is a process of its own.

    python -m benchmarks.scale CLIENTS BATCH_SIZE ITERATIONS THREADS

prints one run's seconds and peak resident bytes as JSON. The peak includes the interpreter, the libraries and MNIST.
On Linux it is VmHWM, because ru_maxrss of a process is at least that of the process that started it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import typer

from benchmarks.cells import Cell, simulate
from benchmarks.rounds import alternate, in_brief
from benchmarks.tables import Table, say

__all__ = ["scale"]

ROOT = Path(__file__).parents[1]
PAIRS = ((128, 250, 10_000, 20_000, 1.3), (1, 250, 1_000_000, 100_000, 1.5))  # µ, few λ, many λ, iterations, target


def scale(rounds: int, threads: int) -> Table:
    """Time ASGD with few clients against many."""
    rows = []
    for batch_size, few, many, iterations, target in PAIRS:
        peaks: dict[int, int] = {few: 0, many: 0}

        def side(clients: int, batch_size: int = batch_size, iterations: int = iterations) -> Callable[[], float]:
            def run() -> float:
                seconds, peak = in_a_process(clients, batch_size, iterations, threads)
                peaks[clients] = max(peaks[clients], peak)  # noqa: B023  not called later
                return seconds

            return run

        seconds = alternate((side(few), side(many)), rounds)
        each = [f"{1e6 * median(side) / iterations:,.1f}" for side in zip(*seconds, strict=True)]
        memory = [f"{peaks[clients] / 2**20:,.0f}" for clients in (few, many)]
        brief = in_brief([much / little for little, much in seconds], seconds)
        few_cells, many_cells = ((f"{clients:,}", each[i], memory[i]) for i, clients in enumerate((few, many)))
        rows.append((str(batch_size), f"{iterations:,}", *few_cells, *many_cells, *brief, f"{target}"))
        say(f"µ = {batch_size}: timed with {few:,} and {many:,} clients")
    return Table(
        "Many clients",
        "ASGD with few (λ) and many (λ′) clients, each run in a process of its own: µs per iteration (medians of "
        f"{rounds} alternating rounds) and peak resident memory in MiB (maxima). Ratio: time with many / with few.",
        ("µ", "iterations", "λ", "µs", "MiB", "λ′", "µs′", "MiB′", "ratio", "range", "target: at most"),
        rows,
    )


def in_a_process(clients: int, batch_size: int, iterations: int, threads: int) -> tuple[float, int]:
    """Return the seconds and the peak resident bytes of a run."""
    words = [sys.executable, "-m", "benchmarks.scale", *map(str, (clients, batch_size, iterations, threads))]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ran.stderr}")
    found = json.loads(ran.stdout)
    return found["seconds"], found["peak"]


def peak_bytes() -> int:
    """Return this process's peak resident memory, in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def main(clients: int, batch_size: int, iterations: int, threads: int) -> None:
    """Run ASGD once and print its seconds and its peak resident bytes."""
    cell = Cell("asgd", clients, batch_size)
    simulate(Cell("asgd", 10, batch_size), 100, threads)  # compiles, or loads what was compiled before
    summary, _ = simulate(cell, iterations, threads)
    print(json.dumps({"seconds": summary["seconds"], "peak": peak_bytes()}))


if __name__ == "__main__":
    typer.run(main)
