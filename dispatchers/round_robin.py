"""Clients arrive in turn: 0, 1, 2, …, and again from 0; a client that is held is skipped."""

from __future__ import annotations

import numpy as np

from fredsim.dispatchers.base import all_held_error
from fredsim.dispatchers.equal import Equal
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Streams

__all__ = ["RoundRobin"]


class RoundRobin(Equal):
    """Chooses the next eligible id after the last chosen one, starting with 0; draws nothing."""

    idea = "clients arrive in turn"
    state_names = ("_last",)

    def init(self, clients: int, streams: Streams) -> None:
        """Start over with client 0."""
        super().init(clients, streams)
        self._last = clients - 1

    def choose(self, step: int) -> int:
        """Return the next eligible client."""
        following = (self._last + 1) % self._clients
        if self._eligible is not None and not self._eligible[following]:
            if self._eligible.total == 0:
                raise all_held_error(step)
            before = self._eligible.sum_below(following)  # eligible clients with smaller ids come last
            following = self._eligible.find(before % self._eligible.total)
        self._last = following
        return following

    def order(self, begin: int, count: int) -> Integers:
        """Return these entries of 0 … clients − 1, repeated."""
        return np.arange(begin, begin + count) % self._clients
