"""The engine of a user's own problem: its class computes gradients, one after the other, and evaluates.

A gradient depends on the parameters, the client, and the number of the client's gradient; so no window changes a bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import BackendOperations, Engine, Part
from fredsim.compute.graph_engine import OnOperations
from fredsim.networks.own_problem import COLUMNS_OF, OwnProblem
from fredsim.numerics.arrays import Array, aligned
from fredsim.numerics.ops.draws import Draws, Keys
from fredsim.plugins.generators import generator_states
from fredsim.system.notices import note

__all__ = ["ProblemEngine", "ProblemMetrics"]


class ProblemEngine(OnOperations):
    """Computes by a user's class; the operations on whole arrays are those of a backend. See Engine."""

    why_whole = "a problem of your own forms whole gradients"
    device_name: str | None = None
    problem: OwnProblem

    def __init__(self, problem: OwnProblem, threads: int, operations: BackendOperations) -> None:
        """Try the class at its initial parameters. Raises SimulationError for what it must not do."""
        super().__init__(operations)
        self.problem, self.threads, self.seconds = problem, threads, 0.0
        self.numerics = problem.numerics
        self.takes_current = problem.declared.takes_current
        self._grads = np.empty((0, problem.layout.size), np.float32)
        self._evaluations = 0
        self._repeats = False  # whether the next gradient is computed twice
        self._noted = False  # whether it was said that a gradient has NaN
        self._last: tuple[bytes, dict[str, float]] | None = None  # the parameters last evaluated, and what was said
        problem.try_out()

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64], keys: Keys | None = None) -> tuple[Array, Array]:
        """Compute one gradient after the other; the loss of each is that of the task, (B, 1)."""
        if len(rows) > len(self._grads):
            self._grads = aligned(len(rows), self.problem.layout.size)
        losses = np.empty(rows.shape, np.float32)
        began, before = time.perf_counter(), None if self.problem.draws_shared else generator_states()
        for b in range(len(rows)):
            assert keys is not None  # nothing that a problem has is measured without them
            params, draws = np.asarray(held[b]), keys.one(b)
            self._grads[b], losses[b] = self.problem.gradient(params, draws, self._current)
            if not self._noted and np.isnan(self._grads[b]).any() and np.isfinite(params).all():
                self._note(draws, params)
            if self._repeats:
                self._repeats = False
                self.problem.repeat(params, draws, self._grads[b], self._current)
        if before is not None and before != generator_states():
            raise self.problem.drawn_late()
        self.seconds += time.perf_counter() - began
        return self._grads[: len(rows)], losses

    def _note(self, draws: Draws, params: Array) -> None:
        """Say once that a gradient has NaN at finite parameters: the run diverges, or the class is wrong."""
        self._noted = True
        most = float(np.abs(params).max())
        what = f"gradient {draws.number} of client {draws.client} has NaN at finite parameters, {most:.3g} at most"
        note(f"problem.name: {self.problem.name}: {what}")

    def _current(self) -> Array:
        assert self.current is not None  # the loop has set it
        return np.array(np.asarray(self.current()))

    def measured(self, params: Any) -> dict[str, float]:
        """Return what the class says of parameters (P,), by name.

        After the 1st, 2nd, 4th, 8th … evaluation of a run, a gradient is computed twice, and must be the same.
        """
        values = np.asarray(params)
        key = values.tobytes()
        if self._last is None or self._last[0] != key:
            began = time.perf_counter()
            self._last = key, self.problem.evaluate(values)
            self.seconds += time.perf_counter() - began
            self._evaluations += 1
            self._repeats = self._evaluations & (self._evaluations - 1) == 0
        return self._last[1]

    def evaluate(self, params: Any, part: Part) -> tuple[float, float]:
        """Return the loss and the error that the class says, as those of validation; NaN for what it does not say."""
        found = self.measured(params) if part == "validation" else {}
        loss, error = (found.get(name, math.nan) for name in COLUMNS_OF)
        return loss, error

    def outcomes(self, params: Any, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return NaN for the only row, which stands for the problem itself, (1,) each."""
        return np.full(1, np.nan, np.float32), np.full(1, np.nan)


class ProblemMetrics:
    """What a problem's class says besides its loss and error: a function of the parameters, as Metrics is."""

    functions: Sequence[Callable[..., Any]] = ()  # a problem's engine itself sees that its class keeps nothing

    def __init__(self, problem: OwnProblem, engine: Engine) -> None:
        self._engine, self.columns = engine, problem.columns

    def __call__(self, params: Array) -> dict[str, float]:
        """Return the values at finite parameters (P,), by column."""
        found = self._engine.measured(params)
        return {name: found[name] for name in self.columns}
