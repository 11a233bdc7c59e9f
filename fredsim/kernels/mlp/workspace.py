"""Sizes and offsets of the kernels' workspace, for one network and one size of minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.kernel import Fields
from fredsim.jit.pointers import floats, int64s, uint8s
from fredsim.numerics.arrays import MARGIN, Integers, aligned

__all__ = ["GROUP", "MAX_LANES", "NETWORK", "ROWS_TOGETHER", "SCRATCH", "TABLES", "WorkspaceLayout", "block_size"]

GROUP = 8  # the blocks of a group: one byte says which of them are active in a row (fredsim.kernels.mlp.trees)
MAX_LANES = 112  # the most columns of a gradient that are summed together
ROWS_TOGETHER = 32  # rows that are summed over one group of blocks before the next group is read

#: The network as kernels read it: layer l's parameters begin at offsets[l], and their rows are strides[l] floats apart;
#: the other fields are those of WorkspaceLayout.
NETWORK = Fields(
    layers=int, sizes=int64s, strides=int64s, offsets=int64s, error_offsets=int64s, activation_offsets=int64s,
    transposed_offsets=int64s,
)  # fmt: skip
#: Tables by the pattern of four blocks' activity (see `_tables`), and `all_active` (groups, `stride`), bytes of rows
#: in which every block is active.
TABLES = Fields(counts=uint8s, blocks=uint8s, all_active=uint8s, stride=int)
#: Each thread's workspace, `stride` floats apart in `memory`. It begins with the stack of waiting sums; `hidden` and
#: `rows` are where in it activations of samples and rows of a gradient begin.
SCRATCH = Fields(memory=floats, stride=int, hidden=int, rows=int)


def _offsets(lengths: Integers) -> Integers:
    """Return where consecutive parts of these lengths begin, and the end of the last."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def block_size(mu: int) -> int:
    """Return how many samples a block of a minibatch of µ has: 1, 4 or 8."""
    return 1 if mu == 1 else 4 if mu <= 4 else 8


@cache
def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return for each pattern of up to three active blocks of four: how many there are, and which."""
    counts, which = np.zeros(16, np.uint8), np.zeros((16, 3), np.uint8)
    for pattern in range(13):
        blocks = [b for b in range(4) if pattern >> b & 1]
        counts[pattern], which[pattern, : len(blocks)] = len(blocks), blocks
    return counts, which


class WorkspaceLayout:
    """Sizes and offsets, int64 arrays by layer, in elements; arrays of offsets have the end as their last element.

    Attributes:
        sizes: the numbers of inputs, of each hidden layer's units, and of classes.
        widths: the number of each layer's outputs, padded to whole vectors; `sample_floats` is their sum.
        blocks: how many blocks a minibatch has; `groups`: how many groups these form; `padded_samples`: how many
            samples, at least µ, fill the blocks.
        error_offsets: where each layer's errors begin within those of a minibatch.
        activation_offsets: where the inputs of each layer above the first begin, in blocks.
        transposed_offsets: where each layer's transposed weights begin; the first layer has none.
        rows: the most rows of a gradient at once.
        tables: TABLES.

    """

    def __init__(self, sizes: Sequence[int], mu: int, block: int, rows: int) -> None:
        """Compute the layout for minibatches of µ in blocks of `block`, and at most `rows` gradient rows at once."""
        self.sizes, self.rows = np.array(sizes, np.int64), rows
        self.widths = -(-self.sizes[1:] // 16) * 16
        self.blocks = -(-mu // block)
        self.padded_samples = self.blocks * block
        self.error_offsets = _offsets(self.padded_samples * self.widths)
        self.activation_offsets = _offsets(self.padded_samples * (self.sizes[1:-1] + 1))
        self.transposed_offsets = _offsets(np.concatenate([[0], self.widths[:-1] * self.widths[1:]]))
        self.sample_floats = int(self.widths.sum())
        self.groups = -(-self.blocks // GROUP)
        # In the layers above the first every block counts as active.
        active = np.full((self.groups, rows), 2**GROUP - 1, np.uint8)
        active[-1] = 2 ** (self.blocks - GROUP * (self.groups - 1)) - 1
        counts, blocks = _tables()
        self.tables = TABLES.pack(counts=counts, blocks=blocks, all_active=active, stride=rows)

    def offsets(self, strides: Integers) -> Integers:
        """Return where each layer's parameters begin if its rows are `strides` apart, and the end."""
        return _offsets((self.sizes[:-1] + 1) * strides)

    def scratch(self, threads: int, samples: int = 0) -> Any:
        """Return SCRATCH for so many threads, with space for the activations of so many samples each."""
        hidden = MAX_LANES * ROWS_TOGETHER * (self.groups - 1).bit_length()
        rows = hidden + samples * self.sample_floats + MARGIN
        stride = rows + self.rows * int(self.widths.max()) + MARGIN
        return SCRATCH.pack(memory=aligned(threads, stride), stride=stride, hidden=hidden, rows=rows)

    def network(self, strides: Integers, offsets: Integers) -> Any:
        """Return NETWORK for parameters whose rows are `strides` apart and begin, layer by layer, at `offsets`."""
        return NETWORK.pack(
            layers=len(self.widths), sizes=self.sizes, strides=strides, offsets=offsets,
            error_offsets=self.error_offsets, activation_offsets=self.activation_offsets,
            transposed_offsets=self.transposed_offsets,
        )  # fmt: skip
