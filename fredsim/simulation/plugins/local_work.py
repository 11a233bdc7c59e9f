"""What clients compute between a fetch and a push: one gradient, or the outcome of several local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Engine
from fredsim.data.sampling import Sampler
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.rules import Rule

__all__ = ["LocalWork", "PushKind", "minibatches"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]
PushKind = Literal["gradient", "delta", "params"]


def step(theta: Any, total: Any, g: Any, rate: Any) -> Any:
    """Take a local step, where the client pushes the sum of its gradients."""
    return theta - rate * g, total + g


def step_delta(theta: Any, total: Any, g: Any, rate: Any) -> Any:
    """Take a local step, where the client pushes the sum of its steps."""
    moved = rate * g
    return theta - moved, total - moved


def step_params(theta: Any, g: Any, rate: Any) -> Any:
    """Take a local step, where the client pushes its parameters θ."""
    return theta - rate * g


STEPS: dict[PushKind, Rule] = {
    "gradient": Rule(step, state=("total",)),
    "delta": Rule(step_delta, state=("total",)),
    "params": Rule(step_params),
}


def minibatches(sampler: Sampler, steps: int, sent: Integers, clients: Integers, numbers: Integers) -> Integers:
    """Return the indices (B, k, µ) of the samples of B tasks of k local steps each.

    `sent` (B,) is how many gradients were done before each task, `numbers` (B,) how many tasks of the same client.
    """
    if steps == 1:
        return sampler.rows(sent, clients, numbers)[:, None]
    within = np.arange(steps)
    sent, numbers = (values[:, None] * steps + within for values in (sent, numbers))
    rows = sampler.rows(sent.reshape(-1), np.repeat(clients, steps), numbers.reshape(-1))
    return rows.reshape(len(clients), steps, -1)


class LocalWork:
    """Computes what clients push."""

    def __init__(self, engine: Engine, size: int, pushes: PushKind, local_steps: int) -> None:
        """Prepare for `size` parameters; `pushes` says what a client pushes after `local_steps` steps."""
        self._engine, self._size, self._rule = engine, size, STEPS[pushes]
        self._step = engine.compile_rule(self._rule) if local_steps > 1 or pushes != "gradient" else None
        self._buffers: list[list[Array]] = []  # for each client that takes steps: parameters, then the rule's sum

    def __call__(
        self, held: Sequence[Array], rows: Integers, rates: Sequence[float], keys: Keys
    ) -> tuple[Sequence[Array], Array, list[bool]]:
        """Return what B different clients push, (P,) each, their samples' losses (B, k·µ), and if they stayed finite.

        `held` are the parameters that each client starts from, (P,), with MARGIN readable floats behind them; `rows`
        (B, k, µ) are the minibatches of k local steps; `rates` are the learning rates of each client's steps, not used
        if it takes none; `keys` have the numbers of the clients' tasks. The next call overwrites the returned arrays.
        """
        if self._step is None:
            gradients, first_losses = self._engine.gradients(held, rows[:, 0], keys)
            return cast(Sequence[Array], gradients), first_losses, [True] * len(held)
        while len(self._buffers) < len(held):
            theta = self._engine.zeros(self._size + MARGIN)[: self._size]
            sums = [self._engine.zeros(self._size) for _ in self._rule.state]
            self._buffers.append([theta, *sums])
        buffers, losses, finite = self._buffers[: len(held)], [], [True] * len(held)
        for (theta, *sums), params in zip(buffers, held, strict=True):
            self._engine.duplicate(params, theta)
            for total in sums:
                total[...] = 0.0
        for number in range(rows.shape[1]):
            thetas, own = [theta for theta, *_ in buffers], keys.step(number, rows.shape[1])
            grads, step_losses = self._engine.gradients(thetas, rows[:, number], own)
            losses.append(step_losses.copy())
            for b, arrays in enumerate(buffers):
                finite[b] &= self._step(*arrays, grads[b], 0, self._size, np.float32(rates[b]))
        return [arrays[-1] for arrays in buffers], np.concatenate(losses, axis=1), finite
