"""Runs whose whole schedule is known before the first event, and one such path: `queued`, for a CUDA device.

`Scheduled` is also the base of the path `hand` (fredsim.simulation.paths.hand).
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
from fredsim.simulation.paths.choice import Choice
from fredsim.simulation.paths.loop import Diverged, Parts, Simulation
from fredsim.simulation.schedule.guarded_clock import GuardedClock
from fredsim.simulation.schedule.length import LONGEST_SCHEDULE, Length
from fredsim.simulation.schedule.schedule import Schedule, assign_places, split_windows, whole_schedule

__all__ = ["SLICE", "ByRule", "Queued", "Scheduled"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

#: Seconds of computation between two checks of whether to stop.
SLICE = 0.2
#: The most bytes that the gradients of one window take on a device, and the most events that one launch takes.
QUEUED_BYTES, QUEUED_EVENTS = 256 * 2**20, 65_535


class Scheduled(Simulation):
    """Base of the paths that need the whole schedule before the first event."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._at_once = 64  # how many events to process at once; adapted so that they take a fraction of a second
        self._schedule: Schedule | None = None  # None until it is drawn, when it is first needed
        self._orders: list[Order] = []  # the pieces of the order of arrivals that are drawn so far
        self._orders_left = parts.dispatcher.orders(parts.drawn.events, parts.drawn.until)

    @property
    def _drawn_schedule(self) -> Schedule:
        """The whole schedule; only once it is drawn."""
        assert self._schedule is not None
        return self._schedule

    def _draw(self, seconds: float) -> None:
        """Draw the schedule, or continue drawing it, for about so many seconds: a user's class may be slow.

        Raises SimulationError if too few gradients will ever arrive, ConfigError if there are too many to keep.
        """
        end = time.perf_counter() + seconds
        for order in self._orders_left:
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
        """Raise SimulationError if fewer gradients will ever arrive than the run has events."""
        drawn, clock = self._parts.drawn, self._dispatcher
        by_events = drawn.events is not None and drawn.until is None
        if isinstance(clock, GuardedClock) and by_events and len(order) < (drawn.events or 0):
            raise clock.ended_error(len(order), drawn.events)

    def _stateful_parts(self) -> dict[str, Stateful]:
        parts = super()._stateful_parts()
        del parts["dispatcher"]  # it has no state to save: a resumed run draws the schedule again from the start
        return parts

    def take_state(self) -> State:
        """Return the state; it includes what clients hold, except before the first event."""
        held = self._take_held() if self.iteration > 0 else {}
        return super().take_state() | held

    def put_state(self, state: State) -> None:
        """Restore a state; draw the schedule again if events have happened."""
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

    def _process_events(self, begin: int, count: int) -> tuple[Integers, Integers, Array]:
        """Process `count` events from `begin` on, or only the first n of them.

        Returns the timestamp before each event (n,), the staleness (n,), and the samples' losses (n, µ). Raises
        Diverged.
        """
        raise NotImplementedError

    def _rows(self, events: Integers) -> NDArray[np.int32]:
        """Return the samples (n, µ) of the tasks that arrive at these events (n,); zeros for an event −1."""
        schedule, some = self._drawn_schedule, events >= 0
        result = np.zeros((len(events), self._parts.sampler.batch_size), np.int32)
        chosen = events[some]
        sent = chosen if schedule.sent is None else schedule.sent[chosen]
        result[some] = self._sampler.rows(sent, schedule.client[chosen], schedule.number[chosen])
        return result

    def _advance(self, length: Length) -> None:
        """Draw the schedule for a while; once it is whole, process events for a while, at most up to the next row."""
        if self._schedule is None:
            self._draw(SLICE)
            return
        schedule = self._schedule
        started, begin, server = time.perf_counter(), self.iteration, self._server
        count = self._next_stretch(schedule, length)
        if not count:
            if not self._goal_reached and begin == len(schedule):
                self._check_length(schedule)
            self._ended = not self._goal_reached
            return
        before = server.timestamp
        timestamps, staleness, losses = self._process_events(begin, count)
        n, size = len(staleness), server.params.nbytes
        part = schedule.part(begin, begin + n)
        self._recorder.count_exchanges(staleness, losses, size, part.client)
        if self._log is not None:
            self._log.add(part, begin, timestamps, staleness, copies=(1, 1, size, size))
        if schedule.time is not None:
            self.time = int(schedule.time[begin + n - 1])
        self.iteration = begin + n
        took = time.perf_counter() - started
        if took < SLICE / 2:
            self._at_once *= 2
        elif took > SLICE and self._at_once > 1:
            self._at_once //= 2
        if self._interval.due(self.iteration, server.timestamp, before):
            self._record()

    def _next_stretch(self, schedule: Schedule, length: Length) -> int:
        """Return how many events to process at once, none of them beyond the next row; 0 at the run's end."""
        begin, stop_at, timestamp = self.iteration, self._parts.stop_at, self._server.timestamp
        left, row = length.events_left(begin, timestamp), self._interval.events_until_due(begin, timestamp)
        limits = [self._at_once, left, row, len(schedule) - begin]
        if stop_at is not None:  # the iteration at which an earlier run of the same experiment happened to pause
            limits.append(stop_at - begin)
        if schedule.time is not None and begin < len(schedule):
            self._record_rows_before(int(schedule.time[begin]))
            if self._goal_reached:
                return 0
            due = self._interval.next_time(self._rows_on_clock)
            limits.append(int(np.searchsorted(schedule.time, due, side="right")) - begin)
        return min(limit for limit in limits if limit is not None)


class ByRule(Scheduled):
    """Base of the scheduled paths on which every event is an update by the server's elementwise rule."""

    def _apply_rule(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Process events begin … end − 1, as far as parameters stay finite.

        Returns the losses (n, µ) of these n events, and how many events left all parameters finite.
        """
        raise NotImplementedError

    def _process_events(self, begin: int, count: int) -> tuple[Integers, Integers, Array]:
        server, iterations = self._server, np.arange(begin, begin + count)
        staleness = iterations - (self._drawn_schedule.begun[begin : begin + count] + 1)  # every event is an update
        coefficients = server.coefficients(iterations, staleness)
        n = len(coefficients)
        losses, finite = self._apply_rule(begin, begin + n, coefficients)
        if finite < n:
            raise Diverged(begin + finite)
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
        self._held, self._kept, places = assign_places(self._drawn_schedule)
        self._executor = self._make_executor(places)

    def _apply_rule(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        """Process these events on the device, window by window."""
        room = self._parts.limits.window or max(1, QUEUED_BYTES // self._server.params.nbytes)
        room = min(room, QUEUED_EVENTS)
        windows = list(split_windows(self._drawn_schedule.begun[begin:end] - begin, room))
        rows = self._rows(np.arange(begin, end))
        return self._executor.advance(windows, self._held[begin:end], self._kept[begin:end], rows, coefficients)

    def _take_held(self) -> State:
        return {"places": self._executor.take_places()}

    def _put_held(self, state: State) -> None:
        self._executor.put_places(state["places"])
