"""Where things stand in the kernels' work space, for one network and one size of minibatch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["LINE", "MARGIN", "Shape", "aligned"]

Integers = NDArray[np.int64]

#: Floats that must be readable and writable behind everything that a kernel loads and stores whole vectors from.
MARGIN = 64
LINE = 64  # bytes of a cache line


def aligned(*shape: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return zeros that begin at a cache line: a vector across two lines takes twice as long to load."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.zeros(size + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + size].view(dtype).reshape(shape)


def _ends(lengths: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


class Shape:
    """Sizes and offsets, int64 arrays by layer.

    Attributes:
        sizes: inputs, hidden …, classes.
        widths: of each layer's rows, padded to whole vectors.
        blocks: of a minibatch's samples; `samples` is their room, at least µ.
        places: where each layer's errors stand among a minibatch's; the end last.
        inside: where what enters each layer above the first stands in blocks, for layer 1 first.
        transposed: where each layer's transposed weights stand; the first has none.
        full: the lists of fredsim.kernels.trees for rows in which every block is active: lists, found, merges.

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
        self.widest = int(self.sizes[1:].max())
        # A block closes as many open nodes as its number has trailing ones; the last of all closes the rest.
        closes = [((b + 1) & ~b).bit_length() - 1 for b in range(self.blocks)]
        closes[-1] = (self.blocks - 1).bit_count()
        self.full = (
            np.arange(tall + 1, dtype=np.int64) * self.blocks,
            np.tile(np.arange(self.blocks, dtype=np.int64), tall),
            np.tile(np.array(closes, np.int64), tall),
        )

    def offsets(self, strides: Integers) -> Integers:
        """Return where each layer's parameters begin if its rows lie `strides` apart; the end last."""
        return _ends((self.sizes[:-1] + 1) * strides)
