"""The executor of the path `hand`: keeps the arguments of the kernel fredsim.kernels.mlp.hand.advance, and calls it.

It has copies of the parameters and the rule's state, in the order in which the kernel reads them, and the clients'
pending passes (fredsim.kernels.mlp.pending).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits
from fredsim.jit.team import addresses
from fredsim.kernels.arrays.steady import SteadyRows
from fredsim.kernels.arrays.update import compile_rule
from fredsim.kernels.mlp.pending import Minibatches, PendingPasses
from fredsim.kernels.mlp.sparse_rows import pack_split, rows_in_cache
from fredsim.kernels.mlp.specialisation import specialise
from fredsim.kernels.mlp.workspace import block_size
from fredsim.numerics.arrays import MARGIN, Array, Integers, aligned
from fredsim.numerics.rules import Rule

__all__ = ["NumbaHandExecutor"]

#: The bytes that one window keeps besides the parameters; they should stay in the L2 cache.
WINDOW_BYTES = 2**19
#: The most bytes of the inputs of a window, which each thread lays out, whatever `window` the run asks for.
MOST_BYTES = 2**26
#: The most events of one window; windows of different clients are rarely longer.
MOST_EVENTS = 64
#: The least number of chunks of the first layer's rows in a sweep: each costs something for every event.
CHUNKS = 4


class NumbaHandExecutor:
    """Processes events on a team of threads: fredsim.compute.engines.HandExecutor."""

    def __init__(
        self, of: Minibatches, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits
    ) -> None:
        """Copy `params` (P,) and the rule's state `arrays`, (P,) each; allocate `slots` slots for pending passes."""
        self._team, self._mu = team, mu = of.team, of.mu
        self._layers, self._kernels = of.layers, specialise("hand", mu, of.split)
        sizes = of.layers.sizes
        width = -(-int(sizes[1]) // 16)
        self._bounds = 16 * (width * np.arange(team.size + 1) // team.size)
        chunk = min(-(-(int(sizes[0]) + 1) // CHUNKS), rows_in_cache(of.split, int(np.diff(self._bounds).max())))
        most = max(chunk, self._kernels.ROWS_AT_ONCE)  # rows of a gradient at once
        self._layout = layout = of.layout(most)
        # The first layer is stored as one strip of columns per thread; the others' padded rows follow each other.
        self._offsets = layout.offsets(np.where(np.arange(len(layout.widths)) > 0, layout.widths, 0))
        rows, upper = int(layout.sizes[0]) + 1, int(self._offsets[-1])
        each = 4 * (rows * layout.padded_samples + mu * layout.widths[0] + upper + layout.transposed_offsets[-1])
        room = max(1, MOST_BYTES // (4 * team.size * rows * layout.padded_samples))
        capacity = min(limits.window or int(max(1, WINDOW_BYTES // each)), room, MOST_EVENTS)
        self._version = 0
        self._below = [aligned(rows * int(layout.widths[0]) + MARGIN) for _ in range(1 + len(arrays))]
        self._versions = [aligned(upper + MARGIN) for _ in range(capacity + 1)]
        self._states = [aligned(upper + MARGIN) for _ in arrays]
        for inside, outside in self._views(params, arrays):
            inside[...] = outside

        self._passes = PendingPasses(layout, mu, slots, limits)
        #: See HandExecutor.
        self.slot_bytes, self.pending = self._passes.slot_bytes, self._passes.arrays
        #: The ticks that each thread has spent on each of ACTIVITIES.
        self.ticks = np.zeros((team.size, len(self._kernels.ACTIVITIES)), np.int64)
        pending = self.pending
        self._steady, self._arrived = SteadyRows(rule, team.size, rows), 0
        self._arguments = self._kernels.advance.pack(
            net=layout.network(layout.widths, self._offsets), data=pack_split(of.split, chunk), tables=layout.tables,
            events=0, mu=mu, rule=compile_rule(rule).address, apply_zeros=bool(arrays) or not rule.zero_keeps,
            capacity=capacity, versions=capacity + 1, array_count=2 + len(arrays), addresses=self._addresses(),
            bounds=self._bounds, pending_rows=pending["samples"], pending_losses=pending["losses"],
            pending_errors=pending["errors"], pending_activations=pending["activations"],
            factors=aligned(team.size * capacity * rows * layout.padded_samples),
            active=np.zeros(team.size * capacity * rows * layout.groups, np.uint8),
            z=aligned(capacity * mu * int(layout.widths[0]) + MARGIN),
            transposed=aligned(capacity, int(layout.transposed_offsets[-1])),
            scratch=layout.scratch(team.size, block_size(mu)), steady=self._steady.flags, may_skip=0, arrived=0,
            tickets=np.zeros(1, np.int64), ticks=self.ticks,
        )  # fmt: skip

    def _addresses(self) -> Integers:
        """Return the addresses (versions + 1, arrays) of the rule's arrays; see fredsim.kernels.mlp.hand.advance."""
        following = [*self._versions[1:], self._versions[0]]
        tables = [addresses([*pair, *self._states]) for pair in zip(self._versions, following, strict=True)]
        return np.array([*tables, addresses([self._below[0], *self._below])])

    def advance(
        self, arriving: Integers, target: Integers, source: Integers, rows: NDArray[np.int32], coefficients: Array
    ) -> tuple[Array, int]:
        """Process n events; see HandExecutor.

        Returns the losses (n, µ) of the arrivals, and the first event after which a parameter is not finite, else n.
        """
        n = len(arriving)
        losses = aligned(n, self._mu)
        diverged_at = np.full(self._team.size, n, np.int64)
        self._arguments.set(
            events=self._kernels.EVENTS.pack(
                count=n, version=self._version, arriving=arriving, target=target, source=source, rows=rows,
                coefficients=coefficients, coefficients_stride=coefficients.strides[0], losses=losses,
                diverged_at=diverged_at,
            )
        )  # fmt: skip
        self._arguments.set(may_skip=self._steady.may_skip(coefficients[arriving >= 0]), arrived=self._arrived)
        self._team.run(self._kernels.advance, self._arguments)
        self._arrived += n
        self._version = (self._version + int(np.count_nonzero(arriving >= 0))) % len(self._versions)
        self._passes.page_out()
        return losses, int(diverged_at.min())

    def shares(self) -> dict[str, float]:
        """Return which share of all threads' time each of ACTIVITIES took."""
        total = self.ticks.sum(axis=0) / max(1, self.ticks.sum())
        return dict(zip(self._kernels.ACTIVITIES, total.tolist(), strict=True))

    def copy_to(self, params: Array, arrays: Sequence[Array]) -> None:
        """Write parameters and state to flat arrays (P,)."""
        for inside, outside in self._views(params, arrays):
            outside[...] = inside

    def _views(self, params: Array, arrays: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
        """Yield pairs of views of the same elements: of the copies kept here, and of the flat arrays."""
        for flat, below, upper in zip(
            (params, *arrays), self._below, (self._versions[self._version], *self._states), strict=True
        ):
            for layer, (weight, bias) in enumerate(self._layers.split(flat)):
                rows, begin, whole = len(weight) + 1, int(self._offsets[layer]), (0, int(self._layout.widths[layer]))
                for low, high in [whole] if layer > 0 else itertools.pairwise(self._bounds):
                    memory = upper[begin:] if layer > 0 else below[rows * low :]
                    inside = memory[: rows * (high - low)].reshape(rows, high - low)[:, : len(bias[low:high])]
                    yield inside[:-1], weight[:, low:high]
                    yield inside[-1], bias[low:high]
