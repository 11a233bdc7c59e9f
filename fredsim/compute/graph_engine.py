"""The NumPy engine of every network: it walks the graph; it is slow, and defines the bits of every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import BackendOperations, Engine, Part
from fredsim.compute.statistics import follow
from fredsim.compute.storage import Limits, Pool
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.graph import Graph
from fredsim.networks.network import Numerics
from fredsim.networks.own_problem import OwnProblem
from fredsim.networks.running import Found
from fredsim.numerics.arrays import MARGIN, Array
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.oracle import mean64

__all__ = ["Evaluation", "GraphEngine", "NumpyBackendOperations", "OfGraph", "OnEngine", "OnOperations", "means"]

BLOCK = 512  # rows whose outputs are computed at once, to bound the memory that a network's values take


class NumpyBackendOperations(NumpyOperations):
    """NumPy's operations, and storage for what clients hold."""

    threads = 1
    device_name: str | None = None
    seconds = float("nan")

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of arrays (size,) for what clients hold."""
        return Pool(size, MARGIN, limits)

    def close(self) -> None:
        """Do nothing: there are no threads."""


class Evaluation:
    """What is the same for nearly every engine: its facts, and means of what its `outcomes` says of each sample."""

    numerics: Numerics = "portable"
    why_whole = "the engine forms whole gradients"
    in_place = True
    queues = False
    keeps_passes = True
    two_vectors = False
    packages: Sequence[str] = ()
    statistics: Any = None
    takes_current = False
    problem: OwnProblem | None = None
    current: Callable[[], Any] | None = None
    #: The most bytes of the gradients of one window, so that they stay in the cache.
    window_bytes = 4 * 2**20

    @property
    def operations(self) -> Any:
        """The backend's operations; the engines of a backend have them themselves."""
        return self

    @property
    def buffer_bytes(self) -> int:
        """The bytes of the engine's buffers; 0: not known."""
        return 0

    def note_evaluation(self, part: Part) -> None:
        """Do nothing: samples are evaluated a block at a time, or it is not known; see Engine."""

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says about the engine's numerics."""
        return {"numerics": self.numerics}

    def fix_window(self, wanted: int | None, clients: int, nbytes: int) -> int:
        """Return `wanted`, or as many as `window_bytes` allow: the number changes no bit."""
        return wanted or max(1, min(clients, self.window_bytes // nbytes))

    def measured(self, params: Any) -> dict[str, float]:
        """Return nothing: there is no problem that says something of parameters."""
        return {}

    def samples_changed(self) -> None:
        """Note that the samples of the data set have been written anew, in place."""

    def _lacking(self, *arguments: Any) -> Any:
        raise NotImplementedError

    # An engine says which of these it has; see Engine.
    fused_executor = hand_executor = gradient_executor = queue_executor = gradients_at_two = outputs = _lacking

    def outcomes(self, params: Any, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return the loss of each sample of a part, float32 (n,), and whether its answer is wrong, or NaN, (n,)."""
        raise NotImplementedError

    def evaluate(self, params: Any, part: Part) -> tuple[float, float]:
        """Return the mean loss and the mean of wrong answers, each by the balanced tree in float64; NaN of nothing."""
        return means(*self.outcomes(params, part))


def means(losses: NDArray[Any], wrong: NDArray[Any]) -> tuple[float, float]:
    """Return the mean loss and the mean of wrong answers; NaN of nothing."""
    return (mean64(losses), mean64(wrong)) if len(losses) else (float("nan"), float("nan"))


class OnOperations(Evaluation):
    """An engine that no backend has: the operations on whole arrays are those of the backend that it is given."""

    def __init__(self, operations: BackendOperations) -> None:
        self._operations = operations

    @property
    def operations(self) -> BackendOperations:
        """The backend's operations."""
        return self._operations

    def close(self) -> None:
        """End the threads of the operations."""
        self._operations.close()


class OnEngine:
    """An engine that has another one compute; for anything that it does not do itself, it is that engine."""

    queues = False
    _engine: Engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def evaluate(self, params: Any, part: Part) -> tuple[float, float]:
        """Return the mean loss and the mean of wrong answers; NaN of nothing. See Engine."""
        return means(*self.outcomes(params, part))


class OfGraph(Evaluation):
    """An engine of a graph, whose batch norms may keep running statistics, by which it is evaluated."""

    _graph: Graph
    _dataset: Dataset

    def _follow(self, keys: Keys | None, b: int, seen: Sequence[Found] | None) -> None:
        """Let the statistics of the client of gradient b follow what its minibatch has shown."""
        if self.statistics is None or seen is None or keys is None or not keys.counted:
            return
        assert self._graph.running is not None
        client = int(keys.clients[b])
        self.statistics.computed(client, follow(self._graph.running, self.statistics.of(client), seen))

    def _evaluated(self, params: Array) -> Array:
        """Return the values of the tensors of the graph that is evaluated: perhaps with running statistics."""
        if self.statistics is None:
            return params
        return np.concatenate([params, *(one.reshape(-1) for one in self.statistics.served())])

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return each sample's loss, and whether its answer is wrong: NaN if no answer is right or wrong."""
        split: Split = getattr(self._dataset, part)
        losses, wrong = np.empty(len(split), np.float32), np.full(len(split), np.nan)
        for rows, output in self.outputs(params, part):
            y = split.y[rows]
            losses[rows] = self._graph.loss.losses(output, y).each
            if (answers := self._graph.loss.wrong(output, y)) is not None:
                wrong[rows] = answers
        return losses, wrong


class GraphEngine(OfGraph, NumpyBackendOperations):
    """Computes gradients and evaluates by the operators' definitions (fredsim.numerics.ops); see Engine."""

    two_vectors = True

    def __init__(self, graph: Graph, dataset: Dataset) -> None:
        self._graph, self._dataset = graph, dataset

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute the gradients of one minibatch after the other."""
        return self.gradients_at_two(held, held, rows, keys)

    def gradients_at_two(
        self, forward: Sequence[Array], backward: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute gradients whose forward and backward passes have different parameters; see Engine."""
        grads = np.empty((len(rows), self._graph.layout.size), np.float32)
        losses = np.empty(rows.shape, np.float32)
        train = self._dataset.train
        operators = [node.operator for node in self._graph.nodes]
        seen: list[Found] | None = None if self._graph.running is None else []
        for b, samples in enumerate(rows):
            draw = keys.one(b).of(operators) if keys is not None and self._graph.draws else None
            x, y = self._samples(train, samples), train.y[samples]
            grads[b], losses[b] = self._graph.gradient(forward[b], x, y, draw, backward[b], seen)
            self._follow(keys, b, seen)
        return grads, losses

    def _samples(self, split: Split, rows: Any) -> NDArray[Any]:
        """Return rows of a split in the shape that the graph takes."""
        x: NDArray[Any] = split.x[rows]
        return x.reshape(len(x), *self._graph.sample)

    def outputs(self, params: Array, part: Part) -> Iterator[tuple[slice, Array]]:
        """Yield the outputs for a part of the data set in blocks; see Engine."""
        split: Split = getattr(self._dataset, part)
        given, graph = self._evaluated(params), self._graph.evaluated
        for begin in range(0, len(split), BLOCK):
            rows = slice(begin, begin + BLOCK)
            yield rows, graph.forward(given, self._samples(split, rows)).output
