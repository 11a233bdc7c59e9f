"""Runs whose whole schedule is known before the first event, on the paths `hand` and `queued`."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable

import numpy as np

from fredsim.dispatchers.base import Order
from fredsim.errors import ConfigError
from fredsim.plugins.state.states import State, Stateful
from fredsim.simulation.paths.choice import Choice
from fredsim.simulation.paths.loop import Parts, Simulation
from fredsim.simulation.paths.pace import SLICE
from fredsim.simulation.paths.stretches import Stretches
from fredsim.simulation.schedule.guarded_clock import GuardedClock
from fredsim.simulation.schedule.length import LONGEST_SCHEDULE, Length
from fredsim.simulation.schedule.schedule import Schedule, whole_schedule

__all__ = ["Scheduled"]


class Scheduled(Simulation):
    """Draws the whole schedule before the first event, then processes its events in stretches, between rows."""

    def __init__(self, parts: Parts, choice: Choice, stretches: Callable[[Parts], Stretches]) -> None:
        super().__init__(parts, choice)
        self._stretches = stretches(parts)
        self._schedule: Schedule | None = None  # None until it is drawn, when it is first needed
        self._orders: list[Order] = []  # the pieces of the order of arrivals that are drawn so far
        self._orders_left = parts.dispatcher.orders(parts.drawn.events, parts.drawn.until)
        if not parts.engine.keeps_passes:  # of a large module, one event may take seconds
            parts.pace.events = 1

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
            raise ConfigError(f"path is {self.choice.path}; {many}: give path: snapshots")
        self._schedule = self._stretches.schedule = whole_schedule(order, wait=self._protocol.wait)
        self._stretches.prepare(self.iteration)

    def _check_length(self, order: Order | Schedule) -> None:
        """Raise SimulationError if fewer gradients will ever arrive than the run has events."""
        drawn, clock = self._parts.drawn, self._dispatcher
        by_events = drawn.events is not None and drawn.until is None
        if isinstance(clock, GuardedClock) and by_events and len(order) < (drawn.events or 0):
            raise clock.clock.ended_error(len(order), drawn.events)

    def _stateful_parts(self) -> dict[str, Stateful]:
        parts = super()._stateful_parts()
        del parts["dispatcher"]  # it has no state to save: a resumed run draws the schedule again from the start
        return parts

    def take_state(self) -> State:
        """Return the state; it includes what clients hold, except before the first event."""
        if not self.iteration:
            return super().take_state()
        held = self._stretches.take_held()  # first: it brings up to date what the rest is of
        return super().take_state() | held | self._order()

    def _order(self) -> State:
        """Return the SHA-256 of who arrives when, by a user's class, which may draw it by other means than streams."""
        if not self._dispatcher.own:
            return {}
        assert self._schedule is not None
        digest = hashlib.sha256(self._schedule.client.tobytes())
        if self._schedule.time is not None:
            digest.update(self._schedule.time.tobytes())
        return {"order": digest.hexdigest()}

    def put_state(self, state: State) -> None:
        """Restore a state; draw the schedule again if events have happened."""
        super().put_state(state)
        if self.iteration > 0:
            self._draw(math.inf)
            if any(state.get(name) != digest for name, digest in self._order().items()):
                what = "its order of arrivals is another than the one drawn now"
                raise ValueError(f"{what}; draw from the streams that init is given, or by a seed")
            self._stretches.put_held(state, self.iteration)

    def _shares(self) -> dict[str, float] | None:
        return self._stretches.shares()

    def _record(self) -> None:
        self._stretches.update_server()
        super()._record()

    def _advance(self, length: Length) -> None:
        """Draw the schedule for a while; once it is whole, process events for a while, at most up to the next row."""
        if self._schedule is None:
            self._draw(SLICE)
            return
        schedule = self._schedule
        started, begin, server = time.perf_counter(), self.iteration, self.server
        count = self._next_stretch(schedule, length)
        if not count:
            if not self._goal_reached and begin == len(schedule):
                self._check_length(schedule)
            self._ended = not self._goal_reached
            return
        before = server.timestamp
        timestamps, staleness, losses = self._stretches.process(begin, count)
        n, size = len(staleness), server.params.nbytes
        part = schedule.part(begin, begin + n)
        self._recorder.count_exchanges(staleness, losses, size, part.client)
        if self._log is not None:
            self._log.add(part, begin, timestamps, staleness, copies=(1, 1, size, size))
        if schedule.time is not None:
            self.time = int(schedule.time[begin + n - 1])
        self.iteration = begin + n
        self._parts.pace.took(time.perf_counter() - started, n)
        if self._interval.due(self.iteration, server.timestamp, before):
            self._record()

    def _next_stretch(self, schedule: Schedule, length: Length) -> int:
        """Return how many events to process at once, none of them beyond the next row; 0 at the run's end."""
        begin, stop_at, timestamp = self.iteration, self._parts.stop_at, self.server.timestamp
        left, row = length.events_left(begin, timestamp), self._interval.events_until_due(begin, timestamp)
        limits = [self._parts.pace.events, left, row, len(schedule) - begin]
        if stop_at is not None:  # the iteration at which an earlier run of the same experiment happened to pause
            limits.append(stop_at - begin)
        if schedule.time is not None and begin < len(schedule):
            self._record_rows_before(int(schedule.time[begin]))
            if self._goal_reached:
                return 0
            due = self._interval.next_time(self._rows_on_clock)
            limits.append(int(np.searchsorted(schedule.time, due, side="right")) - begin)
        return min(limit for limit in limits if limit is not None)
