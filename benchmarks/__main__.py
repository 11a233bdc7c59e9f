"""fredsim's speed: against its peers, against the machine and against itself.

    python -m benchmarks [--only TABLE,...] [--servers NAME,...] [--cells λxµ,...] [--rounds N] [--iterations N]
                         [--threads N] [--peer-threads N] [--quick] [-o FILE]

from the root of the repository; PyTorch and JAX come with `pip install .[bench]`. Tables: contest (against a
PyTorch loop and a JAX scan), plain (a user's NumPy server), gates (B-FASGD), scale (many clients), evaluation, overhead
(outside the kernels), dispatch (only the order of a million clients), clocks (a clock, and the record of events),
networks (an iteration of LeNet, ResNets, a VGG and transformers, against PyTorch), kinds (of captured modules such as
MobileNets), native (whole runs of PyTorch modules against a plain loop).

The process, with all sides in it, is bound to as many processors as fredsim has threads. The peers have the same number
of threads: PyTorch by set_num_threads, XLA by the processors that the process may use when XLA starts. Two threads are
not always best for the peers: at small µ the JAX scan was up to 1.5 times as fast on one (--peer-threads 1).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.cells import CELLS, FIGURE_1, HYPER, LEAST, USUAL, Cell
from benchmarks.dispatch import clocks, dispatch
from benchmarks.evaluation import evaluation
from benchmarks.kinds import KINDS
from benchmarks.native import native
from benchmarks.networks import networks
from benchmarks.own import gates, overhead
from benchmarks.scale import scale
from benchmarks.tables import Table, heading, markdown, say, show
from fredsim.errors import FredsimError

TABLES = (
    "contest",
    "plain",
    "gates",
    "scale",
    "evaluation",
    "overhead",
    "dispatch",
    "clocks",
    "networks",
    "kinds",
    "native",
)


def chosen(given: str, known: tuple[str, ...], what: str) -> list[str]:
    """Return the names in a comma-separated list, or all known names if it is empty."""
    names = given.split(",") if given else list(known)
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"unknown {what} '{name}' (known: {', '.join(known)})")
    return names


def sizes(given: str) -> list[tuple[int, int]]:
    """Return the cells (λ, µ) of a comma-separated list such as 128x1,32x4."""
    try:
        pairs = [tuple(map(int, pair.split("x"))) for pair in given.split(",")]
    except ValueError:
        pairs = [()]
    if any(len(pair) != 2 or min(pair) < 1 for pair in pairs):
        raise typer.BadParameter(f"'{given}' must be cells such as 128x1,32x4: clients, x, minibatch")
    return [(clients, batch_size) for clients, batch_size in pairs]


def run(
    only: Annotated[str, typer.Option(help=f"Tables, by commas: {', '.join(TABLES)}.")] = "",
    servers: Annotated[str, typer.Option(help=f"Servers, by commas: {', '.join(HYPER)}.")] = "",
    cells: Annotated[str, typer.Option(help="Cells λxµ, by commas; by default each table's own.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side.")] = 5,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations a round; 10 λ where that is more.")] = USUAL,
    threads: Annotated[int, typer.Option(min=1, help="Threads of fredsim.")] = 2,
    peer_threads: Annotated[int, typer.Option(min=0, help="Threads of PyTorch and JAX; 0: as many.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="The contest of ASGD and FASGD, in about two minutes.")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the tables as Markdown.")] = None,
) -> None:
    """Time fredsim against its peers and against itself."""
    if quick:
        iterations, rounds, only, servers = LEAST, 3, only or "contest", servers or "asgd,fasgd"
        cells = cells or ",".join(f"{clients}x{mu}" for clients, mu in CELLS[:-1])
    names = chosen(only, TABLES, "table")
    given = sizes(cells) if cells else []
    measured = [Cell(server, *pair) for pair in given or CELLS for server in chosen(servers, tuple(HYPER), "server")]
    peers = peer_threads or threads
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if {"contest", "plain"} & {*names}:  # JAX is imported only where it takes part
        from benchmarks import jax_loop
        from benchmarks.contest import contest, own_server

        jax_loop.open_pool(peers)
    torch.set_num_threads(peers)
    make: dict[str, Callable[[], Table]] = {
        "contest": lambda: contest(measured, iterations, rounds, threads, quick=quick),
        "plain": lambda: own_server(given or FIGURE_1, iterations, rounds, threads),
        "gates": lambda: gates(iterations, rounds, threads),
        "scale": lambda: scale(rounds, threads),
        "evaluation": lambda: evaluation(rounds, threads),
        "overhead": lambda: overhead(measured, iterations, rounds, threads),
        "dispatch": lambda: dispatch(rounds),
        "clocks": lambda: clocks(iterations, rounds, threads),
        "networks": lambda: networks(rounds, threads),
        "kinds": lambda: networks(rounds, threads, KINDS, "Kinds of networks"),
        "native": lambda: native(rounds, threads),
    }
    head = list(heading(threads, peers))
    for line in head:
        say(line)
    tables = []
    for name in names:
        tables.append(make[name]())
        show(tables[-1])
        if output is not None:
            output.write_text(markdown(head, tables), encoding="utf-8")


if __name__ == "__main__":
    try:
        typer.run(run)
    except FredsimError as error:
        sys.exit(f"error: {error}")
