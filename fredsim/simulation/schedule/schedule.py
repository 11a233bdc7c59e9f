"""The schedule of a run: which client arrives with which task, and from which parameters that task was begun.

A task is what a client does between two pushes. If nothing that is computed affects who arrives next, and every fetch
passes, the whole schedule is known before the first event (`whole_schedule`), and says what each event depends on.
Otherwise it is made during the run, only as far ahead as no server's reply and no gate can change it (`Arrivals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from fredsim.dispatchers.base import Order, earlier_arrivals
from fredsim.errors import SimulationError
from fredsim.numerics.arrays import Integers
from fredsim.plugins.state.states import State, Stateful
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher, GuardedGate
from fredsim.simulation.schedule.guarded_clock import GuardedClock
from fredsim.simulation.schedule.length import Length

__all__ = ["Arrivals", "Schedule", "assign_places", "assign_slots", "next_arrivals", "split_windows", "whole_schedule"]

#: How many choices are drawn together, if no client is ever held.
AHEAD = 1024


@dataclass(frozen=True)
class Schedule:
    """Arrivals in order, one array per column: int64 (T,) each."""

    #: The client that arrives.
    client: Integers
    #: The event after which the client fetched the parameters that it used, −1 for the initial parameters.
    begun: Integers
    #: Which of the client's tasks this is, from 0; it determines the minibatch.
    number: Integers

    #: When the server is done with the arrival, in nanoseconds; None without a clock.
    time: Integers | None = None
    #: How many gradients were done before this one; None if copies take no time: then that is the iteration.
    sent: Integers | None = None
    #: (T, 3) nanoseconds: when the task was begun, when its gradient was done, and when the push reached the server;
    #: None if the task was begun at the client's arrival before, and the other two are `time`.
    stages: Integers | None = None
    #: 1 for a task that was given up and has no gradient, else 0; None if no task can be.
    given_up: Integers | None = None

    def __len__(self) -> int:
        return len(self.client)

    def first(self, count: int) -> Schedule:
        """Return the first `count` events."""
        return self.part(0, count)

    def part(self, begin: int, end: int) -> Schedule:
        """Return events begin … end − 1."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: values[begin:end] for name, values in columns.items() if values is not None})


def whole_schedule(order: Order, *, wait: bool) -> Schedule:
    """Return the schedule that follows from an order of arrivals if every fetch passes.

    With `wait`, a client begins its next task from what it fetches on arrival; without, from what it held before.
    """
    number, before = earlier_arrivals(order.client)
    begun = before if wait else np.where(before >= 0, before[before], -1)
    _check_begun(order.client, begun, order.begun, 0)
    if order.number is not None:
        number = order.number
    return Schedule(order.client, begun, number, order.time, order.sent, order.stages)


def _check_begun(clients: Integers, begun: Integers, recorded: Integers | None, first: int) -> None:
    """Raise SimulationError if clients did not fetch as a trace recorded; `first` is the first event's iteration."""
    if recorded is not None and (recorded != begun).any():
        at = int(np.flatnonzero(recorded != begun)[0])
        then, now = (f"event {event}" if event >= 0 else "none" for event in (recorded[at], begun[at]))
        what = f"client {clients[at]} used what it fetched after {then}; in this run it last fetched after {now}"
        remedy = "to use only the order and the times of the arrivals, give dispatcher.check: false"
        raise SimulationError(f"the trace, row {first + at} (from 0), column begun: {what}; {remedy}")


def next_arrivals(schedule: Schedule) -> Integers:
    """Return for each event the later event at which the task begun after it arrives, −1 if none; int64 (T,)."""
    events = np.full(len(schedule), -1, np.int64)
    begun = schedule.begun >= 0
    events[schedule.begun[begun]] = np.flatnonzero(begun)
    return events


def assign_slots(schedule: Schedule, *, wait: bool) -> tuple[Integers, int]:
    """Return for each event the slot of the task that arrives, int64 (T,), and the number of slots.

    A task that is begun after an event takes the slot of the one that arrived at it. A client that never arrives has
    no slot.
    """
    known, inverse = np.unique(schedule.client, return_inverse=True)
    tasks = 1 if wait else 2  # tasks of a client at once: one under way, and one to be begun from what it holds
    return inverse * tasks + earlier_arrivals(schedule.client)[0] % tasks, len(known) * tasks


def assign_places(schedule: Schedule) -> tuple[Integers, Integers, int]:
    """Return each event's places: of its gradient's parameters, and of those fetched after it; int64 (T,) each.

    A place is an array (P,); the third value is the number of places. A fetch that is never used has place −1. Place 0
    keeps the initial parameters; any other place is free again once the client that used it has arrived.
    """
    from fredsim.jit.places import give_out  # only the path queued needs it, and numba's import takes half a second

    held, kept = np.zeros(len(schedule), np.int64), np.full(len(schedule), -1, np.int64)
    begun, following = np.ascontiguousarray(schedule.begun), next_arrivals(schedule)
    free = np.empty(len(schedule) + 1, np.int64)
    arrays = begun, following, held, kept, free
    places = give_out.call(*(array.ctypes.data for array in arrays), len(schedule))
    return held, kept, places


def split_windows(begun: Integers, room: int) -> Iterator[tuple[int, int]]:
    """Yield windows [begin, end) of at most `room` events whose tasks were all begun before the window."""
    n, begin = len(begun), 0
    late = begun >= 0
    arrives = np.full(n, n, np.int64)  # the event at which the task that was begun after an event arrives
    arrives[begun[late]] = np.flatnonzero(late)
    ends = np.minimum.accumulate(arrives[::-1])[::-1].tolist()  # the first event whose task was begun at one or later
    while begin < n:
        end = min(ends[begin], begin + room)
        yield begin, end
        begin = end


class Arrivals(Stateful):
    """Makes the schedule during the run; the loop tells it which clients fetched and which began a new task."""

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
        """Start with every client computing on the initial parameters; `length` is the run's.

        The `gates` are told who will arrive, so that they can draw random numbers ahead.
        """
        self._dispatcher, self._gates, self._length = dispatcher, gates, length
        self._clock = dispatcher if isinstance(dispatcher, GuardedClock) else None
        self._drawn = self._at = 0  # how many choices are drawn; the index of the next arrival in `_ahead`
        self._ended = False  # whether the run's time is over, or no gradient will ever arrive again
        self._works = np.zeros(clients, np.int64)  # how many tasks of each client are drawn or given up
        self._keep_ahead([], {})
        self._under_way = [-1] * clients  # by client, the event after which it fetched for its task under way
        self._fetched = self._under_way if wait else self._under_way.copy()

    def next(
        self,
        iteration: int,
        limit: int,
        *,
        until_release: Callable[[], int] | None = None,
        refused: Sequence[bool] = (),
    ) -> Schedule:
        """Return the next arrivals, at most `limit`, all of different clients; none depends on the reply to another.

        `until_release`, given if replies decide which clients continue, returns how many pushes are certain to come
        before any client is released. Without it, `refused` says for the next arrivals whether their fetch will be
        refused; the client of such an arrival may occur again. The schedule is empty if the run's time is over. Raises
        SimulationError if no gradient will ever arrive.
        """
        if until_release is None:
            self._draw()
            if "begun" in self._columns:  # it is compared with the actual fetches, so these must have happened
                refused = ()
            begin = self._at
            self._at = end = self._end_of_independent(begin, min(begin + limit, len(self._ahead)), refused)
            clients = self._ahead[begin:end]
            columns = {name: values[begin:end] for name, values in self._columns.items()}
        else:
            clients, columns = self._choose(min(limit, until_release()), iteration)
        if not clients and self._length.until is None:
            assert self._clock is not None  # any other dispatcher raises an error itself
            raise self._clock.clock.ended_error(iteration, self._length.iterations)
        under_way = np.array([self._under_way[client] for client in clients], np.int64)
        ids = np.array(clients, np.int64)
        _check_begun(ids, under_way, columns.pop("begun", None), iteration)
        return Schedule(ids, under_way, **columns)

    def _end_of_independent(self, begin: int, stop: int, refused: Sequence[bool]) -> int:
        """Return the first of the arrivals begin … stop − 1 that depends on the reply to another of them, else `stop`.

        It is the first whose client has already arrived among them, unless its fetch was then refused.
        """
        for end in range(begin, stop):
            earlier = self._previous[end] - begin  # the client's arrival before; negative if it is not among these
            if earlier >= 0 and not (earlier < len(refused) and refused[earlier]):
                return end
        return stop

    def _choose(self, count: int, iteration: int) -> tuple[list[int], dict[str, Integers]]:
        """Choose the next clients, and hold them; return them, and the further columns of their arrivals."""
        clients: list[int] = []
        orders = []
        while len(clients) < count and not self._ended:
            if self._clock is None:
                clients.append(self._dispatcher.choose(iteration + len(clients)))
            elif len(order := self._within_run(self._clock.draw(1))):
                clients += order.client.tolist()
                orders.append(order)
            if clients and not self._ended:
                self._dispatcher.hold(clients[-1])
        if orders:
            return clients, Order.joined(orders).columns
        numbers = self._works[clients]
        self._works[clients] += 1
        return clients, {"number": numbers}

    def peek(self, count: int) -> Order:
        """Return the next arrivals, at most `count`, without consuming them; only if the server never holds clients."""
        self._draw()
        some = slice(self._at, self._at + count)
        return Order(np.array(self._ahead[some], np.int64), **{n: values[some] for n, values in self._columns.items()})

    def put_back(self, count: int) -> None:
        """Take back the last `count` arrivals that `next` returned; only if the server never holds clients."""
        self._at -= count

    def _draw(self) -> None:
        """Draw choices if none are left, unless no more will come.

        How many were asked for decides nothing: a run that pauses elsewhere has drawn as many when it is at this event.
        """
        while self._at == len(self._ahead) and not self._ended:
            iterations = self._length.iterations
            wanted = AHEAD if iterations is None else max(1, min(AHEAD, iterations - self._drawn))
            if self._clock is not None:
                order = self._within_run(self._clock.draw(wanted))
            else:
                ids = self._dispatcher.choose_many(self._drawn, wanted)
                order = Order(ids, self._works[ids] + earlier_arrivals(ids)[0])
                self._works[ids] = order.columns["number"] + 1  # if a client arrives several times, the last counts
            clients = order.client.tolist()
            self._tell_gates(self._drawn, clients)
            self._drawn += len(clients)
            self._keep_ahead(clients, dict(order.columns))

    def _within_run(self, order: Order) -> Order:
        """Return those of these arrivals that are part of the run; note whether they are the last."""
        part, self._ended = order.until(self._length.until)
        return part

    def _keep_ahead(self, clients: list[int], columns: dict[str, Integers]) -> None:
        """Keep the choices that are drawn but have not arrived yet."""
        self._ahead, self._columns, self._at = clients, columns, 0
        self._previous: list[int] = earlier_arrivals(np.array(clients, np.int64))[1].tolist()

    def _tell_gates(self, begin: int, clients: Sequence[int]) -> None:
        """Let the gates draw random numbers for the clients that arrive from iteration `begin` on."""
        for gate in self._gates:
            gate.look_ahead(begin, clients)

    def fetched(self, client: int, event: int) -> None:
        """Note that a client fetched after this event."""
        self._fetched[client] = event

    def began(self, client: int) -> None:
        """Note that a client began its next task from the parameters that it holds."""
        self._under_way[client] = self._fetched[client]

    def give_up(self, client: int) -> None:
        """Note that a client was restarted, so that the task that it had under way will never arrive."""
        self._works[client] += 1
        for place in range(self._at, len(self._ahead)):
            self._columns["number"][place] += self._ahead[place] == client

    def take_state(self) -> State:
        """Return the state: the choices drawn ahead, and which fetch each task under way started from."""
        self._keep_ahead(self._ahead[self._at :], {name: values[self._at :] for name, values in self._columns.items()})
        return super().take_state()

    def put_state(self, state: State) -> None:
        """Restore a state, and let the gates draw for the choices drawn ahead."""
        super().put_state(state)
        self._keep_ahead(self._ahead, self._columns)
        self._tell_gates(self._drawn - len(self._ahead), self._ahead)
