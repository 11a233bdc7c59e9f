"""Shards: which training rows each client has. A row of a shard is given by the client and its place in the shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Integers

__all__ = ["BLOCK_ROWS", "ShardTable", "Shards"]

#: The rows of shards that are processed together, unless a single client has more.
BLOCK_ROWS = 2**20


class Shards(ABC):
    """The shards of all clients, 0 … count − 1."""

    count: int

    @abstractmethod
    def sizes(self, clients: Integers) -> Integers:
        """Return how many samples the shards of these clients hold."""

    @abstractmethod
    def rows(self, clients: Integers, places: Integers) -> Integers:
        """Return the training rows at these places of these clients' shards; the two broadcast together."""

    def blocks(self) -> Iterator[tuple[Integers, Integers, Integers]]:
        """Yield all shards, some clients at a time: clients (n,), sizes (n,), and their rows one after another."""
        largest = max(int(self.sizes(clients).max()) for clients in _ranges(self.count, BLOCK_ROWS))
        for clients in _ranges(self.count, max(1, BLOCK_ROWS // max(1, largest))):
            sizes = self.sizes(clients)
            starts = np.cumsum(sizes) - sizes
            places = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
            yield clients, sizes, self.rows(np.repeat(clients, sizes), places)


def _ranges(count: int, step: int) -> Iterator[Integers]:
    for begin in range(0, count, step):
        yield np.arange(begin, min(begin + step, count))


class ShardTable(Shards):
    """Shards that are stored: client i has the `rows` from offsets[i] to offsets[i + 1]."""

    def __init__(self, offsets: Integers, rows: NDArray[np.integer]) -> None:
        """Take offsets (λ + 1,) and rows, fewer than 2³¹."""
        self.count = len(offsets) - 1
        self._offsets, self._rows = offsets, rows.astype(np.int32)

    @classmethod
    def from_owners(cls, owners: Integers, clients: int) -> ShardTable:
        """Return the shards, given each row's owner, −1 for none; each shard has its rows in ascending order."""
        rows = np.argsort(owners, kind="stable")
        rows = rows[np.count_nonzero(owners < 0) :]
        sizes = np.bincount(owners[rows], minlength=clients)
        return cls(np.concatenate([[0], np.cumsum(sizes)]), rows)

    @classmethod
    def from_lists(cls, lists: Sequence[NDArray[np.integer]]) -> ShardTable:
        """Return the shards given as one list per client."""
        return cls(np.cumsum([0, *map(len, lists)]), np.concatenate(lists))

    def sizes(self, clients: Integers) -> Integers:
        """Return how many samples the shards of these clients have."""
        sizes: Integers = self._offsets[clients + 1] - self._offsets[clients]
        return sizes

    def rows(self, clients: Integers, places: Integers) -> Integers:
        """Return the training rows at these places of these clients' shards."""
        rows: Integers = self._rows[self._offsets[clients] + places].astype(np.int64)
        return rows
