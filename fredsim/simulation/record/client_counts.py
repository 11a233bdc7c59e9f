"""What each client exchanges with the server, counted client by client: columns of clients.csv."""

from __future__ import annotations

import numpy as np

from fredsim.numerics.arrays import Integers
from fredsim.plugins.states import Stateful

__all__ = ["ClientCounts"]


class ClientCounts(Stateful):
    """Counts, int64 (λ,) each: pushes sent, pushes applied, the sum of the latters' staleness, and bytes."""

    state_names = ("pushes", "applied", "staleness", "bytes_pushed", "bytes_fetched")

    def __init__(self, clients: int) -> None:
        self.pushes, self.applied, self.staleness, self.bytes_pushed, self.bytes_fetched = np.zeros(
            (5, clients), np.int64
        )

    def count_push(self, client: int, size: int) -> None:
        """Count a push of `size` bytes; 0 for a dropped one."""
        self.pushes[client] += size > 0
        self.bytes_pushed[client] += size

    def count_applied(self, client: int, staleness: int) -> None:
        """Count a push that the server applied, and its staleness."""
        self.applied[client] += 1
        self.staleness[client] += staleness

    def count_pushes(self, clients: Integers, staleness: Integers, size: int) -> None:
        """Count n pushes by `clients` (n,), `size` bytes each, all of them applied with `staleness` (n,)."""
        np.add.at(self.pushes, clients, 1)
        np.add.at(self.bytes_pushed, clients, size)
        np.add.at(self.applied, clients, 1)
        np.add.at(self.staleness, clients, staleness)

    def count_fetches(self, clients: Integers | int, size: int) -> None:
        """Count fetches of `size` bytes each."""
        np.add.at(self.bytes_fetched, clients, size)
