"""The base of dispatchers to which all clients are equal, but for those that are held."""

from __future__ import annotations

import numpy as np

from fredsim.dispatchers.base import Dispatcher
from fredsim.dispatchers.fenwick import Fenwick
from fredsim.numerics.streams import Streams

__all__ = ["Equal"]


class Equal(Dispatcher):
    """Keeps who is eligible, by weights 1 and 0; `_eligible` is None until somebody is first held."""

    def init(self, clients: int, streams: Streams) -> None:
        """Start over."""
        self._clients = clients
        self._eligible: Fenwick | None = None

    def hold(self, client: int) -> None:
        """Take the client out of the choice."""
        if self._eligible is None:
            self._eligible = Fenwick(np.ones(self._clients, np.int64))
        self._eligible[client] = 0

    def release(self, client: int) -> None:
        """Put the client back."""
        if self._eligible is not None:
            self._eligible[client] = 1
