"""The path `snapshots`, one event at a time, keeping each event's details, to compare two runs event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.simulation.clients.outbox import PendingPush
from fredsim.simulation.paths.choice import Choice
from fredsim.simulation.paths.loop import Parts
from fredsim.simulation.paths.snapshots import Snapshots

__all__ = ["EVENT_PARTS", "DetailedSnapshots", "EventDetails"]

#: The fields of EventDetails that two runs are compared by, in the order in which they come about.
EVENT_PARTS = ("order", "minibatch", "gradient", "push", "update")


@dataclass(frozen=True, eq=False)
class EventDetails:
    """What happened at one event."""

    order: tuple[int, int, int]
    """The client, the timestamp of the parameters that it used, and the time in nanoseconds, 0 without a clock."""
    minibatch: NDArray[np.int64]
    """The samples (k, µ) of the k local steps."""
    gradient: NDArray[np.float32]
    """What the client computed from them (P,)."""
    push: NDArray[np.float32] | None
    """What reached the server (P,), None if the push was dropped."""
    update: NDArray[np.float32]
    """The server's parameters after the event (P,)."""

    @property
    def client(self) -> int:
        """The client that arrived."""
        return self.order[0]


class DetailedSnapshots(Snapshots):
    """The path `snapshots`, asked for one event at a time; `event` has the details of the last event."""

    event: EventDetails

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._minibatches_of: dict[int, Any] = {}  # by client: the samples (k, µ) of its task that has not arrived yet

    def _compute(self, clients: list[int], rows: NDArray[np.int64]) -> Any:
        found = super()._compute(clients, rows)
        self._minibatches_of[clients[0]] = rows[0].copy()
        return found

    def _arrive(self, client: int, pending: PendingPush) -> tuple[int, ...]:
        order = client, self._holdings.timestamp(client), self.time
        minibatch, gradient = self._minibatches_of.pop(client), np.asarray(pending.push).copy()
        push = None if pending.message is None else np.asarray(pending.message.push).copy()
        found = super()._arrive(client, pending)
        self.event = EventDetails(order, minibatch, gradient, push, np.asarray(self._server.params).copy())
        return found
