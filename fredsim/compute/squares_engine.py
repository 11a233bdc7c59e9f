"""The NumPy engines of least squares and of a quadratic, which define the bits of every backend.

A sample has a loss, but no answer that could be right or wrong, so the error rate of these engines is NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.numpy_engine import NumpyBackendOperations
from fredsim.data.datasets import Dataset, Split
from fredsim.data.problems import Quadratic
from fredsim.data.sampling import decode_task
from fredsim.numerics import squares
from fredsim.numerics.oracle import mean64
from fredsim.numerics.streams import Streams

__all__ = ["NumpyLeastSquares", "NumpyQuadratic", "QuadraticEvaluation", "RegressionEvaluation"]

Array = NDArray[np.float32]


class RegressionEvaluation(ABC):
    """The evaluation of a linear model, shared by the engines of all backends."""

    _dataset: Dataset

    @abstractmethod
    def _losses_of(self, params: Any, split: Split) -> Array:
        """Return the loss of each sample of a split, float32 (n,)."""

    def evaluate(self, params: Any, part: str) -> tuple[float, float]:
        """Return the mean loss, by the balanced tree (NaN without samples), and NaN as the error rate."""
        losses = self.outcomes(params, part)[0]
        return (mean64(losses) if len(losses) else float("nan")), float("nan")

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return the losses (n,), and NaN (n,)."""
        losses = self._losses_of(params, getattr(self._dataset, part))
        return losses, np.full(len(losses), np.nan)


class QuadraticEvaluation:
    """The evaluation of a quadratic, on the host, shared by the engines of all backends."""

    _dataset: Quadratic

    def evaluate(self, params: Any, part: str) -> tuple[float, float]:
        """Return the quadratic's value in float64 as the loss (NaN without rows), and NaN as the error rate."""
        rows = len(getattr(self._dataset, part))
        return squares.quadratic_value(np.asarray(params)) if rows else float("nan"), float("nan")

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return the quadratic's value, float32, as the loss of each of n rows, and NaN (n,)."""
        value, rows = squares.quadratic_value(np.asarray(params)), len(getattr(self._dataset, part))
        return np.full(rows, value, np.float64).astype(np.float32), np.full(rows, np.nan)


class NumpyLeastSquares(RegressionEvaluation, NumpyBackendOperations):
    """Computes gradients of a linear model and evaluates by fredsim.numerics.squares; see Engine."""

    threads = 1
    device_name: str | None = None
    seconds = float("nan")

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Compute the gradients of one minibatch after the other."""
        train = self._dataset.train
        grads, losses = np.empty((len(rows), train.x.shape[1]), np.float32), np.empty(rows.shape, np.float32)
        for b, samples in enumerate(rows):
            grads[b], losses[b] = squares.least_squares_gradient(held[b], train.x[samples], train.y[samples])
        return grads, losses

    def _losses_of(self, params: Array, split: Split) -> Array:
        return squares.squared_errors(params, split.x, split.y)[0]


class NumpyQuadratic(QuadraticEvaluation, NumpyBackendOperations):
    """Computes gradients of a quadratic and evaluates by fredsim.numerics.squares; see Engine."""

    threads = 1
    device_name: str | None = None
    seconds = float("nan")

    def __init__(self, dataset: Quadratic) -> None:
        self._dataset, self._streams = dataset, Streams(dataset.seed)

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
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
