"""The state of a simulation whose clients hold work in hand, for fredsim.kernels.sweep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.shelf import Limits, array_on, mapped, rest
from fredsim.data.datasets import Split
from fredsim.jit.team import Team, address, pack
from fredsim.kernels.data import cuts, sparse
from fredsim.kernels.shape import Shape
from fredsim.kernels.trees import specialised
from fredsim.kernels.update import compile_rule
from fredsim.numerics.arrays import LINE, MARGIN, aligned
from fredsim.numerics.rules import Rule

__all__ = ["WorkInHand"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

#: What one window keeps beside the parameters should stay in the second level of cache.
WINDOW_BYTES = 2**19
#: Events of one window; few windows of different clients are longer.
MOST = 64
#: How many stretches the first layer's rows are swept in. Fewer cost less for each event, more keep a stretch closer.
CHUNKS = 4


class WorkInHand:
    """Parameters and state in strips of the layers' rows, and the slots of the work in hand."""

    def __init__(
        self,
        team: Team,
        sizes: Sequence[int],
        split: Split,
        mu: int,
        rule: Rule,
        params: Array,
        arrays: Sequence[Array],
        slots: int,
        limits: Limits,
    ) -> None:
        """Lay out `params` (P,) and the rule's state `arrays`, (P,) each, and `slots` places for work."""
        self._team, self._data, self._mu = team, sparse(split), mu
        self._kernel = specialised("sweep", mu)
        threads = team.size
        width = -(-int(sizes[1]) // 16)
        self._bounds = 16 * (width * np.arange(threads + 1) // threads)
        self._chunk = -(-(int(sizes[0]) + 1) // CHUNKS)
        self._cuts = cuts(split, self._chunk)
        most = max(self._chunk, self._kernel.PIECE)  # rows at once
        self._shape = shape = Shape(sizes, mu, self._kernel, most)
        # The first layer's rows lie in strips; the others' are padded, and follow each other.
        self._offsets = shape.offsets(np.where(np.arange(len(shape.widths)) > 0, shape.widths, 0))
        tall, upper = int(shape.sizes[0]) + 1, int(self._offsets[-1])
        each = 4 * (tall * shape.samples + mu * shape.widths[0] + upper + shape.transposed[-1])
        room = min(limits.window or int(max(1, WINDOW_BYTES // each)), MOST)

        below = tall * int(shape.widths[0])
        self._below = [aligned(below + MARGIN) for _ in range(1 + len(arrays))]
        self._versions = [aligned(upper + MARGIN) for _ in range(room + 1)]
        self._states = [aligned(upper + MARGIN) for _ in arrays]
        self._tables = np.empty((room + 2, 2 + len(arrays)), np.int64)
        for v, theta in enumerate(self._versions):
            following = self._versions[(v + 1) % len(self._versions)]
            self._tables[v] = [address(array) for array in (theta, following, *self._states)]
        self._tables[-1] = [address(array) for array in (self._below[0], *self._below)]
        self._version = 0
        for inside, outside in self._views(params, arrays):
            inside[...] = outside

        self._room = room
        #: Cycles of each thread: gradient and update, forward and error passes, laying out inputs, waiting.
        self.cycles = np.zeros((threads, 4), np.int64)
        lengths = mu, mu, int(shape.places[-1]), int(shape.inside[-1])
        kinds = np.int32, np.float32, np.float32, np.float32
        kept = [((slots, length), kind) for length, kind in zip(lengths, kinds, strict=True)]
        #: What one work in hand takes, in bytes.
        self.each = 4 * sum(lengths)
        #: What the work in hand takes, in bytes; beyond `memory` it lies in a file.
        self.bytes = 4 * sum(math.prod(size) for size, _ in kept)
        spills = limits.memory is not None and self.bytes > limits.memory
        self._file = mapped(limits.folder, self.bytes + 4 * LINE) if spills else None
        if self._file is None:
            self._held = tuple(aligned(*size, dtype=dtype) for size, dtype in kept)
        else:
            begins = np.cumsum([0] + [-(-4 * math.prod(size) // LINE) * LINE for size, _ in kept])
            self._held = tuple(
                array_on(self._file, size, dtype, int(at)) for at, (size, dtype) in zip(begins, kept, strict=False)
            )
        self._space = (
            aligned(threads * room * tall * shape.samples),
            np.zeros(threads * room * tall * shape.groups, np.uint8),
            aligned(room * mu * int(shape.widths[0]) + MARGIN),
            aligned(room, int(shape.transposed[-1])),
        )
        data, chunks = self._data, self._cuts.shape[1] - 1
        visit = bool(arrays) or not rule.zero_keeps
        self._numbers = len(sizes) - 1, mu, room, room + 1
        self._settings = self._chunk, chunks, compile_rule(rule).address, int(visit), 2 + len(arrays)
        self._arrays = (
            shape.sizes, shape.widths, self._offsets, shape.places, shape.inside, shape.transposed, *shape.tables,
            self._bounds, self._tables, data.first, data.column, data.value, data.labels, self._cuts,
        )  # fmt: skip
        floats = MARGIN * 66 + self._kernel.LEAVES * shape.floats + most * int(shape.widths.max()) + 2 * MARGIN
        scratch, tickets = aligned(threads, floats), np.zeros(1, np.int64)
        self._scratch = shape.every, shape.every.shape[1], scratch, scratch.shape[1], tickets

    def advance(
        self, arriving: Integers, target: Integers, source: Integers, rows: NDArray[np.int32], coefficients: Array
    ) -> tuple[Array, int]:
        """Process n events, as fredsim.kernels.sweep says.

        Returns the losses (n, µ) of what arrived, and the first event after which a parameter is not finite, else n.
        """
        n = len(arriving)
        losses = aligned(n, self._mu)
        bad = np.full(self._team.size, n, np.int64)
        self._team.run(
            self._kernel.advance,
            pack(
                *self._numbers[:2], n, *self._numbers[2:], self._version, *self._settings, coefficients.strides[0],
                *self._arrays, arriving, target, source, rows, coefficients, losses, *self._held, *self._space,
                bad, self.cycles, *self._scratch,
            ),
        )  # fmt: skip
        self._version = (self._version + int(np.count_nonzero(arriving >= 0))) % len(self._versions)
        if self._file is not None:
            rest(self._file)
        return losses, int(bad.min())

    @property
    def work(self) -> dict[str, NDArray[Any]]:
        """The work in hand, by what it is: arrays of a row a slot, to be read and written."""
        return dict(zip(("samples", "losses", "errors", "activations"), self._held, strict=True))

    def shares(self) -> dict[str, float]:
        """Return the shares of all threads' time in kernels."""
        total = self.cycles.sum(axis=0) / max(1, self.cycles.sum())
        return dict(zip(("gradient and update", "forward and error", "inputs", "waiting"), total.tolist(), strict=True))

    def give(self, params: Array, arrays: Sequence[Array]) -> None:
        """Write parameters and state to flat arrays (P,)."""
        for inside, outside in self._views(params, arrays):
            outside[...] = inside

    def _views(self, params: Array, arrays: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
        """Yield every element twice: where it stands here, and in the flat arrays."""
        for flat, below, upper in zip(
            (params, *arrays), self._below, (self._versions[self._version], *self._states), strict=True
        ):
            at = 0
            for layer, stride in enumerate(self._shape.widths):
                rows, width = int(self._shape.sizes[layer]) + 1, int(self._shape.sizes[layer + 1])
                outside = flat[at : at + rows * width].reshape(rows, width)
                at += rows * width
                if layer > 0:
                    offset = self._offsets[layer]
                    yield upper[offset : offset + rows * stride].reshape(rows, stride)[:, :width], outside
                    continue
                for low, high in itertools.pairwise(self._bounds):
                    here = outside[:, low:high]
                    yield below[rows * low : rows * high].reshape(rows, high - low)[:, : here.shape[1]], here
