"""What is measured: a cell is a server with λ clients and minibatches of µ; and fredsim's side of a comparison.

Every side trains a 784-200-10 network on MNIST from the same initial parameters, with the same order of clients and
minibatches. Nothing here imports a peer, because the subprocesses of benchmarks.scale would count the peer's memory.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fredsim
from fredsim.data import datasets
from fredsim.dispatchers import DISPATCHERS
from fredsim.networks.mlp import Mlp
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result

__all__ = ["CELLS", "FIGURE_1", "HYPER", "LEAST", "USUAL", "Cell", "plan", "simulate"]

Array = NDArray[np.float32]

SEED = 0
HIDDEN = 200
FIGURE_1 = ((128, 1), (32, 4), (16, 8), (4, 32))  # (λ, µ) of Odena 2016, arXiv:1601.04033
CELLS = (*FIGURE_1, (250, 128), (1000, 128))
HYPER: dict[str, dict[str, Any]] = {
    "asgd": {"lr": 0.005},
    "sasgd": {"lr": 0.04, "divisor": "plus1"},
    "fasgd": {"lr": 0.005, "gamma": 0.9, "beta": 0.9, "eps": 1e-4, "variant": "std", "divisor": "max1"},
}

LEAST = (
    3000  # iterations; about here FASGD's averages for pixels that are always 0 become subnormal if nobody flushes them
)
USUAL = 6000  # iterations of a round by default: half of them come after that point


@dataclass(frozen=True)
class Cell:
    """A server with a number of clients, a batch size, and a data set with its usual split."""

    server: str  # its rule, a key of HYPER
    clients: int
    batch_size: int
    data: str = "mnist"

    @property
    def label(self) -> str:
        """The server and (λ, µ)."""
        return f"{self.server} ({self.clients}, {self.batch_size})"

    @property
    def hyper(self) -> dict[str, Any]:
        """The server's hyper-parameters."""
        return HYPER[self.server]

    @property
    def names(self) -> tuple[str, str, str]:
        """The first columns of a row."""
        return self.server, str(self.clients), str(self.batch_size)

    def iterations(self, least: int) -> int:
        """Return `least`, or 10 λ if that is more, so that every client comes again."""
        return max(least, 10 * self.clients)

    def dataset(self) -> datasets.Dataset:
        """Return the data set, the same object that fredsim's runs use."""
        return datasets.load_dataset(self.data, *datasets.DEFAULT_ROWS[self.data], datasets.data_root())

    def model(self) -> Mlp:
        """Return the model."""
        dataset = self.dataset()
        return Mlp((dataset.inputs, HIDDEN, dataset.classes), "he")

    def start(self) -> dict[str, Array]:
        """Return the initial parameters W1, b1, W2, b2."""
        model = self.model()
        return model.layout.split(model.initial(Streams(SEED)))


@lru_cache(maxsize=1)
def plan(clients: int, iterations: int) -> list[int]:
    """Return the order of clients, which is drawn ahead for the peers; fredsim's measured time includes drawing it."""
    dispatcher = DISPATCHERS["uniform"]()
    dispatcher.init(clients, Streams(SEED))
    return [dispatcher.choose(iteration) for iteration in range(iterations)]


def simulate(cell: Cell, iterations: int, threads: int, **changes: Any) -> tuple[dict[str, Any], Array]:
    """Run fredsim, evaluating at both ends; return the run's summary and its final parameters (P,).

    `changes` replace top-level keys of the experiment.
    """
    experiment = {
        "seed": SEED,
        "iterations": iterations,
        "data": {"name": cell.data},
        "model": {"hidden": [HIDDEN], "init": "he"},
        "clients": {"count": cell.clients, "batch_size": cell.batch_size, "sampling": "sequential"},
        "dispatcher": {"name": "uniform"},
        "server": {"name": cell.server, **cell.hyper},
        "evaluation": {"every": iterations + 1},
        "threads": threads,
    } | changes
    with tempfile.TemporaryDirectory() as folder:
        result = fredsim.run(experiment, out=folder)
        assert isinstance(result, Result)
        if result.summary["status"] != "finished":
            raise SystemExit(f"{cell.label}: fredsim's run ended as {result.summary['status']}")
        params = np.concatenate([result.params[name].reshape(-1) for name in cell.start()])
        return result.summary, params
