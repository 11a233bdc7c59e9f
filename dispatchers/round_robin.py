"""Clients finish in turn: 0, 1, 2, … and again; one that is held is passed over."""

from __future__ import annotations

import numpy as np

from fredsim.dispatchers.base import Integers, everybody_held
from fredsim.dispatchers.equal import Equal
from fredsim.numerics.streams import Streams

__all__ = ["RoundRobin"]


class RoundRobin(Equal):
    """Chooses the next eligible id after the last chosen, from 0; draws nothing."""

    idea = "clients finish in turn"
    state_names = ("_last",)

    def init(self, clients: int, streams: Streams) -> None:
        """Start over."""
        super().init(clients, streams)
        self._last = clients - 1

    def choose(self, step: int) -> int:
        """Return the next eligible client."""
        following = (self._last + 1) % self._clients
        if self._eligible is not None and not self._eligible[following]:
            if self._eligible.total == 0:
                raise everybody_held(step)
            before = self._eligible.sum_below(following)  # the eligible clients below it come last
            following = self._eligible.find(before % self._eligible.total)
        self._last = following
        return following

    def order(self, count: int) -> Integers:
        """Count."""
        return np.arange(count) % self._clients
