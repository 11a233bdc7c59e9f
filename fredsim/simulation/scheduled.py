"""Runs whose whole schedule is known before the first event, and the path `queued`: a device applies the rule."""

from __future__ import annotations

import math
import time
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import QueueingEngine, QueueMachine
from fredsim.dispatchers.base import Order
from fredsim.errors import ConfigError
from fredsim.plugins.states import State, Stateful
from fredsim.simulation.guarded_clock import GuardedClock
from fredsim.simulation.length import Length
from fredsim.simulation.loop import Diverged, Parts, Simulation
from fredsim.simulation.paths import LONGEST_SCHEDULE, Choice
from fredsim.simulation.schedule import Schedule, places_of, whole_schedule, windows_of

__all__ = ["SLICE", "ByRule", "Queued", "Scheduled"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

#: Seconds between two looks at whether to stop.
SLICE = 0.2
#: The gradients of one window on a device.
QUEUED_BYTES = 256 * 2**20


class Scheduled(Simulation):
    """A run whose whole schedule is known before its first event."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._many = 64  # events at once: what takes a fraction of a second
        self._schedule: Schedule | None = None  # drawn when it is first needed
        self._orders: list[Order] = []  # that are drawn of it
        self._coming = parts.dispatcher.orders(parts.drawn.events, parts.drawn.until)

    @property
    def _known(self) -> Schedule:
        """The schedule, once it is drawn."""
        assert self._schedule is not None
        return self._schedule

    def _draw(self, seconds: float) -> None:
        """Draw of the schedule what takes so long: a user's dispatcher, or clock, may be slow.

        Raises SimulationError where too few ever arrive, ConfigError for too many.
        """
        end = time.perf_counter() + seconds
        for order in self._coming:
            self._orders.append(order)
            if time.perf_counter() > end:
                return
        order, drawn = Order.joined(self._orders), self._parts.drawn
        self._orders.clear()
        if self._parts.goal is None:
            self._check_length(order)
        if drawn.events is None and len(order) == LONGEST_SCHEDULE:
            many = f"in seconds there are more than {LONGEST_SCHEDULE:,} arrivals, whose order is not kept in memory"
            raise ConfigError(f"path is {self._choice.path}; {many}: give path: snapshots")
        self._schedule = whole_schedule(order, wait=self._protocol.wait)
        self._prepare()

    def _check_length(self, order: Order | Schedule) -> None:
        """Raise SimulationError where too few ever arrive."""
        drawn, clock = self._parts.drawn, self._dispatcher
        by_events = drawn.events is not None and drawn.until is None
        if isinstance(clock, GuardedClock) and by_events and len(order) < (drawn.events or 0):
            raise clock.ended(len(order), drawn.events)

    def _owners(self) -> dict[str, Stateful]:
        owners = super()._owners()
        del owners["dispatcher"]  # the schedule is drawn from its start
        return owners

    def take_state(self) -> State:
        """Return the state with what clients hold; before the first event that follows from the parameters."""
        held = self._take_held() if self.iteration > 0 else {}
        return super().take_state() | held

    def put_state(self, state: State) -> None:
        """Go on from a state, what clients hold included."""
        super().put_state(state)
        if self.iteration > 0:
            self._draw(math.inf)
            self._put_held(state)

    def _prepare(self) -> None:
        """Make room for what clients will hold, and the machine."""
        raise NotImplementedError

    def _take_held(self) -> State:
        """Return what clients hold, and bring the server's own arrays up to date."""
        raise NotImplementedError

    def _put_held(self, state: State) -> None:
        """Take up what clients hold."""
        raise NotImplementedError

    def _let_happen(self, begin: int, many: int) -> tuple[Integers, Integers, Array]:
        """Let so many events happen, or fewer.

        Returns of each the timestamp before, the staleness, and the losses (µ,). Raises Diverged.
        """
        raise NotImplementedError

    def _rows(self, events: Integers) -> NDArray[np.int32]:
        """Return the samples (n, µ) of the works that arrive at these events; nothing for −1."""
        schedule, some = self._known, events >= 0
        result = np.zeros((len(events), self._parts.sampler.batch_size), np.int32)
        chosen = events[some]
        sent = chosen if schedule.sent is None else schedule.sent[chosen]
        result[some] = self._sampler.rows(sent, schedule.client[chosen], schedule.number[chosen])
        return result

    def _advance(self, length: Length) -> None:
        """Let events happen up to the next row, or as many as take a fraction of a second; or draw of the schedule."""
        if self._schedule is None:
            self._draw(SLICE)
            return
        schedule = self._schedule
        started, begin, server = time.perf_counter(), self.iteration, self._server
        many = self._next_stretch(schedule, length)
        if not many:
            if not self._reached and begin == len(schedule):
                self._check_length(schedule)
            self._over = not self._reached
            return
        before = server.timestamp
        timestamps, staleness, losses = self._let_happen(begin, many)
        n, size = len(staleness), server.params.nbytes
        part = schedule.part(begin, begin + n)
        self._recorder.events(staleness, losses, size, part.client)
        if self._log is not None:
            self._log.add(part, begin, timestamps, staleness, copies=(1, 1, size, size))
        if schedule.time is not None:
            self.time = int(schedule.time[begin + n - 1])
        self.iteration = begin + n
        took = time.perf_counter() - started
        if took < SLICE / 2:
            self._many *= 2
        elif took > SLICE and self._many > 1:
            self._many //= 2
        if self._interval.due(self.iteration, server.timestamp, before):
            self._record()

    def _next_stretch(self, schedule: Schedule, length: Length) -> int:
        """Return how many events to let happen now, none beyond the next row; 0 at the run's end."""
        begin, stop_at, timestamp = self.iteration, self._parts.stop_at, self._server.timestamp
        left, row = length.left(begin, timestamp), self._interval.left(begin, timestamp)
        limits = [self._many, left, row, len(schedule) - begin]
        if stop_at is not None:  # which the time that stretches take decided when the run paused there
            limits.append(stop_at - begin)
        if schedule.time is not None and begin < len(schedule):
            self._rows_before(int(schedule.time[begin]))
            if self._reached:
                return 0
            due = self._interval.next_time(self._rows_on_clock)
            limits.append(int(np.searchsorted(schedule.time, due, side="right")) - begin)
        return min(limit for limit in limits if limit is not None)


class ByRule(Scheduled):
    """Every event is an update, by the server's elementwise rule."""

    def _process(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Let events begin … end − 1 happen; return the losses (n, µ) and how many left every parameter finite."""
        raise NotImplementedError

    def _let_happen(self, begin: int, many: int) -> tuple[Integers, Integers, Array]:
        server, iterations = self._server, np.arange(begin, begin + many)
        staleness = iterations - (self._known.begun[begin : begin + many] + 1)  # every event is an update
        coefficients = server.coefficients(iterations, staleness)
        n = len(coefficients)
        losses, happened = self._process(begin, begin + n, coefficients)
        if happened < n:
            raise Diverged(begin + happened)
        server.elementwise.timestamp = server.timestamp = begin + n
        return iterations[:n], staleness[:n], losses


class Queued(ByRule):
    """Clients hold the parameters they fetched, in places on a device."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._make_machine(1).warm()

    def _make_machine(self, places: int) -> QueueMachine:
        server = self._server.elementwise
        engine = cast(QueueingEngine, self._engine)
        return engine.queue_machine(self._server.rule, server.params, server.state_of(0), places)

    def _prepare(self) -> None:
        """Find a place for what each client will hold."""
        self._held, self._kept, places = places_of(self._known)
        self._machine = self._make_machine(places)

    def _process(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Queue some events."""
        room = self._parts.limits.window or max(1, QUEUED_BYTES // self._server.params.nbytes)
        windows = list(windows_of(self._known.begun[begin:end] - begin, room))
        rows = self._rows(np.arange(begin, end))
        return self._machine.advance(windows, self._held[begin:end], self._kept[begin:end], rows, coefficients)

    def _take_held(self) -> State:
        return {"places": self._machine.take_places()}

    def _put_held(self, state: State) -> None:
        self._machine.put_places(state["places"])
