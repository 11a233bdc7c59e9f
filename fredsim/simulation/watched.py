"""The path `snapshots`, one event at a time, with each event's details kept, to compare two runs event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.simulation.loop import Parts
from fredsim.simulation.outbox import UnderWay
from fredsim.simulation.paths import Choice
from fredsim.simulation.snapshots import Snapshots

__all__ = ["PARTS", "Event", "Watched"]

#: The parts of an event, in the order in which they happen.
PARTS = ("order", "minibatch", "gradient", "push", "update")


@dataclass(frozen=True, eq=False)
class Event:
    """The details of one event."""

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


class Watched(Snapshots):
    """The path `snapshots` with windows of one event; keeps the details of the last event."""

    event: Event

    def __init__(self, parts: Parts, choice: Choice) -> None:
        super().__init__(parts, choice)
        self._window = 1
        self._works: dict[int, Any] = {}  # by client, the minibatches of its work that has not arrived yet

    def _compute(self, clients: list[int], rows: NDArray[np.int64]) -> Any:
        found = super()._compute(clients, rows)
        self._works[clients[0]] = rows[0].copy()
        return found

    def _arrive(self, client: int, work: UnderWay) -> tuple[int, ...]:
        order = client, self._holdings.timestamp(client), self.time
        minibatch, gradient = self._works.pop(client), np.asarray(work.push).copy()
        push = None if work.message is None else np.asarray(work.message.push).copy()
        found = super()._arrive(client, work)
        self.event = Event(order, minibatch, gradient, push, np.asarray(self._server.params).copy())
        return found
