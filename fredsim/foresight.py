"""The order of a whole run, known ahead: who arrives when, and from which event on each gradient was under way.

Where nothing that happens in a run changes who arrives next, and every fetch passes, all that an event depends on is
known before the first: the parameters it started from (those after its source), its staleness, its minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Foresight", "foresee"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Foresight:
    """Events 0 … T − 1, int64 (T,) each; an update happens at every event."""

    clients: Integers
    #: The event after which the arriving work was begun, −1 for one begun from the initial parameters.
    source: Integers
    #: The event at which the work begun after this one arrives, −1 for none.
    target: Integers
    #: A place for the work in hand; what is begun after an event takes the place of what arrived at it.
    slot: Integers
    slots: int
    #: How many works of the same client arrived before.
    number: Integers

    @property
    def staleness(self) -> Integers:
        """How many updates each gradient is behind when it is applied."""
        return np.arange(len(self.source)) - (self.source + 1)

    def __len__(self) -> int:
        return len(self.clients)


def foresee(clients: Integers, *, wait: bool) -> Foresight:
    """Return what follows from the order of clients (T,).

    With `wait` a client begins its next work from what it fetches on arrival; without, from what it held then.
    """
    events = len(clients)
    _, inverse, counts = np.unique(clients, return_inverse=True, return_counts=True)
    by_client = np.argsort(inverse, kind="stable")  # each client's events, in order
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    number = np.empty(events, np.int64)
    number[by_client] = np.arange(events) - starts
    ahead = 1 if wait else 2  # the work under way was begun so many of the client's arrivals ago
    source = np.full(events, -1, np.int64)
    target = np.full(events, -1, np.int64)
    one, other = by_client[:-ahead], by_client[ahead:]
    same = inverse[one] == inverse[other]
    source[other[same]], target[one[same]] = one[same], other[same]
    slot = inverse * ahead + number % ahead
    return Foresight(clients, source, target, slot, len(counts) * ahead, number)
