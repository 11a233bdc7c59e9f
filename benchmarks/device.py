"""fredsim on a CUDA device: first whether its bits are the CPU's, then iterations a second beside others.

    python -m benchmarks.device [--minutes N] [--servers NAME,...] [-o FILE]

from the root of the repository, at most ten minutes by default; this needs `pip install .[cuda]` and a device. Then
comes Figure 1 of FASGD's paper, eight runs of 100,000 iterations, side by side and one after the other. Beside each
cell are fredsim on all cores of the CPU, and, where they are installed with support of the device, JAX and PyTorch
(benchmarks.device_peers). Cells are dense networks on MNIST, then LeNet and ResNet-8 on drawn images, each with 32
clients and minibatches of 32. What there was no time for is left out and said to be. The results are also written to
FILE.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import fredsim
from benchmarks.cells import FIGURE_1, HIDDEN, HYPER, Cell, simulate
from benchmarks.tables import Table, markdown, say, show
from fredsim.errors import ConfigError
from fredsim.system.limits import default_threads
from fredsim.system.machine import processor_name

Model = tuple[int, ...] | str  # the widths of hidden layers, or a network of fredsim.zoo

#: (λ, µ) and the model, and how many iterations a second are to be reached with ASGD on an H100 or H200
#: (docs/devices.md). Those of LeNet and ResNet-8 are 1.5 times those of PyTorch's CUDA graph on an H200.
SMALL, LARGE = (HIDDEN,), (2000, 2000)
GOALS = {
    ((128, 1), SMALL): 200_000, ((32, 4), SMALL): 130_000, ((16, 8), SMALL): 80_000, ((4, 32), SMALL): 33_000,
    ((250, 128), SMALL): 70_000, ((1000, 128), SMALL): 90_000, ((32, 4), LARGE): 18_000, ((100, 128), LARGE): 4_700,
    ((32, 32), "lenet"): 4_740, ((32, 32), "resnet"): 1_650,
}  # fmt: skip
CELLS = tuple(GOALS)
assert {pair for pair, _ in CELLS} >= set(FIGURE_1)
#: The shapes of the images of networks that are no dense ones, and how many there are.
IMAGES, SAMPLES = {"lenet": (1, 28, 28), "resnet": (3, 32, 32)}, 512
#: Iterations of the runs whose bits are compared, and how long a timed run takes, in seconds.
COMPARED: dict[Model, int] = {SMALL: 400, LARGE: 40, "lenet": 64, "resnet": 40}
TIMED = 4.0
#: The sweep whose runs are side by side, where its digests are, and the seconds that it is to take.
SWEEP, RECORDED, SWEEP_GOAL = "fasgd/fig1", Path("results", "reference", "fasgd", "fig1", "runs.csv"), 12.0
#: How often a kernel is repeated where its time is measured alone.
REPEATED = 20
#: What stands where there was no time to measure or to compare.
NO_TIME = "no time"


class Clock:
    """Whether there is still time."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    def left(self, seconds: float) -> bool:
        """Return whether so many seconds are left."""
        return time.monotonic() + seconds < self._end


def run(
    minutes: Annotated[float, typer.Option(help="The most that all takes.")] = 10.0,
    servers: Annotated[str, typer.Option(help="Servers, by commas.")] = "asgd,fasgd",
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the tables as Markdown.")] = Path("device.md"),
) -> None:
    """Compare bits, then speeds; end with an error if a digest differs."""
    try:
        from fredsim.cuda.machines import EMULATED, machine

        name = machine().name
    except ConfigError as error:
        say(f"Nothing was run: {error}")
        return
    clock, tables = Clock(minutes), []
    if EMULATED:
        say("The device is emulated: its times mean nothing, and only the two smallest cells are run.")
    cells = CELLS[:2] if EMULATED else CELLS
    names = servers.split(",")
    tables.append(bits(cells, names, clock))
    tables.append(sweeps(clock, ["iterations=300"] if EMULATED else []))
    tables.append(speeds(name, cells, names, clock))
    tables.append(kernels(cells, clock))
    for table in tables:
        show(table)
    output.write_text(markdown([f"# On {name}"], tables), encoding="utf-8")
    if any(row[-1] == "different" for table in tables[:2] for row in table.rows):
        raise SystemExit("bits differ")


def bits(cells: tuple[Any, ...], servers: list[str], clock: Clock) -> Table:
    """Compare digests of short runs."""
    rows = []
    for server, (pair, hidden) in product(servers, cells):
        cell = Cell(server, *pair)
        if not clock.left(20):
            rows.append((*cell.names, network(hidden), str(COMPARED[hidden]), NO_TIME))
            continue
        found = {once(cell, COMPARED[hidden], backend, hidden)["digest"] for backend in ("numba", "cuda")}
        same = "equal" if len(found) == 1 else "different"
        rows.append((*cell.names, network(hidden), str(COMPARED[hidden]), same))
        say(f"{cell.label}, {network(hidden)}: bits {same}")
    return Table(
        "Bits", "The digests of fredsim's runs on the device and on the CPU.", (*HEAD, "iterations", "bits"), rows
    )


def sweeps(clock: Clock, shorter: list[str]) -> Table:
    """Measure Figure 1 side by side, then one run after the other; compare the digests with those recorded on a CPU."""
    rows = []
    recorded = None if shorter else column(RECORDED, "digest")
    fredsim_sweep: Callable[..., Any] = fredsim.sweep
    for name, jobs in (("side by side", "device"), ("one after the other", 1)):
        goal = f"{SWEEP_GOAL:.0f}" if jobs == "device" and not shorter else ""
        if not clock.left(60):
            rows.append((name, "", "", "", goal, NO_TIME))
            continue
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            results = fredsim_sweep(SWEEP, ["backend=cuda", *shorter], out=Path(folder, "sweep"), jobs=jobs)
            took = time.perf_counter() - begin
            digests, iterations = column(results.folder / "runs.csv", "digest"), sum(results.runs["iterations"])
        recorded = recorded or digests
        same = "equal" if sorted(digests) == sorted(recorded) else "different"
        rows.append((name, f"{iterations:,}", f"{took:.1f}", f"{iterations / took:,.0f}", goal, same))
        say(f"Figure 1, {name}: {took:.1f} s, bits {same}")
    note = "Seconds of all eight runs of Figure 1 of FASGD's paper, with evaluations and files, on MNIST."
    return Table("A sweep", note, ("runs", "iterations", "seconds", "iterations/s", "goal, seconds", "bits"), rows)


def column(path: Path, name: str) -> list[str]:
    """Return a column of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


HEAD = ("server", "λ", "µ", "model")


def speeds(name: str, cells: tuple[Any, ...], servers: list[str], clock: Clock) -> Table:
    """Measure iterations a second: first of all cells on the device, then of each of the others."""
    found: dict[tuple[str, str, Any], str] = {}
    rows = list(product(servers, cells))
    sides = ["device", "JAX", "PyTorch", "CPU"]
    for side, (server, at) in product(sides, rows):
        if side in ("JAX", "PyTorch") and server != "asgd":
            continue
        if not clock.left(4 * TIMED):
            found[side, server, at] = NO_TIME
            continue
        found[side, server, at] = f"{rate_of(side, server, *at):,.0f}"
        say(f"{side}, {Cell(server, *at[0]).label}, {network(at[1])}: {found[side, server, at]} iterations/s")
    body = [
        (
            *Cell(server, *at[0]).names, network(at[1]), *(found.get((side, server, at), "") for side in sides),
            f"{GOALS[at]:,}" if server == "asgd" else f"{0.7 * GOALS[at]:,.0f}",
        )
        for server, at in rows
    ]  # fmt: skip
    note = (
        f"Iterations a second, evaluation apart: fredsim on {name}; JAX's scan and PyTorch's CUDA graph on the same "
        f"device, in float32 (nan: not installed for it); fredsim on {default_threads()} cores of {processor_name()}."
    )
    return Table("Speed", note, (*HEAD, *sides, "goal"), body)


def rate_of(side: str, server: str, pair: tuple[int, int], hidden: Model) -> float:
    """Return a side's iterations a second; NaN if it cannot run here."""
    if side in ("JAX", "PyTorch"):
        package = {"JAX": "jax", "PyTorch": "torch"}[side]
        if find_spec(package) is None or (package == "jax" and isinstance(hidden, str)):
            return float("nan")
        words = [
            package,
            *map(str, pair),
            hidden if isinstance(hidden, str) else ",".join(map(str, hidden)),
            str(TIMED),
        ]
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NVIDIA_TF32_OVERRIDE": "0"}
        command = [sys.executable, "-m", "benchmarks.device_peers", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return float("nan")
        return float(done.stdout.split()[-1])
    cell, backend = Cell(server, *pair), "cuda" if side == "device" else "numba"
    few = max(COMPARED[hidden], 3 * cell.clients)
    once(cell, few, backend, hidden)  # compiles what is not in the cache
    many = few
    for seconds in (TIMED / 10, TIMED):  # a run's beginning takes a part of the first
        many = max(few, int(seconds * many / float(once(cell, many, backend, hidden)["seconds"])))
    return max(many / float(once(cell, many, backend, hidden)["seconds"]) for _ in range(2))


def kernels(cells: tuple[Any, ...], clock: Clock) -> Table:
    """Measure each kernel of ASGD's windows alone."""
    rows = []
    for pair, hidden in cells:
        cell, found = Cell("asgd", *pair), {}
        if not clock.left(10):
            rows.append((*cell.names, network(hidden), "", NO_TIME))
            continue
        with measured_alone(found):
            once(cell, COMPARED[hidden], "cuda", hidden)
        rows += [(*cell.names, network(hidden), kernel, f"{1e6 * took:.1f}") for kernel, took in found.items()]
    note = f"Microseconds a window of a stretch, each kernel alone, launched {REPEATED} times in a row."
    return Table("Kernels", note, (*HEAD, "kernel", "µs a window"), rows)


@contextmanager
def measured_alone(found: dict[str, float]) -> Iterator[None]:
    """Within a `with` block, measure the kernels of the longest stretch that is queued: seconds a window, by name."""
    from fredsim.cuda import queue
    from fredsim.cuda.launches import Launches
    from fredsim.cuda.machines import machine

    longest = 0
    word = np.zeros(1, np.int32)

    class Measuring(Launches):
        """Runs each kernel's launches again, alone; what the run computes is of no use then."""

        def run(self) -> None:
            nonlocal longest
            super().run()
            if self._windows <= longest:
                return
            longest = self._windows
            found.clear()
            at = machine().allocate(4)
            for table, name in zip(self._tables, self._kernels, strict=True):
                alone = Launches(machine(), self._windows)
                alone._tables, alone._kernels = [table], [name]
                machine().download(at.address, word)  # waits for the device
                begin = time.perf_counter()
                for _ in range(REPEATED):
                    alone.run()
                machine().download(at.address, word)
                took = (time.perf_counter() - begin) / REPEATED / self._windows
                found[name] = found.get(name, 0.0) + took  # a network has several launches of it

    original = queue.Launches
    queue.Launches = Measuring  # type: ignore[misc]
    try:
        yield
    finally:
        queue.Launches = original  # type: ignore[misc]


def once(cell: Cell, iterations: int, backend: str, hidden: Model) -> dict[str, Any]:
    """Run fredsim once; return the summary."""
    if isinstance(hidden, str):
        return on_images(cell, iterations, backend, hidden)
    model = {"hidden": list(hidden), "init": "he"}
    simulated: Callable[..., Any] = simulate
    summary: dict[str, Any] = simulated(cell, iterations, default_threads(), backend=backend, model=model)[0]
    return summary


def on_images(cell: Cell, iterations: int, backend: str, name: str) -> dict[str, Any]:
    """Run fredsim once with one of its networks, on drawn images; return the summary."""
    with tempfile.TemporaryDirectory() as folder:
        rng, path = np.random.default_rng(0), Path(folder, "images.npz")
        x, y = rng.standard_normal((SAMPLES, *IMAGES[name])).astype(np.float32), rng.integers(0, 10, SAMPLES)
        np.savez(path, x_train=x, y_train=y, x_test=x[:32], y_test=y[:32])
        experiment = {
            "iterations": iterations,
            "data": {"name": f"npz:{path}", "validation": 32},
            "model": {"name": name},
            "clients": {"count": cell.clients, "batch_size": cell.batch_size, "sampling": "sequential"},
            "dispatcher": {"name": "uniform"},
            "server": {"name": cell.server, **HYPER[cell.server], "lr": 1e-6},  # it ends nowhere, and does not diverge
            "evaluation": {"every": iterations + 1},
            "threads": default_threads(),
            "backend": backend,
        }
        result: Any = fredsim.run(experiment, out=Path(folder, "run"))
        summary: dict[str, Any] = result.summary
        if summary["status"] != "finished":
            raise SystemExit(f"{cell.label}, {name}: fredsim's run ended as {summary['status']}")
        return summary


def network(hidden: Model) -> str:
    """Return a network's name."""
    if isinstance(hidden, str):
        return {"lenet": "LeNet", "resnet": "ResNet-8"}[hidden]
    return "-".join(map(str, (784, *hidden, 10)))


if __name__ == "__main__":
    typer.run(run)
