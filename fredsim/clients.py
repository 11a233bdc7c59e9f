"""What the simulated clients hold between fetching parameters and pushing a gradient.

The loop asks only for what `Holdings` names. `SnapshotHoldings` keeps the fetched parameters themselves; clients that
hold the same version share one array, which is freed when the last of them moves on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.backends import MARGIN, Engine

__all__ = ["Holdings", "SnapshotHoldings"]

Array = NDArray[np.float32]


class Holdings(Protocol):
    """The clients' side of a run."""

    def timestamp(self, client: int) -> int:
        """Return the timestamp of the parameters that the client's gradient under way is computed from."""
        ...

    def gradients(self, clients: Sequence[int], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the gradients (B, P) under way at B different clients on minibatches (B, µ), and the losses (B, µ).

        The arrays are overwritten by the next call.
        """
        ...

    def pushed(self, client: int) -> None:
        """Take note that the client's gradient has arrived, before any fetch that follows from it."""
        ...

    def fetch(self, client: int, params: Array, timestamp: int, *, shared: bool) -> None:
        """Hand parameters (P,) to a client; `shared` where every fetch at this timestamp gets the same."""
        ...


class Version:
    """Parameters of one timestamp, and how many references to them the clients hold."""

    __slots__ = ("holders", "params", "shared", "timestamp")

    def __init__(self, params: Array, timestamp: int, shared: bool) -> None:
        self.params = params
        self.timestamp = timestamp
        self.shared = shared
        self.holders = 0


class SnapshotHoldings:
    """Clients that keep the parameters they fetched, as versions shared by timestamp.

    With `wait` false a client starts its next gradient, as soon as it has pushed one, from what it held then; what it
    fetches takes effect for the gradient after that.
    """

    def __init__(self, engine: Engine, params: Array, clients: int, wait: bool) -> None:
        self._engine = engine
        self._wait = wait
        self._size = len(params)
        self._free: list[Array] = []  # arrays of freed versions, to be used again
        self._shared: dict[int, Version] = {}
        start = self._store(params, 0, shared=True)
        start.holders = clients if wait else 2 * clients
        self._under_way = [start] * clients
        self._fetched = [] if wait else [start] * clients

    @property
    def versions(self) -> int:
        """The number of distinct arrays held."""
        return len({id(version) for version in (*self._under_way, *self._fetched)})

    def timestamp(self, client: int) -> int:
        """Return the timestamp of the version that the gradient under way is computed from."""
        return self._under_way[client].timestamp

    def gradients(self, clients: Sequence[int], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Compute the gradients of different clients together."""
        return self._engine.gradients([self._under_way[client].params for client in clients], rows)

    def pushed(self, client: int) -> None:
        """Without waiting, start the next gradient from what the client holds now."""
        if not self._wait:
            self._drop(self._under_way[client])
            self._under_way[client] = self._fetched[client]
            self._under_way[client].holders += 1

    def fetch(self, client: int, params: Array, timestamp: int, *, shared: bool) -> None:
        """Let the client hold the version of this timestamp, copied when it is the first to fetch it."""
        version = self._shared.get(timestamp) if shared else None
        if version is None:
            version = self._store(params, timestamp, shared)
        version.holders += 1
        holds = self._under_way if self._wait else self._fetched
        self._drop(holds[client])
        holds[client] = version

    def _store(self, params: Array, timestamp: int, shared: bool) -> Version:
        room = self._free.pop() if self._free else np.zeros(self._size + MARGIN, np.float32)[: self._size]
        np.copyto(room, params)
        version = Version(room, timestamp, shared)
        if shared:
            self._shared[timestamp] = version
        return version

    def _drop(self, version: Version) -> None:
        version.holders -= 1
        if version.holders == 0:
            self._free.append(version.params)
            if version.shared:
                del self._shared[version.timestamp]
