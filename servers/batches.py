"""Servers that collect several gradients before they step, and the sum they collect into."""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.layout import Layout
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Array, ElementwiseServer, Reply

__all__ = ["CollectingServer", "TreeSum"]


class TreeSum:
    """The contract's balanced binary tree over the order of arrival, with log₂ n open nodes instead of n leaves."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, Array]] = []  # (height, sum) of the open nodes, heights falling
        self.count = 0

    def add(self, leaf: Array) -> None:
        """Add the next leaf; the array is kept and may be changed."""
        height = 0
        with np.errstate(all="ignore"):
            while self._nodes and self._nodes[-1][0] == height:
                _, left = self._nodes.pop()
                leaf = np.add(left, leaf, out=left)
                height += 1
        self._nodes.append((height, leaf))
        self.count += 1

    def close(self) -> Array:
        """Return the sum, never −0, and forget the leaves; an odd node passes up unchanged."""
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
    """Holds the clients of an unfinished batch; a full one, of `needed` gradients, steps by its mean."""

    rule = Rule(descend_by_mean)
    needed: int

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters and start an empty batch."""
        super().init(params, clients, layout)
        self._sum = TreeSum()
        self._waiting: list[int] = []

    def collect(self, leaf: Array, client_id: int) -> Reply:
        """Add a gradient, which is kept; step when the batch is full."""
        self._sum.add(leaf)
        self._waiting.append(client_id)
        if self._sum.count < self.needed:
            return Reply()
        self._apply(self._sum.close(), np.float32(self.hyper.lr), np.float32(self.needed))
        released, self._waiting = self._waiting, []
        return Reply(released)

    def pushes_until_release(self) -> int:
        """Return what the batch lacks."""
        return self.needed - self._sum.count
