"""The path `queued`: clients hold the parameters they fetched, at numbered places, and all is known ahead.

On a CUDA device the kernels of whole windows are queued; PyTorch's modules are computed on the processor, too.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from fredsim.compute.engines import QueueExecutor
from fredsim.compute.statistics import Statistics
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.draws import Keys
from fredsim.plugins.state.states import State, part_of
from fredsim.simulation.paths.loop import Parts
from fredsim.simulation.paths.stretches import Processed, Stretches
from fredsim.simulation.schedule.schedule import assign_places, split_windows
from fredsim.system.memory import refuse_what_clients_hold

__all__ = ["Queued"]

#: What the clients' running statistics are called among what clients hold.
OWN = "statistics"


class Queued(Stretches):
    """Processes stretches of events, every update of which is the server's elementwise rule."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        if parts.limits.memory is None and parts.engine.device_name is None:
            copies = 1 + parts.most_tasks(parts.clients * parts.protocol.tasks_per_client)
            what, each = f"{copies:,} copies of the parameters that they may hold", parts.params.nbytes
            refuse_what_clients_hold(parts.clients, what, copies * each, 0, each)
        self._statistics: Statistics | None = parts.engine.statistics
        if self._statistics is not None:
            self._statistics.begin()
        # What is tried and compiled now is not counted in the run's time.
        self._most = parts.engine.fix_window(parts.limits.window, parts.clients, parts.params.nbytes)
        self._make_executor(1)
        self._executor: QueueExecutor | None = None

    def _make_executor(self, places: int) -> QueueExecutor:
        server, pool = self.server.elementwise, self.parts.pool
        return self.engine.queue_executor(self.server.rule, server.params, server.state_of(0), places, pool)

    def prepare(self, iteration: int) -> None:
        """Assign the places for what clients will hold, and make the executor."""
        self._held, self._kept, places = assign_places(self.schedule)
        self._executor = self._make_executor(places)

    def process(self, begin: int, count: int) -> Processed:
        """Process the events, window by window."""
        return self.process_by_rule(begin, count, self._apply)

    def _apply(self, begin: int, end: int, coefficients: Array) -> tuple[Array, int]:
        windows = list(split_windows(self.schedule.begun[begin:end] - begin, self._most))
        rows, some = self.rows(np.arange(begin, end)), slice(begin, end)
        keys = Keys(self.parts.streams.seed, self.schedule.client[some], self.schedule.number[some])
        executor = cast("QueueExecutor", self._executor)
        return executor.advance(windows, self._held[some], self._kept[some], rows, coefficients, keys)

    def take_held(self) -> State:
        """Return what clients hold, and bring the server's own arrays up to date."""
        self.update_server()
        own = {} if self._statistics is None else self._statistics.take_state()
        return cast("QueueExecutor", self._executor).take_places() | {f"{OWN}.{name}": own[name] for name in own}

    def update_server(self) -> None:
        """Have the executor bring the server's arrays up to date."""
        if self._executor is not None:
            self._executor.update_server()

    def put_held(self, state: State, iteration: int) -> None:
        """Restore it."""
        cast("QueueExecutor", self._executor).put_places(state)
        if self._statistics is not None:
            self._statistics.put_state(part_of(state, OWN))
