"""Where things stand in the kernels' work space, for one network and one size of minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

__all__ = ["Shape"]

Integers = NDArray[np.int64]


def _ends(lengths: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@cache
def _tables(group: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return for each pattern of active blocks how many there are, which, and how many open nodes each closes.

    A node stays open until the next block would meet it higher up than its left neighbour does. Two blocks meet at the
    height of the highest bit in which their numbers differ; of two such heights that are compared here, the exclusive
    ors can be compared themselves. The last block of a group closes all that is open.
    """
    counts = np.zeros(2**group, np.uint8)
    found, closes = np.zeros((2**group, group), np.uint8), np.zeros((2**group, group), np.uint8)
    for pattern in range(2**group):
        blocks = [b for b in range(group) if pattern >> b & 1]
        counts[pattern] = len(blocks)
        opened: list[int] = []
        for i, (here, following) in enumerate(zip(blocks, [*blocks[1:], None], strict=False)):
            found[pattern, i] = here
            while opened and (following is None or opened[-1] ^ here < here ^ following):
                opened.pop()
                closes[pattern, i] += 1
            opened.append(here)
    return counts, found, closes


class Shape:
    """Sizes and offsets, int64 arrays by layer.

    Attributes:
        sizes: inputs, hidden …, classes.
        widths: of each layer's rows, padded to whole vectors.
        blocks: of a minibatch's samples; `samples` is their room, at least µ.
        places: where each layer's errors stand among a minibatch's; the end last.
        inside: where what enters each layer above the first stands in blocks, for layer 1 first.
        transposed: where each layer's transposed weights stand; the first has none.
        groups: of blocks.
        tables: what fredsim.kernels.trees.sum_group reads for each pattern of active blocks.
        every: the pattern in which every block is active, uint8 (groups, rows at once).

    """

    def __init__(self, sizes: Sequence[int], mu: int, trees: ModuleType, tall: int) -> None:
        """Lay out minibatches of µ for the blocks of a specialised module; `tall` is the most rows at once."""
        self.sizes = np.array(sizes, np.int64)
        self.widths = -(-self.sizes[1:] // 16) * 16
        self.blocks = -(-mu // trees.LEAVES)
        self.samples = self.blocks * trees.LEAVES
        self.places = _ends(self.samples * self.widths)
        self.inside = _ends(self.samples * (self.sizes[1:-1] + 1))
        self.transposed = _ends(np.concatenate([[0], self.widths[:-1] * self.widths[1:]]))
        self.floats = int(self.widths.sum())
        self.groups = -(-self.blocks // trees.GROUP)
        self.tables = _tables(trees.GROUP)
        # In rows of the upper layers every block counts as active: one byte a group and row.
        bits = np.full((self.groups, tall), 2**trees.GROUP - 1, np.uint8)
        bits[-1] = 2 ** (self.blocks - trees.GROUP * (self.groups - 1)) - 1
        self.every = bits

    def offsets(self, strides: Integers) -> Integers:
        """Return where each layer's parameters begin if its rows lie `strides` apart; the end last."""
        return _ends((self.sizes[:-1] + 1) * strides)
