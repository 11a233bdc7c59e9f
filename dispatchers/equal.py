"""The base of dispatchers that treat all eligible clients alike."""

from __future__ import annotations

import numpy as np

from fredsim.dispatchers.base import Dispatcher
from fredsim.dispatchers.fenwick import Fenwick
from fredsim.numerics.streams import Streams

__all__ = ["Equal"]


class Equal(Dispatcher):
    """Keeps track of the eligible clients, by weights 1 and 0; `_eligible` is None until a client is first held."""

    def init(self, clients: int, streams: Streams) -> None:
        """Start over with no client held."""
        self._clients = clients
        self._eligible: Fenwick | None = None

    def hold(self, client: int) -> None:
        """Exclude the client from the choice."""
        if self._eligible is None:
            self._eligible = Fenwick(np.ones(self._clients, np.int64))
        self._eligible[client] = 0

    def release(self, client: int) -> None:
        """Make the client eligible again."""
        if self._eligible is not None:
            self._eligible[client] = 1
