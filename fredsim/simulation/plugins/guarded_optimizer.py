"""A wrapper through which clients' local steps call a user's optimizer, and which checks what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.numerics.arrays import Array
from fredsim.plugins.guarded import Guarded
from fredsim.simulation.plugins.guarded_arrays import checked_array

__all__ = ["GuardedOptimizer"]


class GuardedOptimizer(Guarded):
    """A user's optimizer of local steps, called with checks."""

    signatures = {  # noqa: RUF012
        "begin": ("client", "params"), "step": ("client", "params", "grad", "k"),
    }  # fmt: skip

    def _in_words(self, client: int | None, iteration: int) -> str:
        return f"client {client}, its gradient {iteration}"

    def begin(self, client: int, params: Array) -> None:
        """Tell it that a client begins a task from `params` (P,), which it must neither keep nor change."""
        before = params.copy()
        self.lend(params, "params", "begin", lambda: self._inner.begin(client, params))
        if before.tobytes() != params.tobytes():
            raise self.error("begin", "changes params; local steps are what may: do that in step")

    def step(self, client: int, params: Array, grad: Array, k: int) -> None:
        """Let it take a client's local step `k`, from 0, of a task: `params` (P,) become those after the step.

        Raises SimulationError if it keeps an array, or returns anything but None (it changed `params`) or a float32
        array (P,), or if a NaN arises from finite numbers.
        """

        def take() -> None:
            found: Any = self._inner.step(client, params, grad, k)
            if found is not None:
                params[...] = checked_array(self, found, len(params), "what step returns")

        finite = bool(np.isfinite(grad).all())
        self.lend(params, "params", "step", lambda: self.lend(grad, "grad", "step", take))
        if finite and np.isnan(params).any():
            raise self.error("step", "gave parameters that are NaN, from finite ones and a finite gradient")
