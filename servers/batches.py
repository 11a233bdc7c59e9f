"""Bases of servers that collect several gradients before each step, and the balanced sum that they collect into."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fredsim.networks.layout import Layout
from fredsim.numerics.rules import Rule
from fredsim.plugins.state.states import Stateful
from fredsim.servers.base import Array, Coefficients, Reply, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["BufferedServer", "CollectingServer", "RoundServer", "TreeSum"]


class TreeSum(Stateful):
    """A sum by a balanced tree over arrays in order of arrival; it keeps log₂ n nodes instead of n leaves."""

    state_names = ("_nodes", "count")

    def __init__(self) -> None:
        self._nodes: list[tuple[int, Array]] = []  # (height, sum) of the subtrees so far, heights falling
        self.count = 0

    def add(self, leaf: Array) -> None:
        """Add the next leaf (P,); the array is kept and may be changed."""
        height = 0
        with np.errstate(all="ignore"):
            while self._nodes and self._nodes[-1][0] == height:
                _, left = self._nodes.pop()
                leaf = np.add(left, leaf, out=left)
                height += 1
        self._nodes.append((height, leaf))
        self.count += 1

    def close(self) -> Array:
        """Return the sum, in which no element is −0, and forget the leaves; an odd node moves up unchanged."""
        _, total = self._nodes.pop()
        with np.errstate(all="ignore"):
            while self._nodes:
                _, left = self._nodes.pop()
                total = np.add(left, total, out=left)
            total += np.float32(0)
        self.count = 0
        return total


def descend_by_mean(theta: Any, g: Any, alpha: Any, count: Any) -> Any:
    """θ − α·(Σ/c)."""
    return theta - alpha * (g / count)


class CollectingServer(ElementwiseServer):
    """Steps by the mean of every `needed` pushes; if it holds clients, those of an unfinished batch wait for it."""

    rule = Rule(descend_by_mean)
    needed: int
    state_names: ClassVar[tuple[str, ...]] = ("_sum", "_waiting")

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters and start an empty batch."""
        super().init(params, clients, layout)
        self._sum = TreeSum()
        self._waiting: list[int] = []

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, c)."""
        return np.float32(self.rate(t)), np.float32(self.needed)

    def collect(self, leaf: Array, client_id: int) -> Reply:
        """Add an array (P,), which is kept and may be changed; make a step when the batch is full."""
        self._sum.add(leaf)
        self._waiting.append(client_id)
        if self._sum.count == self.needed:
            self.step(self._sum.close(), client_id)
        elif self.holds:
            return Reply()
        released, self._waiting = self._waiting if self.holds else [client_id], []
        return Reply(released)

    def step(self, total: Array, client_id: int) -> None:
        """Make a step with the sum (P,) of a full batch, whose last push came from this client."""
        self._apply(total, client_id, *self.coefficients(self.timestamp, 0))

    def pushes_until_release(self) -> int:
        """Return how many pushes the batch still needs."""
        return self.needed - self._sum.count


class RoundServer(CollectingServer):
    """Makes a step when every client at work has pushed; until then those that have are held."""

    holds = True
    takes_fraction = True

    def expect(self, clients: int) -> None:
        """Note the number of clients, and how many are at work, each of which must push to close a round."""
        super().expect(clients)
        self.needed = self.at_work or clients


class BufferedServer(CollectingServer):
    """Collects the clients' local updates in a buffer, and steps when it has `buffer` of them; no client waits."""

    pushes = "delta"

    def expect(self, clients: int) -> None:
        """Note the number of clients, and how many updates make a step."""
        super().expect(clients)
        self.needed = self.hyper.buffer
