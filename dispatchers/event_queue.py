"""What happens next on a clock: for each client one thing at most, in the order of (time, client).

Ties are broken by the client alone, never by what was put in first.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from fredsim.plugins.states import State, Stateful

__all__ = ["EventQueue"]

Integers = NDArray[np.int64]
STAGES = 8


class EventQueue(Stateful):
    """What is to happen to each client: when, and which stage of its work ends then."""

    state_names = ("_time", "_stage")

    def __init__(self, clients: int) -> None:
        """Begin with nothing that is to happen."""
        self._clients = clients
        self._time = np.zeros(clients, np.int64)
        self._stage = np.full(clients, -1, np.int8)
        self._heap: list[int] = []  # (time, client, stage) as one number each; what was cancelled stays until it is due

    def put(self, client: int, time: int, stage: int) -> None:
        """Let this stage of a client's work end at a time, instead of what else was to happen to the client."""
        self._time[client], self._stage[client] = time, stage
        heappush(self._heap, (time * self._clients + client) * STAGES + stage)

    def cancel(self, client: int) -> bool:
        """Forget what was to happen to a client; return whether there was something."""
        found = bool(self._stage[client] >= 0)
        self._stage[client] = -1
        return found

    def put_all(self, clients: Integers, times: Integers, stage: int) -> None:
        """Let this stage of several clients end, at times (n,)."""
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
        """Return the time, client and stage of what happens next, and forget it; None where nothing is to happen."""
        while self._heap:
            at, stage = divmod(heappop(self._heap), STAGES)
            time, client = divmod(at, self._clients)
            if self._stage[client] == stage and self._time[client] == time:
                self._stage[client] = -1
                return time, client, stage
        return None

    def put_state(self, state: State) -> None:
        """Go on from a state."""
        super().put_state(state)
        self._make_heap()
