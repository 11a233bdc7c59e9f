"""Runs whose whole schedule is known before the first event, and one such path: `queued`, for a CUDA device.

`Scheduled` is also the base of the path `hand` (fredsim.simulation.in_hand).
"""

from __future__ import annotations

import math
import time
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import QueueExecutor, QueueingEngine
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

#: Seconds of work between two checks of whether to stop.
SLICE = 0.2
#: The most bytes of the gradients of one window on a device.
QUEUED_BYTES = 256 * 2**20


class Scheduled(Simulation):
    """Base of the paths that need the whole schedule before the first event."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._many = 64  # how many events to process at once, adapted to take a fraction of a second
        self._schedule: Schedule | None = None  # drawn when it is first needed
        self._orders: list[Order] = []  # the pieces of the schedule drawn so far
        self._coming = parts.dispatcher.orders(parts.drawn.events, parts.drawn.until)

    @property
    def _known(self) -> Schedule:
        """The schedule, once it is drawn."""
        assert self._schedule is not None
        return self._schedule

    def _draw(self, seconds: float) -> None:
        """Draw the schedule for about so many seconds, because a user's dispatcher or clock may be slow.

        Raises SimulationError if too few gradients ever arrive, ConfigError if there are too many arrivals to keep.
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
        """Raise SimulationError if fewer gradients ever arrive than the run has events."""
        drawn, clock = self._parts.drawn, self._dispatcher
        by_events = drawn.events is not None and drawn.until is None
        if isinstance(clock, GuardedClock) and by_events and len(order) < (drawn.events or 0):
            raise clock.ended(len(order), drawn.events)

    def _owners(self) -> dict[str, Stateful]:
        owners = super()._owners()
        del owners["dispatcher"]  # it has no state to save: a resumed run draws the schedule again from the start
        return owners

    def take_state(self) -> State:
        """Return the state with what clients hold; before the first event the initial parameters determine that."""
        held = self._take_held() if self.iteration > 0 else {}
        return super().take_state() | held

    def put_state(self, state: State) -> None:
        """Restore a state, what clients hold included."""
        super().put_state(state)
        if self.iteration > 0:
            self._draw(math.inf)
            self._put_held(state)

    def _prepare(self) -> None:
        """Make the executor, with room for what clients will hold; called once the schedule is known."""
        raise NotImplementedError

    def _take_held(self) -> State:
        """Return what clients hold, and bring the server's own arrays up to date."""
        raise NotImplementedError

    def _put_held(self, state: State) -> None:
        """Restore what clients hold."""
        raise NotImplementedError

    def _let_happen(self, begin: int, many: int) -> tuple[Integers, Integers, Array]:
        """Process the `many` events from `begin` on, or fewer; n is how many were processed.

        Returns the timestamp before each (n,), their staleness (n,), and the samples' losses (n, µ). Raises Diverged.
        """
        raise NotImplementedError

    def _rows(self, events: Integers) -> NDArray[np.int32]:
        """Return the samples (n, µ) of the works that arrive at these events; zeros for an event −1."""
        schedule, some = self._known, events >= 0
        result = np.zeros((len(events), self._parts.sampler.batch_size), np.int32)
        chosen = events[some]
        sent = chosen if schedule.sent is None else schedule.sent[chosen]
        result[some] = self._sampler.rows(sent, schedule.client[chosen], schedule.number[chosen])
        return result

    def _advance(self, length: Length) -> None:
        """Process events up to the next row, or for a fraction of a second; or draw more of the schedule."""
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
        """Return how many events to process now, none beyond the next row; 0 at the run's end."""
        begin, stop_at, timestamp = self.iteration, self._parts.stop_at, self._server.timestamp
        left, row = length.left(begin, timestamp), self._interval.left(begin, timestamp)
        limits = [self._many, left, row, len(schedule) - begin]
        if stop_at is not None:  # the iteration at which an earlier run of the same experiment happened to pause
            limits.append(stop_at - begin)
        if schedule.time is not None and begin < len(schedule):
            self._rows_before(int(schedule.time[begin]))
            if self._reached:
                return 0
            due = self._interval.next_time(self._rows_on_clock)
            limits.append(int(np.searchsorted(schedule.time, due, side="right")) - begin)
        return min(limit for limit in limits if limit is not None)


class ByRule(Scheduled):
    """Base of the scheduled paths on which every event is an update by the server's elementwise rule."""

    def _process(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Process events begin … end − 1; return the losses (n, µ) and how many events left every parameter finite."""
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
    """The path `queued`: clients hold the parameters they fetched in memory of a device, at numbered places."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._make_executor(1).warm_up()

    def _make_executor(self, places: int) -> QueueExecutor:
        server = self._server.elementwise
        engine = cast(QueueingEngine, self._engine)
        return engine.queue_executor(self._server.rule, server.params, server.state_of(0), places)

    def _prepare(self) -> None:
        """Assign the places on the device for what clients will hold, and make the executor."""
        self._held, self._kept, places = places_of(self._known)
        self._executor = self._make_executor(places)

    def _process(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Process these events on the device, window by window."""
        room = self._parts.limits.window or max(1, QUEUED_BYTES // self._server.params.nbytes)
        windows = list(windows_of(self._known.begun[begin:end] - begin, room))
        rows = self._rows(np.arange(begin, end))
        return self._executor.advance(windows, self._held[begin:end], self._kept[begin:end], rows, coefficients)

    def _take_held(self) -> State:
        return {"places": self._executor.take_places()}

    def _put_held(self, state: State) -> None:
        self._executor.put_places(state["places"])
