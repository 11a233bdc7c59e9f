"""The length of a run, the goal that may end it earlier, and the interval at which rows are recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fredsim.simulation.record.recorder import Row

__all__ = ["Goal", "Interval", "Length"]

#: The most iterations of a schedule that is drawn ahead and kept: about 50 bytes each.
LONGEST_SCHEDULE = 10_000_000


@dataclass(frozen=True)
class Length:
    """When a run ends: after `iterations` events, at timestamp `updates`, or at the time `until` of its clock.

    At least one of the three is given. `until` is in nanoseconds; events at that very time still belong to the run.
    """

    iterations: int | None = None
    updates: int | None = None
    until: int | None = None

    @property
    def events(self) -> int | None:
        """How many events there will be if each is an update; None if only the clock ends the run."""
        return min((limit for limit in (self.iterations, self.updates) if limit is not None), default=None)

    def events_left(self, iteration: int, timestamp: int) -> int | None:
        """Return how many events are left for certain, unless the clock ends the run before.

        An event makes at most one update, so updates count as events here. None if only the clock ends the run.
        """
        ends = ((self.iterations, iteration), (self.updates, timestamp))
        left = min((end - now for end, now in ends if end is not None), default=None)
        return None if left is None else max(0, left)


@dataclass(frozen=True)
class Goal:
    """A goal that ends a run before its full length: a row whose `column` is at most `value`; at least, if `larger`."""

    column: str
    value: float
    larger: bool = False

    def reached(self, row: Row) -> bool:
        """Return whether this row ends the run."""
        found = row.more[self.column] if self.column in row.more else getattr(row, self.column)
        return found is not None and (found >= self.value if self.larger else found <= self.value)


@dataclass(frozen=True)
class Interval:
    """When rows of metrics.csv are recorded: every `every` iterations, updates or nanoseconds.

    There is also a row at the beginning and one at the end. With nanoseconds, a row covers all events up to its time.
    An iteration may count as several `steps`: then a row is due at the iteration that reaches a multiple of `every`.
    """

    every: int
    unit: Literal["iterations", "updates", "nanoseconds"] = "iterations"
    steps: int = 1

    def due(self, iteration: int, timestamp: int, before: int) -> bool:
        """Return whether a row is due after events that took the timestamp from `before` to `timestamp`."""
        if self.unit == "updates":
            return timestamp != before and timestamp % self.every == 0
        return self.unit == "iterations" and iteration * self.steps % self.every < self.steps

    def events_until_due(self, iteration: int, timestamp: int) -> int | None:
        """Return how many events certainly happen before the next row is due, at least 1; None if the clock decides."""
        if self.unit == "nanoseconds":
            return None
        if self.unit == "updates":
            return self.every - timestamp % self.every
        return math.ceil((self.every - iteration * self.steps % self.every) / self.steps)

    def next_time(self, rows: int) -> float:
        """Return when the next row is due on the clock, in nanoseconds, after `rows` such rows; ∞ for other units."""
        return (rows + 1) * self.every if self.unit == "nanoseconds" else math.inf

    def rows(self, iterations: int, updates: float, nanoseconds: int = 0, *, rests: bool = False) -> int:
        """Return how many rows a run of so many iterations, updates and simulated nanoseconds has.

        `updates` are not whole if events come after the last one; `rests`: whether the run's time goes on after its
        last event.
        """
        if self.unit == "nanoseconds":
            return 1 + -(-nanoseconds // self.every)
        if self.unit == "updates":
            due, last_is_due = int(updates // self.every), updates % self.every == 0 and (updates > 0 or not iterations)
        else:
            due, last_is_due = min(iterations, iterations * self.steps // self.every), self.due(iterations, 0, 0)
        return 1 + due + (rests or not last_is_due)
