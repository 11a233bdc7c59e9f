"""Keeps the details of each event, to compare two runs event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fredsim.simulation.clients.outbox import PendingPush
from fredsim.simulation.clients.pushes import EventObserver

__all__ = ["EVENT_PARTS", "EventDetails", "LastEvent"]

#: The fields of EventDetails that two runs are compared by, in the order in which they come about.
EVENT_PARTS = ("order", "minibatch", "gradient", "push", "update")


@dataclass(eq=False)
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


class LastEvent(EventObserver):
    """Keeps the details of the last event."""

    details: EventDetails

    def __init__(self) -> None:
        self._minibatches: dict[int, NDArray[np.int64]] = {}  # by client: those of its task that has not arrived yet

    def computed(self, clients: Sequence[int], rows: Sequence[NDArray[np.int64]]) -> None:
        """Keep each client's samples."""
        self._minibatches |= {client: samples.copy() for client, samples in zip(clients, rows, strict=True)}

    def arrives(self, client: int, timestamp: int, time: int, pending: PendingPush) -> None:
        """Keep who arrives, and with what."""
        gradient = np.asarray(pending.push).copy()
        push = None if pending.message is None else np.asarray(pending.message.push).copy()
        self.details = EventDetails((client, timestamp, time), self._minibatches.pop(client), gradient, push, gradient)

    def arrived(self, iteration: int, params: NDArray[np.float32]) -> None:
        """Keep the parameters."""
        self.details.update = np.asarray(params).copy()
