"""What the order of a million clients costs, without gradients, and what a clock and the record of events cost a run.

    python -m benchmarks.dispatch NAME CLIENTS EVENTS

prints, as JSON, the seconds that one dispatcher takes, and the bytes by which it raises the process's peak memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import typer

from benchmarks.cells import Cell, simulate
from benchmarks.rounds import alternate, in_brief
from benchmarks.scale import peak_bytes
from benchmarks.tables import Table, say
from fredsim.dispatchers import DISPATCHERS
from fredsim.numerics.streams import Streams
from fredsim.simulation.paths.backends import make_operations
from fredsim.simulation.schedule.guarded_clock import GuardedClock

__all__ = ["clocks", "dispatch"]

ROOT = Path(__file__).parents[1]
CLIENTS, EVENTS = 1_000_000, 2_000_000
GAMMA = {"seconds": {"name": "gamma", "cv": 0.6}, "noise": {"name": "gamma", "cv": 0.1}}
DRAWN: dict[str, dict[str, Any]] = {
    "uniform": {}, "weighted": {"weights": [1.0, 2.0, 5.0]}, "clock": {"compute": GAMMA},
}  # fmt: skip


def dispatch(rounds: int) -> Table:
    """Time only the order of a million clients, without gradients."""
    rows = []
    for name in DRAWN:
        found = [in_a_process(name, CLIENTS, EVENTS) for _ in range(rounds)]
        rate = median(EVENTS / seconds for seconds, _ in found)
        room = median(peak / CLIENTS for _, peak in found)
        rows.append((name, f"{rate:,.0f}", f"{room:,.0f}"))
        say(f"dispatcher {name}: timed")
    return Table(
        "Who arrives next, without gradients",
        f"{CLIENTS:,} clients, {EVENTS:,} arrivals, one thread: medians of {rounds} processes. Bytes per client: the "
        "growth of the peak resident memory, arrivals included. Targets: 500,000 arrivals per second or more, and 200 "
        "bytes per client or fewer.",
        ("dispatcher", "arrivals per second", "bytes per client"),
        rows,
    )


def in_a_process(*words: object) -> tuple[float, int]:
    """Return the seconds and the bytes that a dispatcher takes, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.dispatch", *map(str, words)]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    return found["seconds"], found["bytes"]


CLOCKED = Cell("asgd", 32, 4)
SIDES: dict[str, dict[str, Any]] = {
    "without a clock": {},
    "a clock": {"dispatcher": {"name": "clock", "compute": GAMMA}},
    "a clock, events: true": {"dispatcher": {"name": "clock", "compute": GAMMA}, "events": True},
}


def clocks(least: int, rounds: int, threads: int) -> Table:
    """Time ASGD with a clock, and with the record of events, against a run with neither."""
    iterations = CLOCKED.iterations(least)

    def side(changes: dict[str, Any]) -> Callable[[], float]:
        return lambda: simulate(CLOCKED, iterations, threads, **changes)[0]["seconds"]

    sides = [side(changes) for changes in SIDES.values()]
    for one in sides:  # compiles
        one()
    seconds = alternate(sides, rounds)
    rows = []
    for place, name in enumerate(SIDES):
        each = f"{1e6 * median(row[place] for row in seconds) / iterations:,.2f}"
        rows.append((name, each, *in_brief([row[place] / row[0] for row in seconds], seconds)))
    return Table(
        "A clock, and its record",
        f"ASGD, λ = {CLOCKED.clients}, µ = {CLOCKED.batch_size}: µs per iteration, medians of {rounds} alternating "
        f"rounds of {iterations:,} iterations. Ratio: to the run without a clock; targets: 1.1, and 1.05 times that.",
        ("run", "µs", "ratio", "range"),
        rows,
    )


def main(name: str, clients: int, events: int) -> None:
    """Draw an order and print its seconds and bytes."""
    operations, streams = make_operations("numba", 1), Streams(1)
    for count in (1000, clients):  # the first compiles, or loads what was compiled before
        dispatcher = DISPATCHERS[name](**DRAWN[name])
        dispatcher.bind_runtime(streams, operations)
        before, began = peak_bytes(), time.perf_counter()
        if name == "clock":
            clock = GuardedClock(dispatcher, count)
            clock.call("init", count, streams)
            clock.configure(reacts=False, size=4, steps=1, until=None)
            found = 0
            while found < min(events, 1000 * count):
                found += len(clock.draw(2**17))
        else:
            dispatcher.init(count, streams)
            dispatcher.order(0, events if count == clients else 1000)
        took = time.perf_counter() - began
    print(json.dumps({"seconds": took, "bytes": peak_bytes() - before}))


if __name__ == "__main__":
    typer.run(main)
