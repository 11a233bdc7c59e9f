"""The path `queued`: clients hold the parameters they fetched in memory of a device, at numbered places."""

from __future__ import annotations

import numpy as np

from fredsim.compute.engines import QueueExecutor
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.draws import Keys
from fredsim.plugins.states import State
from fredsim.simulation.paths.loop import Parts
from fredsim.simulation.paths.stretches import Processed, Stretches
from fredsim.simulation.schedule.schedule import assign_places, split_windows

__all__ = ["Queued"]


class Queued(Stretches):
    """Queues the kernels of whole windows of events, in which every update is the server's elementwise rule."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._make_executor(1).warm_up()

    def _make_executor(self, places: int) -> QueueExecutor:
        server = self.server.elementwise
        return self.engine.queue_executor(self.server.rule, server.params, server.state_of(0), places)

    def prepare(self, iteration: int) -> None:
        """Assign the places on the device for what clients will hold, and make the executor."""
        self._held, self._kept, places = assign_places(self.schedule)
        self._executor = self._make_executor(places)

    def process(self, begin: int, count: int) -> Processed:
        """Process the events on the device, window by window."""
        return self.process_by_rule(begin, count, self._apply)

    def _apply(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        parts, tasks = self.parts, self.parts.clients * self.parts.protocol.tasks_per_client
        room = self.engine.fix_window(parts.limits.window, tasks, parts.params.nbytes)
        windows = list(split_windows(self.schedule.begun[begin:end] - begin, room))
        rows, some = self.rows(np.arange(begin, end)), slice(begin, end)
        keys = Keys(parts.streams.seed, self.schedule.client[some], self.schedule.number[some])
        return self._executor.advance(windows, self._held[some], self._kept[some], rows, coefficients, keys)

    def take_held(self) -> State:
        """Return the parameters that clients hold."""
        return {"places": self._executor.take_places()}

    def put_held(self, state: State, iteration: int) -> None:
        """Restore them."""
        self._executor.put_places(state["places"])
