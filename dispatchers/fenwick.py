"""Integer weights that can be changed, summed and searched in O(log n): a binary indexed tree (Fenwick 1994)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fredsim.plugins.state.states import Stateful

__all__ = ["Fenwick"]


class Fenwick(Stateful):
    """Non-negative integer weights over 0 … n − 1; integers, so that sums do not depend on the history of changes."""

    state_names = ("_weights", "_nodes", "total")

    def __init__(self, weights: ArrayLike) -> None:
        values = np.asarray(weights, np.int64)
        self._weights: list[int] = values.tolist()
        # Node i holds the sum of the (i & −i) weights that end at i.
        sums = np.concatenate([[0], np.cumsum(values)])
        index = np.arange(len(values) + 1)
        self._nodes: list[int] = (sums - sums[index - (index & -index)]).tolist()
        self._top = 1 << (len(values).bit_length() - 1)
        self.total = int(sums[-1])

    def __getitem__(self, index: int) -> int:
        return self._weights[index]

    def __setitem__(self, index: int, weight: int) -> None:
        change = weight - self._weights[index]
        if change == 0:
            return
        self._weights[index] = weight
        self.total += change
        nodes, size = self._nodes, len(self._nodes)
        node = index + 1
        while node < size:
            nodes[node] += change
            node += node & -node

    def sum_below(self, index: int) -> int:
        """Return the sum of the weights 0 … index − 1."""
        total = 0
        while index:
            total += self._nodes[index]
            index -= index & -index
        return total

    def find(self, target: int) -> int:
        """Return the index i with sum_below(i) ≤ target < sum_below(i + 1), for a target in 0 … total − 1."""
        nodes, size = self._nodes, len(self._nodes)
        node, bit = 0, self._top
        while bit:
            following = node + bit
            if following < size and nodes[following] <= target:
                node = following
                target -= nodes[following]
            bit >>= 1
        return node
