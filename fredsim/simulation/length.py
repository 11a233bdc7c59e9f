"""How long a run is, and when its rows are due."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Interval", "Length"]


@dataclass(frozen=True)
class Length:
    """When a run ends: after so many iterations, or when the timestamp has reached so many updates."""

    iterations: int | None
    updates: int | None

    @property
    def events(self) -> int:
        """How many events there will be, where each is an update."""
        return min(limit for limit in (self.iterations, self.updates) if limit is not None)

    def left(self, iteration: int, timestamp: int) -> int:
        """Return how many events are sure to be left: an event makes at most one update."""
        ends = ((self.iterations, iteration), (self.updates, timestamp))
        return max(0, min(end - now for end, now in ends if end is not None))


@dataclass(frozen=True)
class Interval:
    """When a row is recorded: every so many iterations, or updates; besides at the beginning and at the end."""

    every: int
    in_updates: bool = False

    def due(self, iteration: int, timestamp: int, before: int) -> bool:
        """Return whether a row is due after events that took the timestamp from `before` to `timestamp`."""
        if self.in_updates:
            return timestamp != before and timestamp % self.every == 0
        return iteration % self.every == 0

    def left(self, iteration: int, timestamp: int) -> int:
        """Return how many events are sure to happen until the next row is due, 1 at least."""
        return self.every - (timestamp if self.in_updates else iteration) % self.every

    def rows(self, iterations: int, updates: float) -> int:
        """Return how many rows a run of so many iterations and updates leaves."""
        return 1 + math.ceil((updates if self.in_updates else iterations) / self.every)
