"""The arrivals of clients that never wait for anything, merged: drawn in stretches of time, all clients at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.dispatchers.base import Order
from fredsim.dispatchers.durations import NEVER, Tasks
from fredsim.plugins.states import Stateful

__all__ = ["Merged"]

Integers = NDArray[np.int64]

LONG = NEVER // 64  # tasks of less may be added up, so many at once, within int64
MOST = 64


class Merged(Stateful):
    """Each client begins its next task when the one before ends."""

    state_names = ("_ends", "_numbers", "_now", "_span")

    def __init__(self, tasks: Tasks, clients: int) -> None:
        """Let every client begin its first task at time 0."""
        self._tasks = tasks
        self._numbers = np.zeros(clients, np.int64)  # of the task that each client is at
        self._ends = tasks(np.arange(clients), self._numbers)
        self._now = 0  # all that ends until now has been given
        self._span = 0.0  # how long a stretch was that gave about as many arrivals as were asked for

    def next(self, many: int) -> Order:
        """Return the next arrivals, about so many; none only where no task will ever end."""
        first = int(self._ends.min())
        if first >= NEVER:
            return _order([])
        self._span = self._span or 1e9 * many / self._tasks.rate
        until = min(NEVER - 1, max(first, self._now + min(LONG, int(self._span))))
        found = []
        due = np.flatnonzero(self._ends <= until)
        while len(due):
            found.append((self._ends[due], due, self._numbers[due]))
            due = self._go_on(due, until, found)
        order = _order(found)
        self._now = until
        if not many / 2 <= len(order) <= 2 * many:
            self._span *= min(8.0, max(1 / 8, many / max(1, len(order))))
        return order

    def _go_on(self, due: Integers, until: int, found: list[tuple[Integers, Integers, Integers]]) -> Integers:
        """Let these clients, whose tasks have ended, do the next few; return those that have ended again by `until`."""
        each = self._few(due, until)
        places = np.cumsum(each) - each
        clients, offsets = np.repeat(due, each), np.arange(int(each.sum())) - np.repeat(places, each)
        numbers = np.repeat(self._numbers[due] + 1, each) + offsets
        takes = self._tasks(clients, numbers)
        if takes.max() > LONG:  # sums of several might not fit
            places, each = np.arange(len(due)), np.ones(len(due), np.int64)
            first = offsets == 0
            clients, offsets, numbers, takes = clients[first], offsets[first], numbers[first], takes[first]
        sums = np.cumsum(takes)  # it may wrap around; the differences do not
        ends = np.repeat(self._ends[due] - sums[places] + takes[places], each) + sums
        ends = np.minimum(ends, NEVER)
        last = places + each - 1
        within = ends <= until
        within[last] = False  # that one is the client's present task, due again or not
        found.append((ends[within], clients[within], numbers[within]))
        # The present task of each client: its first that ends later, or the last that was drawn.
        beyond = ends > until
        beyond[last] = True
        at = np.flatnonzero(beyond)
        at = at[np.concatenate([[True], clients[at[1:]] != clients[at[:-1]]])]
        self._ends[due], self._numbers[due] = ends[at], numbers[at]
        return due[self._ends[due] <= until]

    def _few(self, due: Integers, until: int) -> Integers:
        """Return how many tasks of each of these clients to draw at once: about as many as end by `until`."""
        means = self._tasks.means
        expected = (until - self._ends[due]) / (1e9 * (means[due] if means.ndim else float(means)))
        return np.minimum(MOST, expected + 1).astype(np.int64)


def _order(found: list[tuple[Integers, Integers, Integers]]) -> Order:
    """Return arrivals in the order of (time, client)."""
    times, clients, numbers = np.concatenate([np.empty((3, 0), np.int64), *found], axis=1)
    order = np.lexsort((clients, times))
    return Order(clients[order], numbers[order], times[order])
