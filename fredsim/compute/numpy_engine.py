"""The NumPy engine for multilayer perceptrons: it is slow, and defines the bits of every backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Part
from fredsim.compute.storage import Limits, Pool
from fredsim.data.datasets import Dataset, Split
from fredsim.models.mlp import Mlp
from fredsim.numerics import oracle
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.operations import NumpyOperations

__all__ = ["NumpyBackendOperations", "NumpyEngine"]

Array = NDArray[np.float32]


class NumpyBackendOperations(NumpyOperations):
    """NumPy's operations, and storage for what clients hold."""

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of arrays (size,) for what clients hold."""
        return Pool(size, MARGIN, limits)

    def close(self) -> None:
        """Do nothing: there are no threads."""


class NumpyEngine(NumpyBackendOperations):
    """Computes gradients and evaluates by fredsim.numerics.oracle; see Engine."""

    threads = 1
    device_name: str | None = None
    seconds = float("nan")

    def __init__(self, model: Mlp, dataset: Dataset) -> None:
        self._layout = model.layout
        self._layers = len(model.sizes) - 1
        self._dataset = dataset

    def _weights(self, params: Array) -> oracle.Weights:
        """Return parameters (P,) as views, (W, b) of each layer."""
        views = self._layout.split(params)
        return [(views[f"W{i}"], views[f"b{i}"]) for i in range(1, self._layers + 1)]

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Compute the gradients of one minibatch after the other."""
        grads = np.empty((len(rows), self._layout.size), np.float32)
        losses = np.empty(rows.shape, np.float32)
        train = self._dataset.train
        for b, samples in enumerate(rows):
            result, losses[b] = oracle.gradient(self._weights(held[b]), train.x[samples], train.y[samples])
            grads[b] = np.concatenate([part.reshape(-1) for layer in result for part in layer])
        return grads, losses

    def evaluate(self, params: Array, part: Part) -> tuple[float, float]:
        """Return the mean loss and the error rate over a part of the data set."""
        return oracle.loss_and_error(*self.outcomes(params, part))

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[np.bool_]]:
        """Return each sample's loss, and whether its answer is wrong."""
        split: Split = getattr(self._dataset, part)
        logits = oracle.forward(self._weights(params), split.x).logits
        losses, _, best = oracle.softmax_cross_entropy(logits, split.y)
        return losses, best != split.y
