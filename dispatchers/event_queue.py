"""The queue of a clock's events: at most one for each client, in the order of (time, client).

Ties in time are broken by the client's id, never by the order of insertion.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from fredsim.numerics.arrays import Integers
from fredsim.plugins.state.states import State, Stateful

__all__ = ["EventQueue"]

STAGES = 8
FEW = 64  # so many events may lie in the heap besides two of each client


class EventQueue(Stateful):
    """The next event of each client: its time, and which stage of the client's task ends then."""

    state_names = ("_time", "_stage")

    def __init__(self, clients: int) -> None:
        """Start without events."""
        self._clients = clients
        self._time = np.zeros(clients, np.int64)
        self._stage = np.full(clients, -1, np.int8)
        self._heap: list[int] = []  # (time, client, stage), each as one number; cancelled ones stay until they are due

    def put(self, client: int, time: int, stage: int) -> None:
        """Add the event that this stage of a client's task ends at `time`; it replaces the client's other event."""
        self._time[client], self._stage[client] = time, stage
        if len(self._heap) > 2 * self._clients + FEW:  # most of them are cancelled, and may be due much later
            self._make_heap()
            return
        heappush(self._heap, (time * self._clients + client) * STAGES + stage)

    def cancel(self, client: int) -> bool:
        """Remove a client's event; return whether there was one."""
        found = bool(self._stage[client] >= 0)
        self._stage[client] = -1
        return found

    def put_all(self, clients: Integers, times: Integers, stage: int) -> None:
        """Add the events that this stage of the tasks of `clients` (n,) ends at `times` (n,)."""
        if len(clients) < len(self._heap):
            for client, time in zip(clients.tolist(), times.tolist(), strict=True):
                self.put(client, time, stage)
        else:
            self._time[clients], self._stage[clients] = times, stage
            self._make_heap()

    def _make_heap(self) -> None:
        waiting = np.flatnonzero(self._stage >= 0)
        found = zip(waiting.tolist(), self._time[waiting].tolist(), self._stage[waiting].tolist(), strict=True)
        self._heap = [(time * self._clients + client) * STAGES + stage for client, time, stage in found]
        heapify(self._heap)

    def pop(self) -> tuple[int, int, int] | None:
        """Remove the next event and return its time, client and stage; None if there is none."""
        while self._heap:
            at, stage = divmod(heappop(self._heap), STAGES)
            time, client = divmod(at, self._clients)
            if self._stage[client] == stage and self._time[client] == time:
                self._stage[client] = -1
                return time, client, stage
        return None

    def put_state(self, state: State) -> None:
        """Restore a state."""
        super().put_state(state)
        self._make_heap()
