"""A network's outputs for the samples of a data set, by the kernels that evaluate it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.graph_engine import BLOCK
from fredsim.data.datasets import Split
from fredsim.jit.team import Team
from fredsim.kernels.ops.operator import LossKernels
from fredsim.kernels.ops.plan import Plan
from fredsim.kernels.ops.program import Batch, Program, Steps
from fredsim.kernels.ops.values import Value
from fredsim.networks.graph import Graph
from fredsim.networks.own_loss import ArrayLoss
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.ops.norms import BatchNorm

__all__ = ["AT_ONCE", "Outputs", "samples_at_once"]

Array = NDArray[np.float32]
AT_ONCE = 64  # samples that are evaluated together, if samples do not meet


def samples_at_once(graph: Graph) -> int:
    """Return how many samples are evaluated together: as many as GraphEngine takes where they may meet.

    They meet in a batch norm, and in a user's own loss, whose bits may depend on their number.
    """
    meet = isinstance(graph.loss, ArrayLoss) or any(isinstance(node.operator, BatchNorm) for node in graph.nodes)
    return BLOCK if meet else AT_ONCE


class KeptOutput(LossKernels):
    """Instead of a loss: keeps a copy of the output of each minibatch."""

    found: NDArray[Any]

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        def copy(batch: Batch) -> None:
            self.found = output.view(batch.arena).copy()

        plan.call(copy, output)


class Outputs:
    """The programs that compute the outputs of a graph; they are planned when they are first needed."""

    def __init__(self, graph: Graph, team: Team, threads: int) -> None:
        self._graph, self._team, self._threads = graph, team, threads
        self._block = samples_at_once(graph)
        self._programs: dict[tuple[int, int], tuple[Split, Program, KeptOutput]] = {}

    def of(self, params: Array, split: Split) -> Iterator[tuple[slice, Array]]:
        """Yield the outputs of a split's samples in blocks, as Engine.outputs does."""
        given = aligned(len(params) + MARGIN)
        given[: len(params)] = params
        for begin in range(0, len(split), self._block):
            rows = np.arange(begin, min(begin + self._block, len(split)))
            _, program, kept = self._program(split, len(rows))
            batch = Batch(given, rows, None, aligned(len(rows)), None, program.arena)
            program.run(self._team, batch, len(rows) * len(params))
            yield slice(begin, begin + len(rows)), kept.found.reshape(len(rows), *self._graph.shapes[-1])

    def _program(self, split: Split, count: int) -> tuple[Split, Program, KeptOutput]:
        key = id(split), count
        if key not in self._programs:
            kept = KeptOutput(self._graph.loss)
            plan = Plan(self._graph, split, count, self._threads, learn=False, loss=kept)
            self._programs[key] = split, Program(plan), kept
        return self._programs[key]
