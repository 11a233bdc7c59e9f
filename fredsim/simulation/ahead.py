"""Passes that are done ahead on the path `fused`: a client whose fetch is refused goes on from what it holds.

All its minibatches until a fetch passes are then of the same parameters, and their passes are done together, while
these lie in the cache. Which fetches will pass is expected, not known: where one passes, what was begun too far is
thrown away.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import FusedMachine
from fredsim.dispatchers.base import by_client

__all__ = ["Ahead"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]


class Ahead:
    """The slots of works that are begun, by their place among the events that are known."""

    def __init__(self, machine: FusedMachine, window: int) -> None:
        """Keep as many slots free as a window has events."""
        self._machine, self._window = machine, window

    def know(self, clients: Integers, samples: Integers) -> None:
        """Take up the next events (n,), whose minibatches are `samples` (n, µ); none of them is begun."""
        before = by_client(clients)[1]
        following = np.full(len(clients), -1)
        following[before[before >= 0]] = np.flatnonzero(before >= 0)
        self._clients, self._samples, self._following = clients.tolist(), samples, following.tolist()
        self._slots, self._free = [-1] * len(clients), list(range(self._machine.slots))

    def begin(self, at: int, count: int, refused: NDArray[np.bool_], held: Callable[[int], Array]) -> list[int]:
        """Begin the works of `count` events from place `at` on, and those that will follow; return the events' slots.

        `refused` (n,) says of all places whose fetch is expected to be refused; `held` returns what a client holds.
        """
        slots, free, following = self._slots, self._free, self._following
        places = [place for place in range(at, at + count) if slots[place] < 0]
        for place in places:
            slots[place] = free.pop()
        begun, params = [], []
        for place in places:
            given, then = held(self._clients[place]), place
            while True:
                begun.append(then)
                params.append(given)
                after = following[then]
                if after < 0 or slots[after] >= 0 or not refused[then] or len(free) <= self._window:
                    break
                slots[after] = free.pop()
                then = after
        if begun:
            self._machine.begin([slots[place] for place in begun], params, self._samples[begun])
        return slots[at : at + count]

    def arrived(self, place: int, *, fetched: bool) -> None:
        """Free the slot of an event; where its client has fetched, those of works that it had begun beyond, too."""
        while place >= 0 and self._slots[place] >= 0:
            self._free.append(self._slots[place])
            self._slots[place] = -1
            place = self._following[place] if fetched else -1
