"""The order of a whole run, known ahead: who arrives when, and from which event on each gradient was under way.

Where nothing that happens in a run changes who arrives next, and every fetch passes, all that an event depends on is
known before the first: the parameters it started from (those after its source), its staleness, its minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Foresight", "foresee", "places_of", "windows_of"]

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


def places_of(seen: Foresight) -> tuple[Integers, Integers, int]:
    """Return each event's place of the parameters that it started from, and of what its client fetches; and how many.

    int64 (T,) each; −1 for a fetch that is never used. Place 0 keeps the initial parameters; any other is free again
    once its client has arrived.
    """
    held, kept = np.zeros(len(seen), np.int64), np.full(len(seen), -1, np.int64)
    free: list[int] = []
    places = 1
    for event, (source, target) in enumerate(zip(seen.source.tolist(), seen.target.tolist(), strict=True)):
        if source >= 0:
            held[event] = kept[source]
            free.append(int(kept[source]))
        if target >= 0:
            if not free:
                free.append(places)
                places += 1
            kept[event] = free.pop()
    return held, kept, places


def windows_of(source: Integers, room: int) -> Iterator[tuple[int, int]]:
    """Yield windows begin … end of at most `room` events, all of which were under way before the window began."""
    begin = 0
    for event, started in enumerate(source.tolist()):
        if started >= begin or event - begin == room:
            yield begin, event
            begin = event
    if begin < len(source):
        yield begin, len(source)
