"""How many local steps the tasks of clients of different speed have on a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fredsim.numerics.arrays import Floats, Integers

__all__ = ["TaskSteps", "VariedSteps"]

#: Far more than roundings take from a quotient of decimal times, such as 100 · 0.29 s ÷ 1 s, which is 29 steps.
ROUNDED = 1 + 2.0**-46


@dataclass(frozen=True)
class VariedSteps:
    """Either in proportion to the clients' speeds, `fastest` of the fastest; or as many as fit into `seconds`."""

    fastest: int | None = None
    seconds: float | None = None


class TaskSteps:
    """How many local steps tasks have.

    In proportion to speed: ⌊fastest · shortest mean time ÷ the client's mean time⌋, in float64, 1 at least; what
    rounding has left just below a whole number counts as that. In seconds: ⌊seconds ÷ the time of a single gradient⌋,
    both in whole nanoseconds, 1 at least; the time of a single gradient is drawn for each task.
    """

    def __init__(self, varied: VariedSteps, means: Floats, singles: Callable[[Integers, Integers], Integers]) -> None:
        """Take the mean times of single gradients in seconds, (λ,), or () if all are equal.

        `singles` returns how long single gradients of these clients' tasks with these numbers take, in nanoseconds.
        """
        self._singles = singles
        self._nanoseconds = 0 if varied.seconds is None else max(1, round(varied.seconds * 1e9))
        #: How many steps the tasks of each client have, (λ,) or (); None if that differs from task to task.
        self.of_client: Integers | None = None
        if varied.fastest is not None:
            quotients = varied.fastest * np.min(means) / means
            self.of_client = np.maximum(np.floor(quotients * ROUNDED), 1).astype(np.int64)
        self._sums: dict[int, Integers] = {}  # by client: how many steps its first n tasks had, n from 0

    def __call__(self, clients: Integers, numbers: Integers) -> Integers:
        """Return how many local steps these clients' tasks with these numbers have, int64 (n,)."""
        if self.of_client is not None:
            return self.of_client[clients] if self.of_client.ndim else np.full(len(clients), self.of_client)
        return np.maximum(self._nanoseconds // self._singles(clients, numbers), 1)

    def before(self, clients: Integers, numbers: Integers) -> Integers:
        """Return how many local steps these clients have taken in their tasks before these, int64 (n,)."""
        if self.of_client is not None:
            return numbers * self(clients, numbers)
        pairs = zip(clients.tolist(), numbers.tolist(), strict=True)
        return np.array([self._sum(client, number) for client, number in pairs], np.int64)

    def _sum(self, client: int, number: int) -> int:
        known = self._sums.get(client, np.zeros(1, np.int64))
        if number >= len(known):
            more = np.arange(len(known) - 1, max(number, 2 * len(known)))
            counts = self(np.full(len(more), client), more)
            known = self._sums[client] = np.concatenate([known, known[-1] + np.cumsum(counts)])
        return int(known[number])
