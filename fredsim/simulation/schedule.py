"""The schedule of a run: who arrives with which work, and from which parameters that work was begun.

Where nothing that is computed changes who arrives next, and every fetch passes, the whole schedule is known before the
first event (`whole_schedule`): what each event depends on follows from it. Otherwise it is made as the run goes, as far
ahead as nothing can change it (`Arrivals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fredsim.simulation.exchanges import AdaptedDispatcher, AdaptedGate
from fredsim.simulation.state import State

__all__ = ["Arrivals", "Schedule", "next_works", "places_of", "slots_of", "whole_schedule", "windows_of"]

Integers = NDArray[np.int64]

#: Choices that are drawn together where nobody is ever held.
AHEAD = 1024


@dataclass(frozen=True)
class Schedule:
    """Arrivals in their order, int64 (T,) each."""

    #: Who arrives.
    client: Integers
    #: The event after which the client fetched what it computed on, −1 for the initial parameters.
    begun: Integers
    #: Which of the client's works it is, from 0: it fixes the minibatch.
    number: Integers

    def __len__(self) -> int:
        return len(self.client)


def whole_schedule(clients: Integers, *, wait: bool) -> Schedule:
    """Return what follows from the order of clients (T,) where every fetch passes.

    With `wait` a client begins its next work from what it fetches on arrival; without, from what it held then.
    """
    _, inverse, counts = np.unique(clients, return_inverse=True, return_counts=True)
    by_client = np.argsort(inverse, kind="stable")  # each client's events, in order
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    number = np.empty(len(clients), np.int64)
    number[by_client] = np.arange(len(clients)) - starts
    ahead = _works_under_way(wait)
    begun = np.full(len(clients), -1, np.int64)
    one, other = by_client[:-ahead], by_client[ahead:]
    same = inverse[one] == inverse[other]
    begun[other[same]] = one[same]
    return Schedule(clients, begun, number)


def _works_under_way(wait: bool) -> int:
    """Return how many arrivals of the same client ago the work that arrives was begun."""
    return 1 if wait else 2


def next_works(schedule: Schedule) -> Integers:
    """Return for each event the one at which the work begun after it arrives, −1 for none; int64 (T,)."""
    events = np.full(len(schedule), -1, np.int64)
    begun = schedule.begun >= 0
    events[schedule.begun[begun]] = np.flatnonzero(begun)
    return events


def slots_of(schedule: Schedule, *, wait: bool) -> tuple[Integers, int]:
    """Return each event's slot for the work that arrives, int64 (T,), and how many slots there are.

    What is begun after an event takes the slot of what arrived at it. Clients that never arrive have none.
    """
    known, inverse = np.unique(schedule.client, return_inverse=True)
    ahead = _works_under_way(wait)
    return inverse * ahead + schedule.number % ahead, len(known) * ahead


def places_of(schedule: Schedule) -> tuple[Integers, Integers, int]:
    """Return each event's place of the parameters that it started from, and of what its client fetches; and how many.

    int64 (T,) each; −1 for a fetch that is never used. Place 0 keeps the initial parameters; any other is free again
    once its client has arrived.
    """
    held, kept = np.zeros(len(schedule), np.int64), np.full(len(schedule), -1, np.int64)
    free: list[int] = []
    places = 1
    for event, (begun, following) in enumerate(
        zip(schedule.begun.tolist(), next_works(schedule).tolist(), strict=True)
    ):
        if begun >= 0:
            held[event] = kept[begun]
            free.append(int(kept[begun]))
        if following >= 0:
            if not free:
                free.append(places)
                places += 1
            kept[event] = free.pop()
    return held, kept, places


def windows_of(begun: Integers, room: int) -> Iterator[tuple[int, int]]:
    """Yield windows begin … end of at most `room` events, all of which were under way before the window began."""
    begin = 0
    for event, started in enumerate(begun.tolist()):
        if started >= begin or event - begin == room:
            yield begin, event
            begin = event
    if begin < len(begun):
        yield begin, len(begun)


class Arrivals:
    """Makes the schedule as the run goes: the loop says who fetched and who began anew."""

    def __init__(
        self,
        dispatcher: AdaptedDispatcher,
        gates: Sequence[AdaptedGate],
        clients: int,
        *,
        wait: bool,
        iterations: int | None,
    ) -> None:
        """Start with every client at work on the initial parameters; `iterations` is the run's length, if that ends it.

        `gates` are told who arrives, so that they can draw ahead.
        """
        self._dispatcher, self._gates, self._iterations = dispatcher, gates, iterations
        self._ahead: list[int] = []  # clients drawn ahead, of whom the first `_at` have arrived
        self._at = self._drawn = 0
        self._numbers = np.zeros(clients, np.int64)  # of the works under way
        self._under_way = np.full(clients, -1, np.int64)  # the events after which they were fetched for
        self._fetched = self._under_way if wait else self._under_way.copy()

    def next(self, iteration: int, limit: int, *, held_for: Callable[[], int] | None = None) -> Schedule:
        """Return the next arrivals: of different clients, and none that may depend on a reply to another.

        `held_for`, of a server that holds its clients, says for how many pushes each client that pushes stays held.
        """
        clients: list[int] = []
        if held_for is not None:
            for _ in range(min(limit, held_for())):
                client = self._dispatcher.choose(iteration + len(clients))
                self._dispatcher.hold(client)
                clients.append(client)
        else:
            self._draw(limit)
            seen: set[int] = set()
            for client in self._ahead[self._at : self._at + limit]:
                if client in seen:
                    break
                seen.add(client)
                clients.append(client)
            self._at += len(clients)
        ids = np.array(clients)
        schedule = Schedule(ids, self._under_way[ids], self._numbers[ids])
        self._numbers[ids] += 1
        return schedule

    def coming(self, count: int) -> tuple[list[int], Integers]:
        """Return the next `count` clients and the numbers of their works, of a server that never holds any."""
        self._draw(count)
        clients = self._ahead[self._at : self._at + count]
        ahead: dict[int, int] = {}
        numbers = np.empty(count, np.int64)
        for i, client in enumerate(clients):
            numbers[i] = self._numbers[client] + ahead.get(client, 0)
            ahead[client] = ahead.get(client, 0) + 1
        return clients, numbers

    def put_back(self, clients: Integers) -> None:
        """Take back the last arrivals that `next` returned, which have not happened."""
        self._numbers[clients] -= 1
        self._at -= len(clients)

    def _draw(self, count: int) -> None:
        """See to it that `count` choices at least are drawn ahead."""
        there = len(self._ahead) - self._at
        if there >= count:
            return
        left = AHEAD if self._iterations is None else min(AHEAD, self._iterations - self._drawn)
        more = max(count - there, left)
        clients = [self._dispatcher.choose(self._drawn + i) for i in range(more)]
        self._tell_gates(clients)
        self._drawn += more
        self._ahead = self._ahead[self._at :] + clients
        self._at = 0

    def _tell_gates(self, clients: Sequence[int]) -> None:
        """Let the gates draw for clients that arrive from the first that is not drawn yet on."""
        for gate in self._gates:
            gate.look_ahead(self._drawn, clients)

    def fetched(self, client: int, event: int) -> None:
        """Take note that a client fetched after this event."""
        self._fetched[client] = event

    def began(self, client: int) -> None:
        """Take note that a client began its next work from what it holds."""
        self._under_way[client] = self._fetched[client]

    def give_up(self, client: int) -> None:
        """Take note that the work that a client began before the last will never arrive."""
        self._numbers[client] += 1

    def take_state(self) -> State:
        """Return what has been drawn, and the works under way."""
        state = {
            "ahead": np.array(self._ahead[self._at :], np.int64),
            "drawn": self._drawn,
            "numbers": self._numbers.copy(),
            "under_way": self._under_way.copy(),
        }
        return state if self._fetched is self._under_way else state | {"fetched": self._fetched.copy()}

    def put_state(self, state: State) -> None:
        """Go on from there."""
        self._ahead, self._at = state["ahead"].tolist(), 0
        self._drawn = int(state["drawn"]) - len(self._ahead)
        self._tell_gates(self._ahead)
        self._drawn += len(self._ahead)
        self._numbers[...], self._under_way[...] = state["numbers"], state["under_way"]
        if "fetched" in state:
            self._fetched[...] = state["fetched"]
