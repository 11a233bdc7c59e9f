"""The arrivals of clients that never wait for anything, drawn for all clients together, one time span at a time."""

from __future__ import annotations

import numpy as np

from fredsim.dispatchers.base import Order
from fredsim.dispatchers.durations import NEVER, TaskDurations
from fredsim.numerics.arrays import Integers
from fredsim.plugins.state.states import Stateful

__all__ = ["MergedArrivals"]

LONG = NEVER // 64  # MOST tasks shorter than this can be added up within int64
MOST = 64  # the most tasks of a client that are drawn at once
MOST_FOUND = 4  # the most arrivals at once, as a multiple of those asked for and the clients

Found = list[tuple[Integers, Integers, Integers]]  # arrivals, in parts: times, clients, numbers of tasks


class MergedArrivals(Stateful):
    """The arrivals, in order, of clients each of which begins its next task as soon as its last one ends."""

    state_names = ("_ends", "_numbers", "_now", "_span")

    def __init__(self, tasks: TaskDurations, clients: int) -> None:
        """Let every client begin its first task at time 0."""
        self._durations = tasks
        self._numbers = np.zeros(clients, np.int64)  # the number of each client's present task
        self._ends = tasks(np.arange(clients), self._numbers)  # when that task ends
        self._now = 0  # all arrivals up to this time have been returned
        self._span = 0.0  # the length, in nanoseconds, of a time span with about as many arrivals as are asked for

    def next(self, many: int) -> Order:
        """Return the next arrivals, about `many`; none only if no task will ever end."""
        first = int(self._ends.min())
        if first >= NEVER:
            return _order([])
        self._span = self._span or 1e9 * many / self._durations.rate
        until = min(NEVER - 1, max(first, self._now + min(LONG, int(self._span))))
        found: Found = []
        while not self._advance_all(until, found, MOST_FOUND * (many + len(self._ends))):
            # Far more tasks are short than their mean says. The span is halved at least; at worst it ends at `first`.
            times = np.concatenate([ends for ends, _, _ in found])
            until = max(first, min(int(np.partition(times, many)[many]), (self._now + until) // 2))
            self._span = float(until - self._now)
            ends, due, numbers = found[0]
            self._ends[due], self._numbers[due] = ends, numbers
            found.clear()
        order = _order(found)
        self._now = until
        if not many / 2 <= len(order) <= 2 * many:
            self._span *= min(8.0, max(1 / 8, many / max(1, len(order))))
        return order

    def _advance_all(self, until: int, found: Found, most: int) -> bool:
        """Advance all clients beyond `until`, and add the arrivals to `found`; stop and return False at `most`."""
        due = np.flatnonzero(self._ends <= until)
        rounds = count = 0
        while len(due):
            found.append((self._ends[due], due, self._numbers[due]))
            count += len(due)
            rounds += 1
            due = self._advance(due, until, found, rounds // 2)
            count += len(found[-1][0])
            if count > most:
                return False
        return True

    def _advance(self, due: Integers, until: int, found: Found, least: int) -> Integers:
        """Draw the next few tasks of clients whose tasks have ended (`due`); return those due again by `until`.

        At least `least` of each: a client that is due again and again has shorter tasks than expected.
        """
        each = self._tasks_to_draw(due, until, least)
        places = np.cumsum(each) - each
        clients, offsets = np.repeat(due, each), np.arange(int(each.sum())) - np.repeat(places, each)
        numbers = np.repeat(self._numbers[due] + 1, each) + offsets
        takes = self._durations(clients, numbers)
        if takes.max() > LONG:  # sums of several tasks might overflow: take only each client's first
            places, each = np.arange(len(due)), np.ones(len(due), np.int64)
            first = offsets == 0
            clients, offsets, numbers, takes = clients[first], offsets[first], numbers[first], takes[first]
        sums = np.cumsum(takes)  # this may wrap around, but the differences used below are right
        ends = np.repeat(self._ends[due] - sums[places] + takes[places], each) + sums
        ends = np.minimum(ends, NEVER)
        last = places + each - 1
        within = ends <= until
        within[last] = False  # the last task drawn becomes the client's present one, even if it ends by `until`
        found.append((ends[within], clients[within], numbers[within]))
        # The present task of each client is its first one that ends later, or else the last one drawn.
        beyond = ends > until
        beyond[last] = True
        at = np.flatnonzero(beyond)
        at = at[np.concatenate([[True], clients[at[1:]] != clients[at[:-1]]])]
        self._ends[due], self._numbers[due] = ends[at], numbers[at]
        return due[self._ends[due] <= until]

    def _tasks_to_draw(self, due: Integers, until: int, least: int) -> Integers:
        """Return how many tasks to draw at once for each of these clients: roughly as many as end by `until`."""
        means = self._durations.means
        expected = (until - self._ends[due]) / (1e9 * (means[due] if means.ndim else float(means)))
        return np.minimum(MOST, np.maximum(expected + 1, least)).astype(np.int64)


def _order(found: Found) -> Order:
    """Return arrivals in the order of (time, client)."""
    times, clients, numbers = np.concatenate([np.empty((3, 0), np.int64), *found], axis=1)
    order = np.lexsort((clients, times))
    return Order(clients[order], numbers[order], times[order])
