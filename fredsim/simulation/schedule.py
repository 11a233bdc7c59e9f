"""The schedule of a run: who arrives with which work, and from which parameters that work was begun.

Where nothing that is computed changes who arrives next, and every fetch passes, the whole schedule is known before the
first event (`whole_schedule`): what each event depends on follows from it. Otherwise it is made as the run goes, as far
ahead as nothing can change it (`Arrivals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from fredsim.dispatchers.base import Order, by_client
from fredsim.errors import SimulationError
from fredsim.plugins.states import State, Stateful
from fredsim.simulation.guarded_clock import GuardedClock
from fredsim.simulation.guarded_plugins import GuardedDispatcher, GuardedGate
from fredsim.simulation.length import Length

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

    #: When the server is done with it, in nanoseconds; None without a clock.
    time: Integers | None = None
    #: How many gradients were done before this one, which is its iteration where copies take no time: None.
    sent: Integers | None = None
    #: (T, 3) nanoseconds: when the work was begun, its gradient done, and the push at the server; None where it was
    #: begun at the time of event `begun`, and the rest is `time`.
    stages: Integers | None = None
    #: 0 or 1: 1 for a task that was given up, and has no gradient; None where none can be.
    given_up: Integers | None = None

    def __len__(self) -> int:
        return len(self.client)

    def first(self, count: int) -> Schedule:
        """Return the first events."""
        return self.part(0, count)

    def part(self, begin: int, end: int) -> Schedule:
        """Return events begin … end − 1."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: values[begin:end] for name, values in columns.items() if values is not None})


def whole_schedule(order: Order, *, wait: bool) -> Schedule:
    """Return what follows from the order of arrivals where every fetch passes.

    With `wait` a client begins its next work from what it fetches on arrival; without, from what it held then.
    """
    number, before = by_client(order.client)
    begun = before if wait else np.where(before >= 0, before[before], -1)
    _check_begun(order.client, begun, order.begun, 0)
    if order.number is not None:
        number = order.number
    return Schedule(order.client, begun, number, order.time, order.sent, order.stages)


def _check_begun(clients: Integers, begun: Integers, recorded: Integers | None, first: int) -> None:
    """Raise SimulationError where clients have not fetched as recorded; `first` is the iteration of the first event."""
    if recorded is not None and (recorded != begun).any():
        at = int(np.flatnonzero(recorded != begun)[0])
        found = f"client {clients[at]} computed on what it fetched after event {recorded[at]}, in this run {begun[at]}"
        remedy = "the run is not the recorded one: give dispatcher.check: false to follow who arrives when alone"
        raise SimulationError(f"the trace, row {first + at}: by its column begun {found}; {remedy}")


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
    return inverse * works + by_client(schedule.client)[0] % works, len(known) * works


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

    state_names = ("_ahead", "_columns", "_drawn", "_ended", "_works", "_under_way", "_fetched")

    def __init__(
        self,
        dispatcher: GuardedDispatcher,
        gates: Sequence[GuardedGate],
        clients: int,
        *,
        wait: bool,
        length: Length,
    ) -> None:
        """Start with every client at work on the initial parameters; `length` is the run's.

        `gates` are told who arrives, so that they can draw ahead.
        """
        self._dispatcher, self._gates, self._length = dispatcher, gates, length
        self._clock = dispatcher if isinstance(dispatcher, GuardedClock) else None
        self._drawn = self._at = 0  # choices so far, and the place of the next to arrive among those kept
        self._ended = False  # whether the clock has passed the run's end, or no gradient will ever arrive
        self._works = np.zeros(clients, np.int64)  # how many works of each client are drawn or given up
        self._keep_ahead([], {})
        self._under_way = [-1] * clients  # the events after which they were fetched for
        self._fetched = self._under_way if wait else self._under_way.copy()

    def next(
        self,
        iteration: int,
        limit: int,
        *,
        held_for: Callable[[], int] | None = None,
        refused: Sequence[bool] = (),
    ) -> Schedule:
        """Return the next arrivals: of different clients, and none that may depend on a reply to another.

        `held_for`, where a reply says who goes on, says for how many pushes each client that pushes does not; else
        `refused` says of the next arrivals whose fetch will be refused: such a client may arrive again. There are none
        where the run's time is over. Raises SimulationError where no gradient will ever arrive.
        """
        if held_for is None:
            self._draw(limit)
            begin = end = self._at
            stop = min(begin + limit, len(self._ahead))
            if "begun" in self._columns:  # it is compared with what was fetched, which nobody knows yet
                refused = ()
            while end < stop and ((at := self._before[end] - begin) < 0 or (at < len(refused) and refused[at])):
                end += 1
            self._at = end
            clients = self._ahead[begin:end]
            columns = {name: values[begin:end] for name, values in self._columns.items()}
        else:
            clients, columns = self._choose(min(limit, held_for()), iteration)
        if not clients and self._length.until is None:
            assert self._clock is not None  # another dispatcher says so itself
            raise self._clock.ended(iteration, self._length.iterations)
        under_way = np.array([self._under_way[client] for client in clients], np.int64)
        ids = np.array(clients, np.int64)
        _check_begun(ids, under_way, columns.pop("begun", None), iteration)
        return Schedule(ids, under_way, **columns)

    def _choose(self, count: int, iteration: int) -> tuple[list[int], dict[str, Integers]]:
        """Return the next clients, which are held then, and what else is known of their arrivals."""
        clients: list[int] = []
        orders = []
        while len(clients) < count and not self._ended:
            if self._clock is None:
                clients.append(self._dispatcher.choose(iteration + len(clients)))
            elif len(order := self._of_run(self._clock.draw(1))):
                clients += order.client.tolist()
                orders.append(order)
            if clients and not self._ended:
                self._dispatcher.hold(clients[-1])
        if orders:
            return clients, Order.joined(orders).columns
        numbers = self._works[clients]
        self._works[clients] += 1
        return clients, {"number": numbers}

    def coming(self, count: int) -> Order:
        """Return the next `count` arrivals at most, of a server that never holds any."""
        self._draw(count)
        some = slice(self._at, self._at + count)
        return Order(np.array(self._ahead[some], np.int64), **{n: values[some] for n, values in self._columns.items()})

    def put_back(self, count: int) -> None:
        """Take back the last `count` arrivals that `next` returned, of a server that never holds any."""
        self._at -= count

    def _draw(self, count: int) -> None:
        """See to it that `count` choices at least are drawn ahead, as far as there are any."""
        while (there := len(self._ahead) - self._at) < count and not self._ended:
            iterations = self._length.iterations
            left = AHEAD if iterations is None else min(AHEAD, iterations - self._drawn)
            wanted = max(count - there, left)
            if self._clock is not None:
                order = self._of_run(self._clock.draw(wanted))
            else:
                ids = np.array([self._dispatcher.choose(self._drawn + i) for i in range(wanted)])
                order = Order(ids, self._works[ids] + by_client(ids)[0])
                self._works[ids] = order.columns["number"] + 1  # of several of a client's the last stays
            clients = order.client.tolist()
            self._tell_gates(self._drawn, clients)
            self._drawn += len(clients)
            columns = {
                name: np.concatenate([self._columns[name][self._at :], values]) if self._columns else values
                for name, values in order.columns.items()
            }
            self._keep_ahead(self._ahead[self._at :] + clients, columns)

    def _of_run(self, order: Order) -> Order:
        """Return the arrivals that are part of the run; take note where no more will be."""
        part = order.until(self._length.until)
        self._ended = len(part) < max(1, len(order))
        return part

    def _keep_ahead(self, clients: list[int], columns: dict[str, Integers]) -> None:
        """Keep the choices that are drawn and have not arrived."""
        self._ahead, self._columns, self._at = clients, columns, 0
        self._before: list[int] = by_client(np.array(clients, np.int64))[1].tolist()

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
            self._columns["number"][place] += self._ahead[place] == client

    def take_state(self) -> State:
        """Return what has been drawn, and the works under way."""
        self._keep_ahead(self._ahead[self._at :], {name: values[self._at :] for name, values in self._columns.items()})
        return super().take_state()

    def put_state(self, state: State) -> None:
        """Go on from a state."""
        super().put_state(state)
        self._keep_ahead(self._ahead, self._columns)
        self._tell_gates(self._drawn - len(self._ahead), self._ahead)
