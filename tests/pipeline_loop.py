"""Pipelines as a plain loop, with which tests compare runs: each stage is one dense layer with a history of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.elementary import pow64
from fredsim.numerics.oracle import softmax_cross_entropy, tree_sum
from tests.dense_networks import backward, forward

Array = NDArray[np.float32]
Layer = tuple[Array, Array]
F = np.float32
Minibatch = Callable[[int], tuple[Array, NDArray[np.int64]]]


def dense_gradient(fwd: Sequence[Layer], bwd: Sequence[Layer], x: Array, y: NDArray[np.int64]) -> list[Layer]:
    """Return the mean gradient of a forward pass at `fwd` and a backward pass at `bwd`."""
    activations, logits = forward(list(fwd), x)
    errors = backward(list(bwd), activations, softmax_cross_entropy(logits, y)[1])
    count = F(len(x))
    return [
        (np.asarray(tree_sum(a[:, :, None] * d[:, None]) / count), np.asarray(tree_sum(d) / count))
        for a, d in zip(activations, errors, strict=True)
    ]


@dataclass
class Pipeline:
    """S stages, of which each steps by SGD as soon as its backward pass is done."""

    start: Sequence[Layer]
    minibatch: Minibatch
    fwd: Sequence[int]
    bwd: Sequence[int]
    lr: float
    correction: float | None = None
    reschedule: int | None = None
    synchronous: int = 0
    gradient: Callable[..., list[Layer]] = dense_gradient
    step: Callable[[Array, Array, Array, np.float32], Array] = lambda theta, g, seen, alpha: theta - alpha * g
    """The update of a tensor by its gradient, given what the forward pass has seen of it."""
    flat: list[Array] = field(default_factory=list)
    """The parameters after each update."""

    def run(self, updates: int) -> Pipeline:
        """Train on so many minibatches."""
        history = [[layer] for layer in self.start]  # by stage: its weights after each of its updates
        drift = [(np.zeros_like(w), np.zeros_like(b)) for w, b in self.start]
        for k in range(updates):
            first = min(k, self.synchronous)
            seen = [own[max(first, k - delay)] for own, delay in zip(history, self.fwd, strict=True)]
            used = [own[max(first, k - delay)] for own, delay in zip(history, self.bwd, strict=True)]
            if self.correction is not None:
                used = [self.estimate(own[k], drift[s], s) for s, own in enumerate(history)]
            grads = self.gradient(seen, used, *self.minibatch(k))
            for s, own in enumerate(history):
                rate = self.lr
                begun = k - self.synchronous
                if self.reschedule is not None and 0 <= begun < self.reschedule:
                    rate = self.lr * float(pow64(float(max(1, self.fwd[s])), -(1 - begun / self.reschedule)))
                w, b = (self.step(*arrays, F(rate)) for arrays in zip(own[k], grads[s], seen[s], strict=True))
                own.append((w, b))
                if self.correction is not None and k >= self.synchronous:
                    drift[s] = self.drifted(drift[s], own[k], own[k + 1], s)
            self.flat.append(np.concatenate([array.ravel() for own in history for array in own[-1]]))
        return self

    def estimate(self, now: Layer, drift: Layer, s: int) -> Layer:
        return now[0] - F(self.fwd[s]) * drift[0], now[1] - F(self.fwd[s]) * drift[1]

    def drifted(self, drift: Layer, before: Layer, after: Layer, s: int) -> Layer:
        gamma = float(pow64(self.correction or 0.0, 1 / self.fwd[s]))
        w, b = (F(gamma) * d + F(1 - gamma) * (y - x) for d, x, y in zip(drift, before, after, strict=True))
        return w, b
