"""Running statistics of norms, such as BatchNorm's: each client's own, and what the server evaluates with.

In training a norm goes by its minibatch; running statistics only follow, and matter in evaluation. A client continues
from its own ones, which travel with its pushes; they are not counted among the bytes of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.running import Found, Running
from fredsim.plugins.state.states import State, Stateful, part_of

__all__ = ["Statistics", "follow"]

Arrays = Sequence[NDArray[Any]]


def _mean(arrays: Arrays) -> NDArray[Any]:
    """Return the mean in the type of the arrays: they are added in float64 in their order, and divided once."""
    total = np.zeros(arrays[0].shape)
    for one in arrays:
        total = total + one
    return np.asarray(total / len(arrays), arrays[0].dtype)


class Statistics(Stateful):
    """By client: its own statistics, those that the server has of it, and those of its task under way.

    `initial` are those that all begin with; the server evaluates with the mean over the clients that have pushed, or
    with those of the last one.
    """

    def __init__(self, initial: Arrays, served: Literal["averaged", "last"]) -> None:
        self.initial = initial
        self._served = served
        self._by_client: dict[str, dict[int, Arrays]] = {"own": {}, "server": {}, "under_way": {}}
        self._last = -1

    def begin(self) -> None:
        """Forget what an earlier simulation has left: no client has computed anything yet."""
        for by_client in self._by_client.values():
            by_client.clear()
        self._last = -1

    def of(self, client: int) -> Arrays:
        """Return the statistics from which a client's next gradient continues."""
        for name in ("under_way", "own"):
            if client in self._by_client[name]:
                return self._by_client[name][client]
        return self.initial

    def computed(self, client: int, arrays: Arrays) -> None:
        """Note the statistics after a client's gradient."""
        self._by_client["under_way"][client] = arrays

    def arrived(self, client: int, *, reached: bool) -> None:
        """Note that a client arrives, and whether its push reaches the server."""
        found = self._by_client["under_way"].pop(client, None)
        if found is None:
            return
        self._by_client["own"][client] = found
        if reached:
            self._by_client["server"][client], self._last = found, client

    def cancelled(self, client: int) -> None:
        """Forget what a client has computed since it arrived: its task is given up."""
        self._by_client["under_way"].pop(client, None)

    def served(self) -> Arrays:
        """Return the statistics that the server evaluates with; the means are taken in float64, in order of clients."""
        known = self._by_client["server"]
        if not known:
            return self.initial
        if self._served == "last":
            return known[self._last]
        columns = zip(*(known[client] for client in sorted(known)), strict=True)
        return [_mean(each) for each in columns]

    def take_state(self) -> State:
        """Return all statistics."""
        state: State = {"last": self._last}
        for name, by_client in self._by_client.items():
            for client, arrays in by_client.items():
                state |= {f"{name}.{client}.{number}": array.copy() for number, array in enumerate(arrays)}
        return state

    def put_state(self, state: State) -> None:
        """Restore all statistics."""
        self._last = int(state["last"])
        for name, by_client in self._by_client.items():
            found = part_of(state, name)
            by_client.clear()
            for client in sorted({int(key.partition(".")[0]) for key in found}):
                by_client[client] = [found[f"{client}.{number}"] for number in range(len(self.initial))]


def follow(running: Running, before: Arrays, found: Sequence[Found]) -> list[NDArray[np.float32]]:
    """Return running means and variances after a minibatch, in the order of `running.names`.

    r becomes r·(1 − m) + s·m with m and 1 − m rounded to float32 once, and each operation rounded. s is the mean of the
    minibatch, or its variance v·(N/(N − 1)), N/(N − 1) rounded once, for N elements a channel. Norms follow in the
    order of the network's nodes, so that one that is used twice follows twice.
    """
    now = dict(zip(running.names, before, strict=True))
    with np.errstate(all="ignore"):
        for norm, (mean, variance, elements) in zip(running.norms, found, strict=True):
            kept, share = np.float32(1 - np.float64(np.float32(norm.momentum))), np.float32(norm.momentum)
            unbiased = variance * np.float32(elements / (elements - 1))
            for name, seen in ((norm.mean, mean), (norm.variance, unbiased)):
                now[name] = now[name] * kept + seen * share
    return [now[name] for name in running.names]
