"""The engine of a quadratic on the numba backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.quadratic_engine import QuadraticEvaluation
from fredsim.data.problems import Quadratic
from fredsim.jit.team import addresses
from fredsim.kernels.arrays.operations import NumbaOperations
from fredsim.kernels.quadratic import passes
from fredsim.numerics.arrays import LINE, MARGIN, Array, aligned
from fredsim.numerics.ops.draws import Keys

__all__ = ["NumbaQuadratic"]

ELEMENT_COST = 60  # about how many multiply-adds take as long as an element with its noise


class NumbaQuadratic(QuadraticEvaluation, NumbaOperations):
    """Computes many gradients at once, on a team of threads; see Engine."""

    def __init__(self, dataset: Quadratic, threads: int | None) -> None:
        super().__init__(threads)
        self._dataset = dataset
        self._allocate(0)
        # Compile, or load from the cache, by a call on empty arrays, so that it is not counted in the run's time.
        self.gradients([], np.empty((0, 1), np.int64))

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute all gradients together; `rows` (B, 1) encode client and number (data.sampling.TaskSampler)."""
        batches, size = len(rows), self._dataset.inputs
        if batches > len(self._grads):
            self._allocate(batches)
        arguments = self._arguments
        arguments.set(batches=batches, held=addresses(held), tasks=np.ascontiguousarray(rows, np.int64))
        self._team.run(passes.gradients, arguments, batches * size * (ELEMENT_COST if self._dataset.noise else 1))
        return self._grads[:batches, :size], self._losses[:batches]

    def _allocate(self, batches: int) -> None:
        """Allocate workspace for this many gradients at a time."""
        data, floats = self._dataset, LINE // 4
        stride = -(-data.inputs // floats) * floats
        self._grads, self._losses = aligned(batches, stride), np.empty((batches, 1), np.float32)
        room = 2 * (data.inputs + 1) + MARGIN
        self._arguments = passes.gradients.pack(
            tasks=0, held=0, batches=0, size=data.inputs, seed=data.seed, noise=np.array([data.noise]),
            losses=self._losses, out=self._grads, out_stride=stride,
            scratch=aligned(self.threads, room, dtype=np.float64), scratch_stride=room,
        )  # fmt: skip
