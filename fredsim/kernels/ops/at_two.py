"""Gradients whose forward and backward passes have different parameters, as in pipelines without weight stashing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import Dataset
from fredsim.jit.team import Team
from fredsim.kernels.ops.plan import Plan
from fredsim.kernels.ops.program import Batch, Program
from fredsim.networks.graph import Graph
from fredsim.networks.running import Found
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.ops.draws import Keys

__all__ = ["GradientsAtTwo"]

Array = NDArray[np.float32]


class GradientsAtTwo:
    """Computes minibatches of µ samples one after the other, each on a whole team."""

    def __init__(self, graph: Graph, dataset: Dataset, mu: int, team: Team) -> None:
        self._graph, self._mu, self._team = graph, mu, team
        self._plan = Plan(graph, dataset.train, mu, team.size, learn=True, two_vectors=True)
        self._program = Program(self._plan)
        self._grads, self._losses = aligned(0, graph.layout.size), aligned(0, mu)

    def __call__(
        self,
        forward: Sequence[Array],
        backward: Sequence[Array],
        rows: NDArray[np.int64],
        keys: Keys | None,
        follow: Callable[[int, Sequence[Found] | None], None],
    ) -> tuple[Array, Array]:
        """Compute the gradients (B, P) and losses (B, µ); see fredsim.compute.engines.Engine.gradients_at_two.

        After gradient b, `follow` is called with b and what batch norms have found.
        """
        batches, size = len(rows), self._graph.layout.size
        if batches > len(self._grads):
            self._grads = aligned(batches, -(-size // MARGIN) * MARGIN + MARGIN)[:, :size]
            self._losses = aligned(batches, self._mu)
        samples, draws = np.ascontiguousarray(rows, np.int64), keys if self._graph.draws else None
        for b in range(batches):
            own = None if draws is None else draws.one(b)
            batch = Batch(forward[b], samples[b], self._grads[b], self._losses[b], None, self._program.arena, own)
            self._program.run(self._team, batch, self._mu * size, backward[b])
            follow(b, self._plan.seen)
        return self._grads[:batches], self._losses[:batches]
