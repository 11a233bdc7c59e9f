"""What the paths whose whole schedule is known have in common: they process a stretch of its events at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array, Integers
from fredsim.plugins.state.states import State
from fredsim.simulation.paths.loop import Diverged, Parts
from fredsim.simulation.schedule.schedule import Schedule

__all__ = ["Processed", "Stretches"]

#: Of n events: the timestamp before each (n,), the staleness (n,), and the samples' losses (n, µ).
Processed = tuple[Integers, Integers, Array]


class Stretches(ABC):
    """Processes stretches of a run's events, and keeps what clients hold; see fredsim.simulation.paths.scheduled."""

    schedule: Schedule  # the whole one, once `prepare` is called

    def __init__(self, parts: Parts) -> None:
        """Compile now, so that this is not counted in the run's time; refuse what exceeds the memory."""
        self.parts, self.server, self.engine = parts, parts.server, parts.engine
        self.operations = parts.engine.operations

    @abstractmethod
    def prepare(self, iteration: int) -> None:
        """Make room for what clients will hold; before the first event, let them begin."""

    @abstractmethod
    def process(self, begin: int, count: int) -> Processed:
        """Process `count` events from `begin` on, or only the first n of them. Raises Diverged."""

    @abstractmethod
    def take_held(self) -> State:
        """Return what clients hold, and bring the server's own arrays up to date."""

    @abstractmethod
    def put_held(self, state: State, iteration: int) -> None:
        """Restore what clients hold. Raises ValueError if it is not that of this iteration of the schedule."""

    def update_server(self) -> None:  # noqa: B027  nothing to do where these arrays themselves are updated
        """Bring the server's own arrays up to date."""

    def shares(self) -> dict[str, float] | None:
        """Return which share of the kernels' time each activity took, by name; None if that is not measured."""
        return None

    def rows(self, events: Integers) -> NDArray[np.int32]:
        """Return the samples (n, µ) of the tasks that arrive at these events (n,); zeros for an event −1."""
        schedule, some = self.schedule, events >= 0
        chosen = events[some]
        sent = chosen if schedule.sent is None else schedule.sent[chosen]
        found = self.parts.sampler.rows(sent, schedule.client[chosen], schedule.number[chosen])
        if len(found) == len(events):
            return found.astype(np.int32, copy=False)
        result = np.zeros((len(events), self.parts.sampler.batch_size), np.int32)
        result[some] = found
        return result

    def process_by_rule(
        self, begin: int, count: int, apply: Callable[[int, int, Array], tuple[Array, int]]
    ) -> Processed:
        """Process events each of which is an update by the server's elementwise rule.

        `apply(begin, end, coefficients)` processes them as far as parameters stay finite; it returns their losses
        (n, µ), and how many events left all parameters finite.
        """
        server, iterations = self.server, np.arange(begin, begin + count)
        staleness = iterations - (self.schedule.begun[begin : begin + count] + 1)  # every event is an update
        coefficients = server.coefficients(iterations, staleness)
        n = len(coefficients)
        losses, finite = apply(begin, begin + n, coefficients)
        if finite < n:
            raise Diverged(begin + finite)
        server.elementwise.timestamp = server.timestamp = begin + n
        return iterations[:n], staleness[:n], losses
