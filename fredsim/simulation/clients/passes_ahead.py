"""Passes that the path `fused` does ahead, for clients whose next fetches will probably be refused.

A client whose fetch is refused continues from the parameters that it holds. All its minibatches until a fetch passes
use these same parameters, so their passes are done together, while the parameters are in the cache. Which fetches will
pass is a guess: if one passes unexpectedly, the passes that were done beyond it are thrown away.
In the executor, the passes of a client's task occupy a slot.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import FusedExecutor
from fredsim.dispatchers.base import earlier_arrivals
from fredsim.numerics.arrays import Array, Integers

__all__ = ["PassesAhead"]


class PassesAhead:
    """Assigns the executor's slots to known events, which are named by their places: 0 for the first known event."""

    def __init__(self, executor: FusedExecutor, window: int) -> None:
        """Use the executor's slots; as many as a window has events are never used for passes that are done ahead."""
        self._executor, self._window = executor, window

    def set_events(self, clients: Integers, samples: Integers) -> None:
        """Set the next n events: who arrives (n,), and their minibatches `samples` (n, µ). No passes are done yet."""
        before = earlier_arrivals(clients)[1]
        following = np.full(len(clients), -1)
        following[before[before >= 0]] = np.flatnonzero(before >= 0)
        self._clients, self._samples, self._following = clients.tolist(), samples, following.tolist()
        self._slots, self._free = [-1] * len(clients), list(range(self._executor.slots))

    def begin(self, at: int, count: int, refused: NDArray[np.bool_], held: Callable[[int], Array]) -> list[int]:
        """Do the passes of the `count` events from place `at` on, if not done yet; return these events' slots.

        If a client's fetch is expected to be refused, its following passes are done, too, while slots are left.
        `refused` (n,) says for every place whether that is expected; `held` returns the parameters that a client holds.
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
            self._executor.run_passes([slots[place] for place in begun], params, self._samples[begun])
        return slots[at : at + count]

    def free(self, place: int, *, fetched: bool) -> None:
        """Free the slot of an event; if its client fetched, also the slots of passes that were done ahead for it."""
        while place >= 0 and self._slots[place] >= 0:
            self._free.append(self._slots[place])
            self._slots[place] = -1
            place = self._following[place] if fetched else -1
