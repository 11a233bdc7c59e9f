"""SCAFFOLD's control variates: what a client's own gradients and those of all clients are on average.

    each local step:   g + (c − c_i),   c as the client fetched it
    after K steps by α from x to y:   c_i⁺ = (c_i − c) + (x − y)/(K α)
    when that push arrives:   c ← c + (c_i⁺ − c_i)/λ

Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", arXiv:1910.06378, with
option II of its Algorithm 1. c and all c_i are 0 at first. A push carries c_i⁺ − c_i and a fetch c, so that each takes
twice the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fredsim.numerics.arrays import Array
from fredsim.numerics.operations import Operations
from fredsim.plugins.state.state_arrays import as_state, of_state
from fredsim.plugins.state.states import State, Stateful, part_of
from fredsim.servers.elementwise import PerClient

__all__ = ["ControlVariates"]


class ControlVariates(Stateful):
    """The server's control variate, the clients' own, and which of the server's each client has fetched."""

    def __init__(self, size: int, clients: int, operations: Operations, pool: Callable[[], Any]) -> None:
        """Start with zeros (P,) for λ clients; `pool` returns that of the arrays of single clients."""
        self._operations, self._clients, self._pool = operations, clients, pool
        self._mean = operations.zeros(size)  # c; it is replaced, never changed, since clients hold it, too
        self._first = self._mean
        self._own = PerClient(operations.zeros(size), pool)
        self._held: dict[int, Array] = {}  # by client: c as it was fetched, if it has fetched
        self._under_way: dict[int, Array] = {}  # by client: c_i⁺ − c_i, until its push arrives

    def correction(self, client: int) -> Array:
        """Return c − c_i (P,)."""
        return self._held.get(client, self._first) - self._own[client]

    def renew(self, client: int, start: Array, end: Array, rate: np.float32, steps: int) -> None:
        """Renew c_i after `steps` local steps by `rate` from `start` to `end` (P,); a rate of 0 leaves it as it is."""
        own, divisor = self._own[client], np.float32(float(rate) * steps)
        with np.errstate(all="ignore"):
            if divisor > 0:
                renewed = (own - self._held.get(client, self._first)) + (start - end) / divisor
            else:
                renewed = own + np.float32(0)
            self._under_way[client] = renewed - own
        self._own.put(client, renewed)

    def arrived(self, client: int) -> None:
        """Take what a client has pushed into c."""
        change = self._under_way.pop(client)
        with np.errstate(all="ignore"):
            self._mean = self._mean + change / np.float32(self._clients)

    def fetched(self, client: int) -> None:
        """Note that a client has fetched c."""
        self._held[client] = self._mean

    def take_state(self) -> State:
        """Return c, the clients' own, what they hold, and what is under way."""
        places: dict[int, int] = {}  # by identity
        versions: list[Array] = []
        held = []
        for client, version in sorted(self._held.items()):
            if places.setdefault(id(version), len(versions)) == len(versions):
                versions.append(version)
            held.append((client, places[id(version)]))
        state: State = {"mean": as_state(self._mean), "held": np.array(held, np.int64).reshape(-1, 2)}
        state |= {f"version.{number}": as_state(version) for number, version in enumerate(versions)}
        state |= {f"own.{client}": array for client, array in self._own.take_state().items()}
        return state | {f"under_way.{client}": as_state(array) for client, array in self._under_way.items()}

    def put_state(self, state: State) -> None:
        """Restore a state."""
        self._mean = of_state(state["mean"], self._operations)
        versions = {name: of_state(values, self._operations) for name, values in part_of(state, "version").items()}
        self._held = {int(client): versions[str(number)] for client, number in state["held"].tolist()}
        self._own.put_state(part_of(state, "own"))
        under_way = part_of(state, "under_way")
        self._under_way = {int(client): of_state(values, self._operations) for client, values in under_way.items()}
