"""Where things stand in the kernels' work space, for one network and one size of minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.kernel import Fields
from fredsim.jit.pointers import integers, octets

__all__ = ["GROUP", "NETWORK", "TABLES", "Shape", "leaves_of"]

GROUP = 8  # blocks whose activity is told by the bits of one byte

#: The layers as kernels read them: where each one's parameters begin, `strides` from row to row; the rest as in Shape.
NETWORK = Fields(
    layers=int, sizes=integers, strides=integers, offsets=integers, places=integers, inside=integers,
    transposed=integers,
)  # fmt: skip
#: What tells the active blocks of a group from a byte: see `_tables`; `every` as in Shape, its rows `apart`.
TABLES = Fields(counts=octets, found=octets, closes=octets, every=octets, apart=int)

Integers = NDArray[np.int64]


def _ends(lengths: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def leaves_of(mu: int) -> int:
    """Return how many samples a block of a minibatch of µ has: 1, 4 or 8."""
    return 1 if mu == 1 else 4 if mu <= 4 else 8


@cache
def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return for each pattern of active blocks how many there are, which, and how many open nodes each closes.

    A node stays open until the next block would meet it higher up than its left neighbour does. Two blocks meet at the
    height of the highest bit in which their numbers differ; of two such heights that are compared here, the exclusive
    ors can be compared themselves. The last block of a group closes all that is open.
    """
    counts = np.zeros(2**GROUP, np.uint8)
    found, closes = np.zeros((2**GROUP, GROUP), np.uint8), np.zeros((2**GROUP, GROUP), np.uint8)
    for pattern in range(2**GROUP):
        blocks = [b for b in range(GROUP) if pattern >> b & 1]
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
        tables: TABLES, of which `every` is the pattern in which every block is active, uint8 (groups, rows at once).

    """

    def __init__(self, sizes: Sequence[int], mu: int, leaves: int, tall: int) -> None:
        """Lay out minibatches of µ in blocks of so many; `tall` is the most rows at once."""
        self.sizes = np.array(sizes, np.int64)
        self.widths = -(-self.sizes[1:] // 16) * 16
        self.blocks = -(-mu // leaves)
        self.samples = self.blocks * leaves
        self.places = _ends(self.samples * self.widths)
        self.inside = _ends(self.samples * (self.sizes[1:-1] + 1))
        self.transposed = _ends(np.concatenate([[0], self.widths[:-1] * self.widths[1:]]))
        self.floats = int(self.widths.sum())
        self.groups = -(-self.blocks // GROUP)
        # In rows of the upper layers every block counts as active: one byte a group and row.
        bits = np.full((self.groups, tall), 2**GROUP - 1, np.uint8)
        bits[-1] = 2 ** (self.blocks - GROUP * (self.groups - 1)) - 1
        counts, found, closes = _tables()
        self.tables = TABLES.pack(counts=counts, found=found, closes=closes, every=bits, apart=tall)

    def offsets(self, strides: Integers) -> Integers:
        """Return where each layer's parameters begin if its rows lie `strides` apart; the end last."""
        return _ends((self.sizes[:-1] + 1) * strides)

    def network(self, strides: Integers, offsets: Integers) -> Any:
        """Return NETWORK for rows that lie `strides` apart and begin, layer by layer, at `offsets`."""
        return NETWORK.pack(
            layers=len(self.widths), sizes=self.sizes, strides=strides, offsets=offsets, places=self.places,
            inside=self.inside, transposed=self.transposed,
        )  # fmt: skip
