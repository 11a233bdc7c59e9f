"""The engine of least squares on the numba backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.graph_engine import Evaluation
from fredsim.data.datasets import Dataset, Split
from fredsim.jit.team import addresses
from fredsim.kernels.arrays.operations import NumbaOperations
from fredsim.kernels.squares import linear
from fredsim.numerics.arrays import LINE, aligned

__all__ = ["NumbaLeastSquares"]

Array = NDArray[np.float32]

WIDTH = LINE // 4  # rows are padded to whole vectors of this many floats


@lru_cache(maxsize=12)
def _padded(split: Split) -> tuple[Array, Array]:
    """Return a split's rows, padded with zeros to whole vectors, and its targets. The runs of a sweep share them."""
    n, inputs = split.x.shape
    x = aligned(n, -(-inputs // WIDTH) * WIDTH)
    x[:, :inputs] = split.x
    return x, np.ascontiguousarray(split.y)


class NumbaLeastSquares(Evaluation, NumbaOperations):
    """Computes gradients of minibatches of µ samples, many at once, on a team of threads; see Engine."""

    why_whole = "a linear model forms whole gradients"

    def __init__(self, dataset: Dataset, mu: int, threads: int | None) -> None:
        super().__init__(threads)
        self._dataset, self._mu = dataset, mu
        self._padded_mu = -(-mu // linear.LEAVES) * linear.LEAVES
        self._allocate(0)
        # Compile, or load from the cache, by a call on empty arrays, so that it is not counted in the run's time.
        self.gradients([], np.empty((0, mu), np.int64))
        self._losses_of(aligned(dataset.inputs), Split(dataset.train.x[:0], dataset.train.y[:0]))

    def outcomes(self, params: Array, part: str) -> tuple[Array, NDArray[np.float64]]:
        """Return the losses (n,), and NaN (n,): no answer is right or wrong; see Engine."""
        losses = self._losses_of(params, getattr(self._dataset, part))
        return losses, np.full(len(losses), np.nan)

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Compute the gradients of all minibatches together; see Engine."""
        batches, inputs = len(rows), self._dataset.inputs
        if batches > self._batches:
            self._allocate(batches)
        arguments = self._arguments
        arguments.set(batches=batches, held=addresses(held), rows=np.ascontiguousarray(rows, np.int64))
        self._team.run(linear.gradients, arguments, batches * self._mu * inputs)
        return self._grads[:batches, :inputs], self._losses[:batches]

    def _allocate(self, batches: int) -> None:
        """Allocate workspace for this many minibatches at a time."""
        self._batches = batches
        x, y = _padded(self._dataset.train)
        self._grads, self._losses = aligned(batches, x.shape[1]), aligned(batches, self._mu)
        levels = 1 + (self._padded_mu // linear.LEAVES).bit_length()
        self._arguments = linear.LEAST_SQUARES.pack(
            x=x, y=y, inputs=self._dataset.inputs, stride=x.shape[1], rows=0, held=0, mu=self._mu,
            padded=self._padded_mu, batches=0, losses=self._losses, errors=aligned(batches, self._padded_mu),
            out=self._grads, stack=aligned(self.threads, 64 * levels), stack_stride=64 * levels,
        )  # fmt: skip

    def _losses_of(self, params: Array, split: Split) -> Array:
        """Return the losses (n,) of all samples of a split, computed as one minibatch."""
        x, y = _padded(split)
        n, inputs = split.x.shape
        losses = np.empty(n, np.float32)
        arguments = linear.LEAST_SQUARES.pack(
            x=x, y=y, inputs=inputs, stride=x.shape[1], rows=np.arange(n), held=addresses([params]), mu=n, padded=n,
            batches=1, losses=losses, errors=np.empty(n, np.float32), out=0, stack=0, stack_stride=0,
        )  # fmt: skip
        self._team.run(linear.errors, arguments, n * inputs)
        return losses
