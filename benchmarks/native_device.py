"""PyTorch modules on a CUDA device, computed by PyTorch (`numerics: native`): first whether they are right, then speed.

    python -m benchmarks.native_device [--cases lenet,resnet,resnet20] [--seconds S] [--lanes 1,4,8] [-o FILE]

from the root of the repository, in about two minutes; this needs `pip install .[cuda]`, PyTorch for CUDA and a device.
Of each case, 32 clients with minibatches of 32, the parameters after a few iterations are compared with those of the
processor (they agree to rounding) and of a second run on the device, also on another path (the same bits). Then come
iterations a second of whole runs, with up to so many clients side by side, beside the CUDA graph that one would write
in PyTorch (benchmarks.device_peers, which may choose algorithms that are not deterministic), and the microseconds of
fredsim's graphs alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.tables import Table, markdown, say, show
from fredsim.config.resolution import resolve
from fredsim.cuda.machines import EMULATED, machine
from fredsim.native import on_device
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute_here
from fredsim.runs.single.prepared import prepare
from fredsim.simulation.paths.backends import make_engine

CLIENTS, MU = 32, 32
CHECKED, TOLERANCE = 12, 1e-3  # iterations after which the parameters must agree, and max|Δθ| / max|θ|
SAMPLES, OTHERS = 512, 32
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "lenet": ({"name": "torch:fredsim.zoo:lenet"}, (1, 28, 28)),
    "resnet": ({"name": "torch:fredsim.zoo:resnet", "depth": 8}, (3, 32, 32)),
    "resnet20": ({"name": "torch:fredsim.zoo:resnet", "depth": 20}, (3, 32, 32)),
}
HEAD = ("case", "lanes", "iterations/s", "PyTorch's graph", "ratio", "µs a graph of 1, 2, …", "where")


def experiment(case: str, file: Path, iterations: int, **changes: Any) -> Any:
    """Return the experiment of a case."""
    return resolve(
        {
            "iterations": iterations,
            "data": {"name": f"npz:{file}", "validation": OTHERS},
            "model": {**CASES[case][0], "numerics": "native"},
            "clients": {"count": CLIENTS, "batch_size": MU},
            "dispatcher": {"name": "uniform"},
            "server": {"name": "asgd", "lr": 0.005},
            "evaluation": {"every": iterations + 1},
            **changes,
        }
    )


class Aloud(Observer):
    """Prints what the user is to be told, such as why something is not computed on the device."""

    def note(self, text: str) -> None:
        """Print a note."""
        say(f"note: {text}")


def once(case: str, file: Path, iterations: int, **changes: Any) -> tuple[dict[str, Any], Any]:
    """Run in this process; return the summary and the final parameters."""
    with tempfile.TemporaryDirectory() as folder:
        execute_here(experiment(case, file, iterations, **changes), Path(folder, "run"), observer=Aloud())
        result = Result(Path(folder, "run"))
        return result.summary, np.concatenate([part.reshape(-1) for part in result.params.values()])


def agreement(case: str, file: Path) -> bool:
    """Compare short runs; return whether they are as they must be."""
    summary, theta = once(case, file, CHECKED, backend="cuda")
    again, _ = once(case, file, CHECKED, backend="cuda")
    other, _ = once(case, file, CHECKED, backend="cuda", path="snapshots")
    _, expected = once(case, file, CHECKED, backend="numpy")
    apart = float(np.abs(theta - expected).max() / np.abs(expected).max())
    digests = [one["digest"][:12] for one in (summary, again, other)]
    right = apart <= TOLERANCE and len(set(digests)) == 1
    said = f"from the processor's by {apart:.1e}, digests {', '.join(digests)}"
    say(f"{case}: {said}: {'right' if right else 'WRONG'}; {summary['device']}; {summary['vmap']}; {summary['path']}")
    return right


def graphs(case: str, file: Path) -> str:
    """Return the microseconds of each captured graph, replayed alone."""
    prepared = prepare(experiment(case, file, CHECKED, backend="cuda"), None)
    engine: Any = make_engine("cuda", prepared.model, prepared.dataset, MU, 1)
    found = []
    for graph in engine._graphs:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()
        found.append(f"{1e4 * (time.perf_counter() - begin):.0f}")
    engine.close()
    return " ".join(found)


def peer(case: str, seconds: float) -> float:
    """Return iterations a second of PyTorch's loop; NaN if it fails."""
    words = ["-m", "benchmarks.device_peers", "torch", str(CLIENTS), str(MU), case, str(seconds)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        say(done.stderr[-2000:])
        return float("nan")
    return float(done.stdout.split()[-1])


def run(
    cases: Annotated[str, typer.Option(help="Cases, by commas.")] = ",".join(CASES),
    seconds: Annotated[float, typer.Option(help="How long a timed run takes.")] = 3.0,
    lanes: Annotated[str, typer.Option(help="The most clients side by side, by commas.")] = "1,4,8",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the table as Markdown.")] = None,
) -> None:
    """Compare, then measure; end with an error if something is wrong."""
    where = "emulated: times mean nothing" if EMULATED else f"{machine().name}, PyTorch {torch.__version__}"
    rows, right = [], True
    rng = np.random.default_rng(0)
    for case in cases.split(","):
        with tempfile.TemporaryDirectory() as folder:
            file, shape = Path(folder, "images.npz"), CASES[case][1]
            x, y = rng.standard_normal((SAMPLES, *shape)).astype(np.float32), rng.integers(0, 10, SAMPLES)
            np.savez(file, x_train=x, y_train=y, x_test=x[:OTHERS], y_test=y[:OTHERS])
            right &= agreement(case, file)
            by_torch = float("nan") if EMULATED else peer(case, seconds)
            for most in map(int, lanes.split(",")):
                on_device.MOST_LANES = most
                pilot, _ = once(case, file, 4 * CLIENTS, backend="cuda")
                many = max(4 * CLIENTS, int(pilot["iterations_per_second"] * seconds * (not EMULATED)))
                rate = max(float(once(case, file, many, backend="cuda")[0]["iterations_per_second"]) for _ in range(2))
                alone = "" if EMULATED else graphs(case, file)
                row = (case, str(most), f"{rate:,.0f}", f"{by_torch:,.0f}", f"{rate / by_torch:.2f}", alone, where)
                say(" | ".join(row))
                rows.append(row)
    note = "Whole runs of ASGD with native modules, 32 clients, minibatches of 32, evaluation apart."
    table = Table("Native modules on a device", note, HEAD, rows)
    show(table)
    if output is not None:
        output.write_text(markdown([f"# {where}"], [table]), encoding="utf-8")
    if not right:
        raise SystemExit("something is wrong")


if __name__ == "__main__":
    typer.run(run)
