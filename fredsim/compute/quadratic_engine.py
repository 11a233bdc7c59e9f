"""The NumPy engine of a quadratic, which defines the bits of every backend.

It has one loss, but no answer that could be right or wrong, so the error rate is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.graph_engine import Evaluation, NumpyBackendOperations
from fredsim.data.problems import Quadratic
from fredsim.data.sampling import decode_task
from fredsim.numerics import squares
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.streams import Streams

__all__ = ["NumpyQuadratic", "QuadraticEvaluation"]


class QuadraticEvaluation(Evaluation):
    """The evaluation of a quadratic, on the host, shared by the engines of all backends."""

    why_whole = "a linear model forms whole gradients"
    _dataset: Quadratic

    def evaluate(self, params: Any, part: str) -> tuple[float, float]:
        """Return the quadratic's value in float64 as the loss (NaN without rows), and NaN as the error rate."""
        rows = len(getattr(self._dataset, part))
        return squares.quadratic_value(np.asarray(params)) if rows else float("nan"), float("nan")

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return the quadratic's value, float32, as the loss of each of n rows, and NaN (n,)."""
        value, rows = squares.quadratic_value(np.asarray(params)), len(getattr(self._dataset, part))
        return np.full(rows, value, np.float64).astype(np.float32), np.full(rows, np.nan)


class NumpyQuadratic(QuadraticEvaluation, NumpyBackendOperations):
    """Computes gradients of a quadratic and evaluates by fredsim.numerics.squares; see Engine."""

    def __init__(self, dataset: Quadratic) -> None:
        self._dataset, self._streams = dataset, Streams(dataset.seed)

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute one gradient after the other; `rows` (B, 1) encode client and number (data.sampling.TaskSampler)."""
        size, noise = self._dataset.inputs, self._dataset.noise
        grads, losses = np.empty((len(rows), size), np.float32), np.empty(rows.shape, np.float32)
        for b, (task,) in enumerate(rows):
            grads[b] = squares.quadratic_gradient(held[b])
            with np.errstate(all="ignore"):
                if noise:
                    grads[b] += squares.quadratic_noise(self._streams, size, *decode_task(int(task)), noise)
                losses[b] = squares.quadratic_value(held[b])
        return grads, losses
