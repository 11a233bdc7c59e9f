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

from fredsim.plugins.states import State, Stateful
from fredsim.simulation.guarded_plugins import GuardedDispatcher, GuardedGate

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
    number, before = _by_client(clients)
    return Schedule(clients, before if wait else np.where(before >= 0, before[before], -1), number)


def _by_client(clients: Integers) -> tuple[Integers, Integers]:
    """Return how many arrivals of the same client came before each, and the last of these, −1 for none; (T,) each."""
    count = len(clients)
    number, before = np.empty(count, np.int64), np.full(count, -1, np.int64)
    order = np.argsort(clients, kind="stable")  # each client's arrivals together
    again = np.zeros(count, bool)
    again[1:] = clients[order[1:]] == clients[order[:-1]]
    before[order[again]] = order[np.flatnonzero(again) - 1]
    places = np.arange(count)
    number[order] = places - np.maximum.accumulate(np.where(again, 0, places))
    return number, before


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
    works = 1 if wait else 2  # that a client has at once: under way, and to be begun from what it holds
    return inverse * works + schedule.number % works, len(known) * works


def places_of(schedule: Schedule) -> tuple[Integers, Integers, int]:
    """Return by event the place of the parameters it is computed from and that of what is then fetched; and how many.

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


class Arrivals(Stateful):
    """Makes the schedule as the run goes: the loop says who fetched and who began anew."""

    state_names = ("_ahead", "_numbers", "_drawn", "_works", "_under_way", "_fetched")

    def __init__(
        self,
        dispatcher: GuardedDispatcher,
        gates: Sequence[GuardedGate],
        clients: int,
        *,
        wait: bool,
        iterations: int | None,
    ) -> None:
        """Start with every client at work on the initial parameters; `iterations` is the run's length, if that ends it.

        `gates` are told who arrives, so that they can draw ahead.
        """
        self._dispatcher, self._gates, self._iterations = dispatcher, gates, iterations
        self._drawn = self._at = 0  # choices so far, and the place of the next to arrive among those kept
        self._works = np.zeros(clients, np.int64)  # how many works of each client are drawn or given up
        self._keep_ahead([], np.empty(0, np.int64))
        self._under_way = [-1] * clients  # the events after which they were fetched for
        self._fetched = self._under_way if wait else self._under_way.copy()

    def next(self, iteration: int, limit: int, *, held_for: Callable[[], int] | None = None) -> Schedule:
        """Return the next arrivals: of different clients, and none that may depend on a reply to another.

        `held_for`, of a server that holds its clients, says for how many pushes each client that pushes stays held.
        """
        if held_for is None:
            self._draw(limit)
            begin = end = self._at
            while end < begin + limit and self._before[end] < begin:
                end += 1
            self._at = end
            clients, numbers = self._ahead[begin:end], self._numbers[begin:end]
        else:
            clients = []
            for _ in range(min(limit, held_for())):
                clients.append(self._dispatcher.choose(iteration + len(clients)))
                self._dispatcher.hold(clients[-1])
            numbers = self._works[clients]
            self._works[clients] += 1
        return Schedule(np.array(clients), np.array([self._under_way[client] for client in clients]), numbers)

    def coming(self, count: int) -> tuple[list[int], Integers]:
        """Return the next `count` clients and the numbers of their works, of a server that never holds any."""
        self._draw(count)
        return self._ahead[self._at : self._at + count], self._numbers[self._at : self._at + count]

    def put_back(self, count: int) -> None:
        """Take back the last `count` arrivals that `next` returned, of a server that never holds any."""
        self._at -= count

    def _draw(self, count: int) -> None:
        """See to it that `count` choices at least are drawn ahead."""
        there = len(self._ahead) - self._at
        if there >= count:
            return
        left = AHEAD if self._iterations is None else min(AHEAD, self._iterations - self._drawn)
        clients = [self._dispatcher.choose(self._drawn + i) for i in range(max(count - there, left))]
        self._tell_gates(self._drawn, clients)
        ids = np.array(clients)
        numbers = self._works[ids] + _by_client(ids)[0]
        self._works[ids] = numbers + 1  # of several of a client's the last stays
        self._drawn += len(clients)
        self._keep_ahead(self._ahead[self._at :] + clients, np.concatenate([self._numbers[self._at :], numbers]))

    def _keep_ahead(self, clients: list[int], numbers: Integers) -> None:
        """Keep the choices that are drawn and have not arrived."""
        self._ahead, self._numbers, self._at = clients, numbers, 0
        self._before: list[int] = _by_client(np.array(clients, np.int64))[1].tolist()

    def _tell_gates(self, begin: int, clients: Sequence[int]) -> None:
        """Let the gates draw for the clients that arrive at iterations `begin` on."""
        for gate in self._gates:
            gate.look_ahead(begin, clients)

    def fetched(self, client: int, event: int) -> None:
        """Take note that a client fetched after this event."""
        self._fetched[client] = event

    def began(self, client: int) -> None:
        """Take note that a client began its next work from what it holds."""
        self._under_way[client] = self._fetched[client]

    def give_up(self, client: int) -> None:
        """Take note that the work that a client began before the last will never arrive."""
        self._works[client] += 1
        for place in range(self._at, len(self._ahead)):
            self._numbers[place] += self._ahead[place] == client

    def take_state(self) -> State:
        """Return what has been drawn, and the works under way."""
        self._keep_ahead(self._ahead[self._at :], self._numbers[self._at :])
        return super().take_state()

    def put_state(self, state: State) -> None:
        """Go on from a state."""
        super().put_state(state)
        self._keep_ahead(self._ahead, self._numbers)
        self._tell_gates(self._drawn - len(self._ahead), self._ahead)
