"""The engine of the numba backend for every network: plans a minibatch's computation once, and runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Part
from fredsim.compute.graph_engine import OfGraph
from fredsim.data.datasets import Dataset, Split
from fredsim.kernels.arrays.operations import NumbaOperations
from fredsim.kernels.ops.at_two import GradientsAtTwo
from fredsim.kernels.ops.outputs import Outputs, samples_at_once
from fredsim.kernels.ops.plan import Plan
from fredsim.kernels.ops.program import Batch, EachItsOwn, Program
from fredsim.networks.graph import Graph
from fredsim.numerics.arrays import LINE, MARGIN, aligned
from fredsim.numerics.ops.draws import Keys

__all__ = ["NumbaGraphEngine", "OfPlans"]

Array = NDArray[np.float32]
MOST_BYTES = 2**26  # of the buffers of all threads, if each computes minibatches of its own


class OfPlans(OfGraph, NumbaOperations):
    """What both of numba's engines compute by plans of the graph: outputs, and gradients at two vectors."""

    two_vectors = True
    _mu: int

    @cached_property
    def _at_two(self) -> GradientsAtTwo:
        return GradientsAtTwo(self._graph, self._dataset, self._mu, self._team)

    def gradients_at_two(
        self, forward: Sequence[Array], backward: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute gradients whose forward and backward passes have different parameters; see Engine."""
        return self._at_two(forward, backward, rows, keys, partial(self._follow, keys))

    @cached_property
    def _outputs(self) -> Outputs:
        return Outputs(self._graph.evaluated, self._team, self.threads)

    def outputs(self, params: Array, part: Part) -> Iterator[tuple[slice, Array]]:
        """Yield the outputs for a part of the data set in blocks; see Engine."""
        yield from self._outputs.of(self._evaluated(params), getattr(self._dataset, part))


class NumbaGraphEngine(OfPlans):
    """Computes gradients of minibatches of µ samples, and evaluates, by kernels: fredsim.compute.engines.Engine.

    The bits are those of fredsim.compute.graph_engine.GraphEngine. `threads` None means one thread per processor.
    Threads compute a minibatch together; or each computes minibatches of its own, if there are enough of them, their
    buffers are not too large, and all operators have kernels: then no thread waits for another.
    """

    def __init__(self, graph: Graph, dataset: Dataset, mu: int, threads: int | None) -> None:
        super().__init__(threads)
        self._graph, self._dataset, self._mu = graph, dataset, mu
        self._work = mu * graph.layout.size
        self._block = samples_at_once(graph)
        self._plan = learning = Plan(graph, dataset.train, mu, self.threads, learn=True)
        evaluating = {
            (id(split), count): self._evaluation_plan(split, count)
            for split in (dataset.validation, dataset.test)
            for count in {min(len(split), self._block), len(split) % self._block} - {0}
            if graph.running is None
        }
        # What the engine computes at the moment has the whole arena.
        most = max(plan.place_buffers() for plan in (learning, *evaluating.values()))
        self._arena = aligned(most + LINE, dtype=np.uint8)
        # Compile, or load from the cache, now, so that it is not counted in the run's time.
        self._program = Program(learning, self._arena)
        self._evaluations = {key: Program(plan, self._arena) for key, plan in evaluating.items()}
        few_bytes = self.threads * self._program.bytes <= MOST_BYTES
        self._apart = self.threads > 1 and self._program.kernels_only and few_bytes
        self._grads, self._losses = aligned(0, graph.layout.size), aligned(0, mu)

    @property
    def buffer_bytes(self) -> int:
        """The most bytes that gradients and evaluations take beside parameters and gradients, on all threads."""
        return self._arena.nbytes + (self._apart and (self.threads - 1) * self._program.bytes)

    @cached_property
    def _each(self) -> EachItsOwn:
        """The programs of threads that compute minibatches of their own."""
        plans = [Plan(self._graph, self._dataset.train, self._mu, 1, learn=True) for _ in range(self.threads)]
        return EachItsOwn([Program(plans[0], self._arena), *map(Program, plans[1:])])

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute the gradients of minibatches; see Engine."""
        batches = len(rows)
        if batches > len(self._grads):
            size = self._graph.layout.size
            stride = -(-size // MARGIN) * MARGIN + MARGIN  # no line of memory is written by two threads
            self._grads = aligned(batches, stride)[:, :size]
            self._losses = aligned(batches, self._mu)
        samples, first = np.ascontiguousarray(rows, np.int64), 0
        draws = keys if self._graph.draws else None
        if self._apart and batches >= self.threads:
            first = batches // self.threads * self.threads
            some = None if draws is None else draws.part(slice(first))
            self._each.run(self._team, held[:first], samples, self._grads, self._losses, some)
        for b in range(first, batches):
            arena = self._program.arena
            own = None if draws is None else draws.one(b)
            batch = Batch(held[b], samples[b], self._grads[b], self._losses[b], None, arena, own)
            self._program.run(self._team, batch, self._work)
            self._follow(keys, b, self._plan.seen)
        return self._grads[:batches], self._losses[:batches]

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return each sample's loss, and whether its answer is wrong: NaN if no answer is right or wrong."""
        if self._graph.running is not None:
            return super().outcomes(params, part)
        split: Split = getattr(self._dataset, part)
        losses, wrong = np.empty(len(split), np.float32), np.full(len(split), np.nan)
        given = aligned(len(params) + MARGIN)
        given[: len(params)] = params
        for begin in range(0, len(split), self._block):
            rows = np.arange(begin, min(begin + self._block, len(split)))
            program = self._evaluation(split, len(rows))
            own = slice(begin, begin + len(rows))
            batch = Batch(given, rows, None, losses[own], wrong[own], program.arena)
            program.run(self._team, batch, len(rows) * len(params))
        return losses, wrong

    def _evaluation(self, split: Split, count: int) -> Program:
        """Return the program that evaluates `count` rows of a split."""
        key = id(split), count
        if key not in self._evaluations:
            self._evaluations[key] = Program(self._evaluation_plan(split, count), self._arena)
        return self._evaluations[key]

    def _evaluation_plan(self, split: Split, count: int) -> Plan:
        return Plan(self._graph, split, count, self.threads, learn=False)
