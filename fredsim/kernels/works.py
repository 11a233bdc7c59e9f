"""Works: what the passes of clients' minibatches leave until the clients arrive; and the gradients formed from them.

A work is what a client does between two pushes. Here it is one row, a slot, of several arrays: the samples, their
losses, errors and activations.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits, array_in, mapped_file, page_out
from fredsim.data.datasets import Split
from fredsim.jit.cache import Compiled
from fredsim.jit.kernel import Arguments
from fredsim.jit.team import ENOUGH, Team, address
from fredsim.kernels.data import data_of
from fredsim.kernels.trees import specialised
from fredsim.kernels.workspace import WorkspaceLayout, block_size
from fredsim.numerics.arrays import LINE, MARGIN, aligned

__all__ = ["NumbaGradientMachine", "WorkMachine", "Works", "pack_passes", "work_bytes"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

#: The bytes of work space for works that are begun at once.
TOGETHER_BYTES = 2**22
#: Below this many multiply-adds of a dense gradient, one thread does it all, because what other threads write is not in
#: the cache of the thread that runs the server.
NEAR = 2**23
#: Works in a file are paged out whenever this many bytes of them have been used.
TOUCHED_BYTES = 2**22


def _kinds(layout: WorkspaceLayout, mu: int) -> dict[str, tuple[int, type[np.generic]]]:
    """Return the length and the type, of four bytes, of each array of a work."""
    return {
        "samples": (mu, np.int32),
        "losses": (mu, np.float32),
        "errors": (int(layout.error_offsets[-1]), np.float32),
        "activations": (int(layout.activation_offsets[-1]), np.float32),
    }


def work_bytes(layout: WorkspaceLayout, mu: int) -> int:
    """Return how many bytes a work takes."""
    return 4 * sum(length for length, _ in _kinds(layout, mu).values())


class Works:
    """The arrays of all works, by name, one row per slot, zero at first; in a file if they exceed `memory`."""

    def __init__(self, layout: WorkspaceLayout, mu: int, slots: int, limits: Limits) -> None:
        kinds = _kinds(layout, mu)
        self.each = work_bytes(layout, mu)
        spills = limits.memory is not None and slots * self.each > limits.memory
        self._file = mapped_file(limits.folder, slots * self.each + 4 * LINE) if spills else None
        self.arrays: dict[str, NDArray[Any]] = {}
        at = 0
        for name, (length, dtype) in kinds.items():
            size = slots, length
            self.arrays[name] = (
                aligned(*size, dtype=dtype) if self._file is None else array_in(self._file, size, dtype, at)
            )
            at += -(-4 * slots * length // LINE) * LINE

    def page_out(self) -> None:
        """Free the memory of the arrays if they are in a file."""
        if self._file is not None:
            page_out(self._file)


def pack_passes(
    layout: WorkspaceLayout,
    split: Split,
    mu: int,
    chunk: int,
    threads: int,
    batches: int,
    **arrays: Any,
) -> Arguments:
    """Return PASSES of fredsim.kernels.gradient with these `arrays`, and work space for `batches` minibatches of µ."""
    inputs = int(layout.sizes[0]) + 1
    scratch = aligned(threads, layout.stack + MARGIN + chunk * int(layout.widths.max()) + MARGIN)
    packed: Arguments = specialised("gradient", mu, split).PASSES.pack(
        net=layout.network(layout.sizes[1:], layout.offsets(layout.sizes[1:])), data=data_of(split, chunk),
        tables=layout.tables, mu=mu, batches=0, rows=0, held=0,
        factors=aligned(batches * layout.padded_samples * inputs),
        active=np.empty(batches * layout.groups * inputs, np.uint8),
        z=aligned(batches * layout.padded_samples * layout.sample_floats + MARGIN),
        transposed=aligned(batches, int(layout.transposed_offsets[-1])), scratch=scratch,
        scratch_stride=scratch.shape[1], **arrays,
    )  # fmt: skip
    return packed


class WorkMachine:
    """Base of the machines that begin works: does the passes of minibatches, and keeps what they leave in slots."""

    def __init__(
        self, team: Team, layout: WorkspaceLayout, split: Split, mu: int, chunk: int, slots: int, limits: Limits,
        together: int = 1,
    ) -> None:  # fmt: skip
        """Allocate `slots` works, of which at least `together` are begun, or arrive, at once."""
        self._team, self._mu, self._kernels = team, mu, specialised("gradient", mu, split)
        self._works = Works(layout, mu, slots, limits)
        #: See GradientMachine.
        self.each, self.work = self._works.each, self._works.arrays
        floats = layout.padded_samples * (layout.sample_floats + int(layout.sizes[0]) + 1)
        together = max(together, TOGETHER_BYTES // (4 * (floats + int(layout.transposed_offsets[-1]))))
        self._slots, self._held, self._rows = (np.zeros((together, n), np.int64) for n in (1, 1, mu))
        self._passes = pack_passes(
            layout, split, mu, chunk, team.size, together, slots=self._slots, losses=self.work["losses"],
            errors=self.work["errors"], activations=self.work["activations"], out=0,
        )  # fmt: skip
        self._passes.set(rows=self._rows, held=self._held)
        self._size = int(layout.offsets(layout.sizes[1:])[-1])

    def _begin(self, slots: Integers, held: Integers, rows: NDArray[Any]) -> None:
        """Begin the works of samples `rows` (n, µ) from parameters at the addresses `held` (n,)."""
        together = len(self._slots)
        for begin in range(0, len(slots), together):
            some = slice(begin, begin + together)
            batches = self._choose(slots[some], rows[some])
            self._held[:batches, 0] = held[some]
            self._run(self._kernels.begin_works, batches)
            self.work["samples"][slots[some]] = rows[some]

    def _choose(self, slots: Integers | int, rows: NDArray[Any]) -> int:
        """Set the slots and samples for the next kernel call; return how many minibatches there are."""
        batches = rows.size // self._mu
        self._slots[:batches, 0], self._rows[:batches] = slots, rows
        self._passes.batches = batches
        return batches

    def _run(self, kernel: Compiled, batches: int) -> None:
        self._team.run(kernel, self._passes, batches * self._mu * self._size)


class NumbaGradientMachine(WorkMachine):
    """Begins works, and forms their gradients one by one: fredsim.compute.engines.GradientMachine."""

    def __init__(
        self, team: Team, sizes: Sequence[int], split: Split, mu: int, chunk: int, slots: int, limits: Limits
    ) -> None:
        super().__init__(team, WorkspaceLayout(sizes, mu, block_size(mu), chunk), split, mu, chunk, slots, limits)
        self._gradient, self._copy = aligned(self._size), aligned(self._size + MARGIN)
        self._passes.set(out=np.array([address(self._gradient)]))
        self._touched = 0  # the bytes of works that were used since the file was last paged out

    def begin(self, slots: Integers, params: Array, rows: NDArray[np.int32]) -> None:
        """Begin works from the same parameters; see GradientMachine."""
        params = with_margin(params, self._copy)
        self._begin(slots, np.full(len(slots), address(params)), rows)

    def gradient(self, slot: int) -> tuple[Array, Array]:
        """Return the gradient and the losses of a work; see GradientMachine."""
        self._run(self._kernels.finish_work, self._choose(slot, self.work["samples"][slot]))
        return self._gradient, self.work["losses"][slot]

    def _run(self, kernel: Compiled, batches: int) -> None:
        self._team.run(kernel, self._passes, 0 if batches * self._mu * self._size < NEAR else ENOUGH)
        self._touched += batches * self.each
        if self._touched > TOUCHED_BYTES:
            self._works.page_out()
            self._touched = 0


def with_margin(params: Array, spare: Array) -> Array:
    """Return parameters (P,) behind which MARGIN floats can be read: the same array, or `spare` with a copy.

    Reading beyond an array is safe within a page of memory.
    """
    params = np.ascontiguousarray(params)
    if -(address(params) + params.nbytes) % mmap.PAGESIZE < 4 * MARGIN:
        spare[: len(params)] = params
        return spare
    return params
