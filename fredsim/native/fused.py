"""The executor of the path `fused` for PyTorch modules.

A minibatch's passes are done when its push arrives: until then its client holds the same parameters. Those of several
clients at once are done before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.native.updates import Gradients, Updates
from fredsim.numerics.arrays import Array, Integers
from fredsim.numerics.verdicts import ALLOWED, DIVERGED, REFUSED, UNDECIDED

__all__ = ["TorchFusedExecutor"]


class TorchFusedExecutor:
    """Does one minibatch's passes, applies the rule, and so on; see fredsim.compute.engines.FusedExecutor."""

    def __init__(self, engine: Gradients, updates: Updates, mu: int, window: int) -> None:
        self.slots = window
        self._engine, self._updates, self._mu = engine, updates, mu
        self._ahead = engine.width > 1 or engine.concurrent is not None
        #: By slot: what the client holds, and its samples; if several are computed at once, the gradient and losses.
        self._tasks: list[tuple[Array, NDArray[Any]]] = [(np.empty(0, np.float32),) * 2] * window

    def run_passes(self, slots: Sequence[int], held: Sequence[Array], rows: Integers) -> None:
        """Note what to compute; compute it now if several minibatches are computed at once."""
        if not self._ahead:
            for slot, *task in zip(slots, held, rows, strict=True):
                self._tasks[slot] = tuple(task)
            return
        for slot, gradient, losses in zip(slots, *self._engine.gradients(held, rows), strict=True):
            self._tasks[slot] = gradient.copy(), losses.copy()

    def prepare(
        self, slots: Sequence[int], coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array | None]
    ) -> Array:
        """Prepare the next arrivals; their losses are written one by one. See FusedExecutor."""
        self._chosen, self._coefficients, self._copies = slots, coefficients, copies
        self._verdicts = [_verdict(low, high) for low, high in bounds.tolist()]
        losses = np.empty((len(slots), self._mu), np.float32)
        self._updates.write_to(losses)
        return losses

    def apply(self, b: int, end: int) -> Iterator[int]:
        """Compute one gradient after the other and apply the rule to it; yield the verdicts. See FusedExecutor."""
        verdict = ALLOWED
        with self._engine.computing(alone=False):  # who takes a verdict may run a user's code
            while b < end:
                verdict = self._apply(b)
                if verdict in (UNDECIDED, DIVERGED):
                    break
                yield verdict
                b += 1
        if verdict in (UNDECIDED, DIVERGED):  # a gate may decide now, in which PyTorch is as its author knows it
            yield verdict

    def _apply(self, b: int) -> int:
        verdict, task = self._verdicts[b], self._tasks[self._chosen[b]]
        apply = self._updates.take if self._ahead else self._updates.compute
        with nullcontext() if self._ahead else self._engine.nothing_drawn():
            finite = apply(b, *task, self._coefficients[b], self._copies[b] if verdict == ALLOWED else None)
        return verdict if finite else DIVERGED

    def mean(self, b: int) -> float:
        """Return NaN: a gate that needs a mean asks for it itself."""
        del b
        return float("nan")


def _verdict(low: float, high: float) -> int:
    """Return what a gate's bounds say whatever the mean is; see FusedExecutor.prepare."""
    if high == -np.inf:
        return ALLOWED
    return REFUSED if low == np.inf else UNDECIDED
