"""The state of a simulation whose clients hold work in hand, for fredsim.kernels.sweep."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.shelf import Limits, array_on, mapped, rest
from fredsim.data.datasets import Split
from fredsim.jit.team import Team, addresses
from fredsim.kernels.data import data_of
from fredsim.kernels.shape import Shape, leaves_of
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
        self._team, self._mu = team, mu
        self._kernels = specialised("sweep", mu)
        width = -(-int(sizes[1]) // 16)
        self._bounds = 16 * (width * np.arange(team.size + 1) // team.size)
        chunk = -(-(int(sizes[0]) + 1) // CHUNKS)
        most = max(chunk, self._kernels.PIECE)  # rows at once
        self._shape = shape = Shape(sizes, mu, leaves_of(mu), most)
        # The first layer's rows lie in strips; the others' are padded, and follow each other.
        self._offsets = shape.offsets(np.where(np.arange(len(shape.widths)) > 0, shape.widths, 0))
        tall, upper = int(shape.sizes[0]) + 1, int(self._offsets[-1])
        each = 4 * (tall * shape.samples + mu * shape.widths[0] + upper + shape.transposed[-1])
        room = min(limits.window or int(max(1, WINDOW_BYTES // each)), MOST)
        self._version = 0
        self._below = [aligned(tall * int(shape.widths[0]) + MARGIN) for _ in range(1 + len(arrays))]
        self._versions = [aligned(upper + MARGIN) for _ in range(room + 1)]
        self._states = [aligned(upper + MARGIN) for _ in arrays]
        for inside, outside in self._views(params, arrays):
            inside[...] = outside

        #: The work in hand, by what it is: arrays of a row a slot, to be read and written.
        self.work = self._room_for(slots, limits)
        #: Cycles of each thread on what SPENT names.
        self.cycles = np.zeros((team.size, len(self._kernels.SPENT)), np.int64)
        floats = MARGIN * 66 + leaves_of(mu) * shape.floats + most * int(shape.widths.max()) + 2 * MARGIN
        scratch = aligned(team.size, floats)
        work = self.work
        self._arguments = self._kernels.advance.pack(
            net=shape.network(shape.widths, self._offsets), data=data_of(split, chunk), tables=shape.tables, events=0,
            mu=mu, rule=compile_rule(rule).address, visit=bool(arrays) or not rule.zero_keeps, room=room,
            versions=room + 1, arrays=2 + len(arrays), addresses=self._addresses(), bounds=self._bounds,
            held_rows=work["samples"], held_losses=work["losses"], held_errors=work["errors"],
            held_activations=work["activations"],
            factors=aligned(team.size * room * tall * shape.samples),
            active=np.zeros(team.size * room * tall * shape.groups, np.uint8),
            z=aligned(room * mu * int(shape.widths[0]) + MARGIN), turned=aligned(room, int(shape.transposed[-1])),
            scratch=scratch, scratch_apart=floats, tickets=np.zeros(1, np.int64), cycles=self.cycles,
        )  # fmt: skip

    def _room_for(self, slots: int, limits: Limits) -> dict[str, NDArray[Any]]:
        """Return room for the work in hand; beyond `memory` it lies in a file."""
        mu, shape = self._mu, self._shape
        kinds = {
            "samples": (mu, np.int32),
            "losses": (mu, np.float32),
            "errors": (int(shape.places[-1]), np.float32),
            "activations": (int(shape.inside[-1]), np.float32),
        }
        #: What one work in hand takes, in bytes, and what all of it takes.
        self.each = 4 * sum(length for length, _ in kinds.values())
        self.bytes = slots * self.each
        spills = limits.memory is not None and self.bytes > limits.memory
        self._file = mapped(limits.folder, self.bytes + 4 * LINE) if spills else None
        work: dict[str, NDArray[Any]] = {}
        at = 0
        for name, (length, dtype) in kinds.items():
            size = slots, length
            work[name] = aligned(*size, dtype=dtype) if self._file is None else array_on(self._file, size, dtype, at)
            at += -(-4 * slots * length // LINE) * LINE
        return work

    def _addresses(self) -> Integers:
        """Return what the rule takes for each version of the upper layers, and, last, for the first layer."""
        following = [*self._versions[1:], self._versions[0]]
        tables = [addresses([*pair, *self._states]) for pair in zip(self._versions, following, strict=True)]
        return np.array([*tables, addresses([self._below[0], *self._below])])

    def advance(
        self, arriving: Integers, target: Integers, source: Integers, rows: NDArray[np.int32], coefficients: Array
    ) -> tuple[Array, int]:
        """Process n events, as fredsim.kernels.sweep says.

        Returns the losses (n, µ) of what arrived, and the first event after which a parameter is not finite, else n.
        """
        n = len(arriving)
        losses = aligned(n, self._mu)
        bad = np.full(self._team.size, n, np.int64)
        self._arguments.give(
            events=self._kernels.EVENTS.pack(
                count=n, version=self._version, arriving=arriving, target=target, source=source, rows=rows,
                coefficients=coefficients, coefficients_apart=coefficients.strides[0], losses=losses, bad=bad,
            )
        )  # fmt: skip
        self._team.run(self._kernels.advance, self._arguments)
        self._version = (self._version + int(np.count_nonzero(arriving >= 0))) % len(self._versions)
        if self._file is not None:
            rest(self._file)
        return losses, int(bad.min())

    def shares(self) -> dict[str, float]:
        """Return the shares of all threads' time in kernels."""
        total = self.cycles.sum(axis=0) / max(1, self.cycles.sum())
        return dict(zip(self._kernels.SPENT, total.tolist(), strict=True))

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
