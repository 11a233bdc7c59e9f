"""An engine for a network of which some tensors stay as they are: parameters and gradients have the others alone.

It fills what clients hold in among the tensors that stay, and takes the others' gradients from another engine's. So
their bits are those of the whole network, on every backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Engine, Part
from fredsim.compute.graph_engine import OnEngine
from fredsim.networks.graph import Graph
from fredsim.numerics.arrays import MARGIN, Array, aligned
from fredsim.numerics.ops.draws import Keys

__all__ = ["PartlyTrained"]


class PartlyTrained(OnEngine):
    """Gives another engine all tensors, and returns the gradients of some."""

    why_whole = "some tensors are not trained"

    def __init__(self, engine: Engine, graph: Graph, values: Array) -> None:
        """`values`, float32 (P,), are those of all tensors at the beginning; those of graph.frozen stay."""
        self._engine, self._graph, self._values = engine, graph, values
        self._whole: list[Array] = []  # room for what a client holds, with the tensors that stay
        self._grads = np.empty((0, graph.trained.size), np.float32)

    def _filled(self, number: int, params: Array) -> Array:
        """Return all tensors, float32 (P,), in room number `number`."""
        while len(self._whole) <= number:
            room = aligned(len(self._values) + MARGIN)[: len(self._values)]
            room[...] = self._values
            self._whole.append(room)
        return self._graph.fill(self._whole[number], params)

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute the gradients of minibatches; see Engine."""
        whole = [self._filled(number, params) for number, params in enumerate(held)]
        return self._of_trained(*self._engine.gradients(whole, rows, keys), rows)

    def gradients_at_two(
        self, forward: Sequence[Array], backward: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute gradients whose forward and backward passes have different parameters; see Engine."""
        whole = [self._filled(number, params) for number, params in enumerate([*forward, *backward])]
        count = len(forward)
        return self._of_trained(*self._engine.gradients_at_two(whole[:count], whole[count:], rows, keys), rows)

    def _of_trained(self, found: Array, losses: Array, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the gradients of the tensors that are trained, and the losses."""
        if len(rows) > len(self._grads):
            self._grads = aligned(len(rows), self._graph.trained.size)
        for one, grad in zip(self._grads, found, strict=False):
            one[...] = self._graph.part_of(grad)
        return self._grads[: len(rows)], losses

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return the loss of each sample of a part, and whether its answer is wrong; see Engine."""
        return self._engine.outcomes(self._filled(0, params), part)

    def outputs(self, params: Array, part: Part) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the network's outputs for a part of the data set in blocks; see Engine."""
        return self._engine.outputs(self._filled(0, params), part)
