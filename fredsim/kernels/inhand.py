"""The state of a simulation whose clients hold work in hand, for fredsim.kernels.sweep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.datasets import Split
from fredsim.kernels.data import cuts, sparse
from fredsim.kernels.team import Team
from fredsim.kernels.trees import specialised
from fredsim.kernels.update import CompiledRule, address

__all__ = ["WorkInHand"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

#: What one window keeps beside the parameters should stay in the second level of cache.
WINDOW_BYTES = 2**19
#: A strip of rows, its state and all, should stay in the first.
CHUNK_BYTES = 24 * 2**10


class WorkInHand:
    """The state of a simulation in which clients hold no parameters: strips of the layers' rows, and the slots."""

    def __init__(
        self,
        team: Team,
        sizes: Sequence[int],
        split: Split,
        mu: int,
        rule: CompiledRule,
        params: Array,
        arrays: Sequence[Array],
        slots: int,
        window: int | None,
    ) -> None:
        """Lay out `params` (P,) and the rule's state `arrays`, (P,) each; `slots` works can be in hand,
        and `window` events, as many as fit the cache by default, are taken together.
        """
        self._team, self._data = team, sparse(split)
        self._sizes = np.array(sizes, np.int64)
        self._mu = mu
        self._rule = rule
        self._kernel = specialised("sweep", mu)
        sizes, threads = self._sizes, team.size
        widths = -(-sizes[1:] // 16) * 16  # of each layer's rows
        vectors = int(widths[0]) // 16
        self._bounds = 16 * (vectors * np.arange(threads + 1) // threads)
        blocks = -(-mu // self._kernel.LEAVES)
        samples = blocks * self._kernel.LEAVES
        rows = sizes[:-1] + 1
        self._offsets = np.concatenate([[0, 0], np.cumsum(rows[1:] * widths[1:])])
        upper, below = int(self._offsets[-1]), int(rows[0] * widths[0])
        margin = 16 * int(widths.max()) + 64
        step = int(rows[0]) * self._kernel.LEAVES
        turned = int((widths[:-1] * widths[1:]).sum())
        each = 4 * (blocks * step + mu * int(widths[0]) + upper + turned)
        self.room = window or max(1, min(64, WINDOW_BYTES // each))
        width = int(self._bounds[-1] // threads) or 16
        self._chunk = max(8, min(112, CHUNK_BYTES // (4 * width * (1 + len(arrays)))))
        self._cuts = cuts(split, self._chunk)

        self._below = [np.zeros(below + margin, np.float32) for _ in range(1 + len(arrays))]
        self._versions = [np.zeros(upper + margin, np.float32) for _ in range(self.room + 1)]
        self._states = [np.zeros(upper + margin, np.float32) for _ in arrays]
        self._tables = np.empty((self.room + 2, 2 + len(arrays)), np.int64)
        for v, theta in enumerate(self._versions):
            following = self._versions[(v + 1) % len(self._versions)]
            self._tables[v] = [address(a) for a in (theta, following, *self._states)]
        self._tables[-1] = [address(a) for a in (self._below[0], *self._below)]
        self._version = 0
        self._layout = [(int(rows[0]), int(sizes[1]), 0), *zip(rows[1:], sizes[2:], self._offsets[1:], strict=False)]
        self.take(params, arrays)

        self._held_rows = np.zeros((slots, mu), np.int32)
        self._held_losses = np.zeros((slots, mu), np.float32)
        self._held_errors = np.zeros((slots, samples * int(widths.sum())), np.float32)
        self._held_activations = np.zeros(
            (slots, blocks * self._kernel.LEAVES * int((sizes[1:-1] + 1).sum())), np.float32
        )
        self._factors = np.zeros(self.room * blocks * step, np.float32)
        self._active = np.zeros(self.room * blocks * int(rows[0]), np.uint8)
        self._z = np.zeros(self.room * mu * int(widths[0]) + 64, np.float32)
        self._turned = np.zeros((self.room, turned + 64), np.float32)

    def advance(
        self,
        arriving: Integers,
        target: Integers,
        source: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process events; return the losses (n, µ) of what arrived, and the first event that is not finite, or n."""
        n = len(arriving)
        losses = np.empty((n, self._mu), np.float32)
        bad = np.full(self._team.size, n, np.int64)
        data = self._data
        self._team.run(
            self._kernel.advance, self._sizes, self._mu, self._chunk, self.room, self._bounds, self._offsets,
            self._rule.address, not self._rule.rule.zero_keeps or bool(self._states), self._tables, self._version,
            data.first, data.column, data.value, data.labels, self._cuts, arriving, target, source, rows, coefficients,
            losses, self._held_rows, self._held_losses, self._held_errors, self._held_activations, self._factors,
            self._active, self._z, self._turned, bad,
        )  # fmt: skip
        self._version = (self._version + int(np.count_nonzero(arriving >= 0))) % len(self._versions)
        return losses, int(bad.min())

    def take(self, params: Array, arrays: Sequence[Array]) -> None:
        """Take parameters and state from flat arrays (P,)."""
        for flat, below, upper in self._pairs(params, arrays):
            for inside, outside in self._views(flat, below, upper):
                inside[...] = outside

    def give(self, params: Array, arrays: Sequence[Array]) -> None:
        """Write parameters and state to flat arrays (P,)."""
        for flat, below, upper in self._pairs(params, arrays):
            for inside, outside in self._views(flat, below, upper):
                outside[...] = inside

    def _pairs(self, params, arrays):
        return zip((params, *arrays), self._below, (self._versions[self._version], *self._states), strict=False)

    def _views(self, flat, below, upper):
        """Yield the same elements inside and in the flat array."""
        at = 0
        for layer, (rows, width, offset) in enumerate(self._layout):
            outside = flat[at : at + rows * width].reshape(rows, width)
            at += rows * width
            if layer == 0:
                for low, high in itertools.pairwise(self._bounds):
                    strip = below[rows * low : rows * high].reshape(rows, high - low)
                    here = outside[:, low:high]
                    yield strip[:, : here.shape[1]], here
            else:
                stride = -(-width // 16) * 16
                yield upper[offset : offset + rows * stride].reshape(rows, stride)[:, :width], outside
