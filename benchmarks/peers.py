"""fredsim against what one would write instead: a plain PyTorch loop that simulates the same clients.

    python -m benchmarks.peers [--all] [--quick] [--iterations N] [--rounds N] [--threads N] [-o FILE]

Both sides train 784-200-10 on MNIST in the cells (λ clients, minibatches of µ) of Figure 1 of Odena 2016
(arXiv:1601.04033), from the same initial parameters, with the same order of clients and minibatches and the same rules.
Nothing is timed before the two agree. Then their rounds alternate, so that a machine that slows down slows both.

Where the two cannot be timed alike, the loop has the advantage: it gets its order of clients drawn ahead and its
clients' copies allocated before its clock starts, and it records nothing, while fredsim's clock covers its dispatcher,
losses, staleness and digests. Neither clock covers compilation, loading or evaluation. PyTorch comes with
`pip install fredsim[bench]`.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor
from torch.nn.functional import cross_entropy

import fredsim
from fredsim.datasets import Dataset, data_root, load_dataset
from fredsim.dispatchers import DISPATCHERS
from fredsim.errors import FredsimError
from fredsim.models import Mlp
from fredsim.results import Result
from fredsim.streams import Streams

SEED = 0
HIDDEN = 200
CELLS = ((128, 1), (32, 4), (16, 8), (4, 32))  # (λ, µ)
LARGE = (250, 128)
SERVERS: tuple[dict[str, Any], ...] = (
    {"name": "asgd", "lr": 0.005},
    {"name": "sasgd", "lr": 0.04, "divisor": "plus1"},
    {"name": "fasgd", "lr": 0.005, "gamma": 0.9, "beta": 0.9, "eps": 1e-4, "variant": "std", "divisor": "max1"},
)

CHECKED = 200  # iterations after which the parameters must agree
TOLERANCE = 1e-3  # of max|Δθ| / max|θ|; the order of summation differs
LEAST = 3000  # 10 λ or more: every client comes again; about here FASGD's averages of quiet pixels turn subnormal
USUAL = 6000  # half of a round lies behind that point
STEADY = 1.5  # a side's slowest round over its fastest; beyond that something else used the machine
SETTLE = 0.3  # seconds between rounds: OpenMP's idle threads spin for some milliseconds before they sleep

Tensors = list[Tensor]
Push = Callable[[tuple[Tensor, ...], int], None]  # (gradient, staleness), updating θ in place


@dataclass(frozen=True)
class Contest:
    """One server in one cell."""

    server: dict[str, Any]
    clients: int
    batch_size: int
    threads: int

    @property
    def label(self) -> str:
        """The server and (λ, µ)."""
        return f"{self.server['name']} ({self.clients}, {self.batch_size})"


@dataclass(frozen=True)
class Timing:
    """The seconds of a contest's rounds, in pairs."""

    contest: Contest
    iterations: int
    difference: float  # max|Δθ| / max|θ| of the check
    seconds: list[tuple[float, float]]  # (fredsim, loop)

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        rates = [f"{median(self.iterations / pair[side] for pair in self.seconds):,.0f}" for side in (0, 1)]
        ratios = sorted(loop / own for own, loop in self.seconds)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        disturbed = any(max(side) > STEADY * min(side) for side in zip(*self.seconds, strict=True))
        names = (self.contest.server["name"], str(self.contest.clients), str(self.contest.batch_size))
        return (*names, *rates, f"{median(ratios):.2f}{' *' * disturbed}", spread, f"{self.difference:.0e}")


COLUMNS = ("server", "λ", "µ", "fredsim it/s", "torch it/s", "ratio", "ratio, range", "max|Δθ|/max|θ|")


def simulate(contest: Contest, iterations: int) -> tuple[float, Tensors]:
    """Run fredsim; return the seconds of its event loop, evaluation apart, and the final parameters."""
    experiment = {
        "seed": SEED,
        "iterations": iterations,
        "data": {"name": "mnist"},
        "model": {"hidden": [HIDDEN], "init": "he"},
        "clients": {"count": contest.clients, "batch_size": contest.batch_size, "sampling": "sequential"},
        "dispatcher": {"name": "uniform"},
        "server": contest.server,
        "evaluation": {"every": iterations + 1},
        "threads": contest.threads,
    }
    with tempfile.TemporaryDirectory() as folder:
        result = fredsim.run(experiment, out=folder)
        assert isinstance(result, Result)
        if result.summary["status"] != "finished":
            raise SystemExit(f"{contest.label}: fredsim's run ended as {result.summary['status']}")
        params = [torch.from_numpy(result.params[name].copy()) for name in ("W1", "b1", "W2", "b2")]
        return result.summary["seconds"], params


def loop(contest: Contest, iterations: int, dataset: Dataset) -> tuple[float, Tensors]:
    """Run the PyTorch loop; return the seconds of its iterations and the final parameters W1, b1, W2, b2.

    The fastest way found with autograd: lists of tensors, `torch._foreach` functions, snapshots copied in place. A flat
    vector with views, a call for each tensor, a clone at every fetch or nn.Linear's layout is no faster over all cells.
    """
    x, y = torch.from_numpy(dataset.train.x), torch.from_numpy(dataset.train.y)
    streams = Streams(SEED)
    model = Mlp((dataset.inputs, HIDDEN, dataset.classes), "he")
    theta = [torch.from_numpy(part) for part in model.layout.split(model.initial(streams)).values()]
    push = PUSHES[contest.server["name"]](theta, contest.server)
    held = [[part.clone().requires_grad_() for part in theta] for _ in range(contest.clients)]
    fetched = [0] * contest.clients  # the timestamp of what each client holds
    dispatcher = DISPATCHERS["uniform"]()
    dispatcher.init(contest.clients, streams)
    order = [dispatcher.choose(iteration) for iteration in range(iterations)]
    mu = contest.batch_size
    batches = len(y) // mu

    begin = time.perf_counter()
    for timestamp, client in enumerate(order):
        at = timestamp % batches * mu
        snapshot = held[client]
        W1, b1, W2, b2 = snapshot
        hidden = torch.addmm(b1, x[at : at + mu], W1).relu()
        loss = cross_entropy(torch.addmm(b2, hidden, W2), y[at : at + mu])
        grads = torch.autograd.grad(loss, snapshot)
        with torch.no_grad():
            push(grads, timestamp - fetched[client])
            torch._foreach_copy_(snapshot, theta)
        fetched[client] = timestamp + 1
    return time.perf_counter() - begin, theta


def asgd(theta: Tensors, server: dict[str, Any]) -> Push:
    """θ ← θ − α g."""
    lr = server["lr"]

    def push(g: tuple[Tensor, ...], staleness: int) -> None:
        del staleness
        torch._foreach_add_(theta, g, alpha=-lr)

    return push


def sasgd(theta: Tensors, server: dict[str, Any]) -> Push:
    """θ ← θ − α g / (τ + 1)."""
    lr = server["lr"]

    def push(g: tuple[Tensor, ...], staleness: int) -> None:
        torch._foreach_add_(theta, g, alpha=-lr / (staleness + 1))

    return push


def fasgd(theta: Tensors, server: dict[str, Any]) -> Push:
    """n ← γ n + (1−γ) g²; b ← γ b + (1−γ) g; v ← β v + (1−β) √(n − b² + ε); θ ← θ − α g / (v max(τ, 1))."""
    lr, gamma, beta, eps = (server[key] for key in ("lr", "gamma", "beta", "eps"))
    n, b = [torch.zeros_like(part) for part in theta], [torch.zeros_like(part) for part in theta]
    v = [torch.ones_like(part) for part in theta]

    def push(g: tuple[Tensor, ...], staleness: int) -> None:
        torch._foreach_mul_(n, gamma)
        torch._foreach_addcmul_(n, g, g, value=1 - gamma)
        torch._foreach_lerp_(b, g, 1 - gamma)
        deviation = torch._foreach_addcmul(n, b, b, value=-1)
        torch._foreach_clamp_min_(deviation, 0)  # n − b² may round below zero
        torch._foreach_add_(deviation, eps)
        torch._foreach_sqrt_(deviation)
        torch._foreach_lerp_(v, deviation, 1 - beta)
        torch._foreach_addcdiv_(theta, g, v, value=-lr / max(staleness, 1))

    return push


PUSHES: dict[str, Callable[[Tensors, dict[str, Any]], Push]] = {"asgd": asgd, "sasgd": sasgd, "fasgd": fasgd}


def check(contest: Contest, dataset: Dataset) -> float:
    """Return max|Δθ| / max|θ| after CHECKED iterations; this also warms both sides up. Exits where they disagree."""
    _, ours = simulate(contest, CHECKED)
    _, theirs = loop(contest, CHECKED, dataset)
    ours_flat, theirs_flat = (np.concatenate([part.numpy().ravel() for part in side]) for side in (ours, theirs))
    difference = float(np.abs(ours_flat - theirs_flat).max() / np.abs(ours_flat).max())
    if not difference <= TOLERANCE:  # NaN fails too
        raise SystemExit(
            f"{contest.label}: max|Δθ|/max|θ| is {difference:.1e} after {CHECKED} iterations, above {TOLERANCE}: "
            "the two do not simulate the same thing"
        )
    return difference


def measure(contest: Contest, iterations: int, rounds: int, dataset: Dataset) -> list[tuple[float, float]]:
    """Return the seconds (fredsim, loop) of each round; which of the two comes first alternates."""
    sides = (lambda: simulate(contest, iterations)[0], lambda: loop(contest, iterations, dataset)[0])
    pairs = []
    for turn in range(rounds):
        seconds = [0.0, 0.0]
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            time.sleep(SETTLE)
            seconds[side] = sides[side]()
        pairs.append((seconds[0], seconds[1]))
    return pairs


def heading(iterations: int, rounds: int, threads: int, quick: bool) -> Iterator[str]:
    """Yield what a reader needs in order to judge the table: how it came about, the machine, the versions, the date."""
    if quick:
        yield "Smoke run: NOT a measurement."
    yield (
        f"fredsim against a plain PyTorch loop, 784-{HIDDEN}-10 on MNIST: medians of {rounds} alternating rounds of "
        f"{iterations:,} iterations; ratio = torch's seconds / fredsim's, by pairs of rounds (*: disturbed, to be run "
        f"again: a side's slowest round took over {STEADY} times its fastest)."
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield f"{cpu_model()}, {cores} cores, {platform.system()}; threads of each side: {threads}."
    versions = (f"{package} {version(package)}" for package in ("fredsim", "torch", "numpy", "numba"))
    yield f"Python {platform.python_version()}, {', '.join(versions)}; {datetime.now(UTC):%Y-%m-%d}."


def cpu_model() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def markdown(head: Sequence[str], timings: Sequence[Timing]) -> str:
    """Return the heading and the table as Markdown."""
    rows = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *(timing.cells() for timing in timings)]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n\n".join([*head, "\n".join(table)]) + "\n"


def run(
    every_cell: Annotated[bool, typer.Option("--all", help=f"Add the cell {LARGE}.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run of one cell; its figures mean nothing.")] = False,
    iterations: Annotated[int, typer.Option(min=LEAST, help="Iterations a round.")] = USUAL,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds of each side.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each side.")] = 2,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the table as Markdown.")] = None,
) -> None:
    """Time fredsim against a plain PyTorch loop that simulates the same clients."""
    torch.set_num_threads(threads)
    dataset = load_dataset("mnist", 50000, 10000, data_root())
    if quick:
        iterations, rounds = CHECKED, 2
    cells = CELLS[1:2] if quick else (*CELLS, *[LARGE] * every_cell)
    console = Console(highlight=False)
    differences = []
    contests = [Contest(server, *cell, threads) for cell in cells for server in SERVERS]
    for contest in contests:
        differences.append(check(contest, dataset))
        console.print(f"{contest.label}: agree to {differences[-1]:.1e} after {CHECKED} iterations")
    timings = []
    for contest, difference in zip(contests, differences, strict=True):
        timings.append(Timing(contest, iterations, difference, measure(contest, iterations, rounds, dataset)))
        console.print(f"{contest.label}: timed")
    right = (Column(name, justify="right") for name in COLUMNS[1:])
    table = Table(COLUMNS[0], *right, box=None, pad_edge=False)
    for timing in timings:
        table.add_row(*timing.cells())
    head = list(heading(iterations, rounds, threads, quick))
    console.print(*head, table, sep="\n")
    if output is not None:
        output.write_text(markdown(head, timings), encoding="utf-8")


if __name__ == "__main__":
    try:
        typer.run(run)
    except FredsimError as error:
        sys.exit(f"error: {error}")
