"""Pending passes: what the forward and backward pass of a client's minibatch leave until the client's push arrives.

These are the indices of the samples, their losses, back-propagated errors, and activations. Each of the four is an
array with one row, a slot, per minibatch. The gradient is formed from a slot when the push arrives.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits, array_in, mapped_file, page_out
from fredsim.data.datasets import Split
from fredsim.jit.cache import Compiled
from fredsim.jit.kernel import Arguments
from fredsim.jit.team import Team, address
from fredsim.kernels.mlp.sparse_rows import pack_split
from fredsim.kernels.mlp.specialisation import specialise
from fredsim.kernels.mlp.workspace import WorkspaceLayout, block_size
from fredsim.networks.mlp import DenseLayers
from fredsim.numerics.arrays import LINE, MARGIN, Array, Integers, aligned

__all__ = [
    "Minibatches",
    "NumbaGradientExecutor",
    "PassExecutor",
    "PendingPasses",
    "pack_passes",
    "slot_bytes",
    "together_in_cache",
]

#: The bytes of workspace for minibatches whose passes are done together.
WORKSPACE_BYTES = 2**22
#: Below so many multiply-adds of a dense gradient, one thread forms it, or does its passes, for a server that gets
#: whole gradients: what another thread writes, or has read, is not in the cache of the thread that runs the server.
GRADIENT_ALONE_BELOW, PASSES_ALONE_BELOW = 2**22, 2**23
#: Slots in a file are paged out whenever this many bytes of them have been used.
PAGE_OUT_EVERY = 2**22


def _arrays_of_slot(layout: WorkspaceLayout, mu: int) -> dict[str, tuple[int, type[np.generic]]]:
    """Return the length and the dtype (four bytes each) of a slot's part of each array, by the array's name."""
    return {
        "samples": (mu, np.int32),
        "losses": (mu, np.float32),
        "errors": (int(layout.error_offsets[-1]), np.float32),
        "activations": (int(layout.activation_offsets[-1]), np.float32),
    }


def slot_bytes(layout: WorkspaceLayout, mu: int) -> int:
    """Return how many bytes a slot takes."""
    return 4 * sum(length for length, _ in _arrays_of_slot(layout, mu).values())


class PendingPasses:
    """The slots' `arrays` by name, one row per slot, zero at first; in a file if they exceed `limits.memory` bytes."""

    def __init__(self, layout: WorkspaceLayout, mu: int, slots: int, limits: Limits) -> None:
        self.slot_bytes = slot_bytes(layout, mu)
        spills = limits.memory is not None and slots * self.slot_bytes > limits.memory
        self._file = mapped_file(limits.folder, slots * self.slot_bytes + 4 * LINE) if spills else None
        self.arrays: dict[str, NDArray[Any]] = {}
        at = 0
        for name, (length, dtype) in _arrays_of_slot(layout, mu).items():
            size = slots, length
            self.arrays[name] = (
                aligned(*size, dtype=dtype) if self._file is None else array_in(self._file, size, dtype, at)
            )
            at += -(-4 * slots * length // LINE) * LINE

    def page_out(self) -> None:
        """Free the memory of the arrays if they are in a file."""
        if self._file is not None:
            page_out(self._file)


class Minibatches(NamedTuple):
    """The minibatches of µ samples of a split whose passes a team does, at a network of these layers.

    `chunk` columns of the inputs are multiplied together, and as many rows of a gradient formed together.
    """

    team: Team
    layers: DenseLayers
    split: Split
    mu: int
    chunk: int

    def layout(self, rows: int) -> WorkspaceLayout:
        """Return the layout of the workspace, for at most `rows` rows of a gradient at once."""
        return WorkspaceLayout(self.layers.sizes, self.mu, block_size(self.mu), rows)


def together_in_cache(layout: WorkspaceLayout) -> int:
    """Return for how many minibatches at once, at least one, WORKSPACE_BYTES are workspace enough."""
    floats = layout.padded_samples * (layout.sample_floats + int(layout.sizes[0]) + 1)
    return int(max(1, WORKSPACE_BYTES // (4 * (floats + int(layout.transposed_offsets[-1])))))


def pack_passes(of: Minibatches, batches: int, **arrays: Any) -> Arguments:
    """Return the arguments PASSES of fredsim.kernels.mlp.gradient, with workspace for so many minibatches at once.

    `arrays` are the fields that are not made here: `slots`, `losses`, `errors`, `activations` and `out`.
    """
    layout, chunk = of.layout(of.chunk), of.chunk
    inputs = int(layout.sizes[0]) + 1
    packed: Arguments = specialise("gradient", of.mu, of.split).PASSES.pack(
        net=layout.network(layout.sizes[1:], layout.offsets(layout.sizes[1:])), data=pack_split(of.split, chunk),
        tables=layout.tables, mu=of.mu, batches=0, rows=0, held=0,
        factors=aligned(batches * layout.padded_samples * inputs),
        active=np.empty(batches * layout.groups * inputs, np.uint8),
        z=aligned(batches * layout.padded_samples * layout.sample_floats + MARGIN),
        transposed=aligned(batches, int(layout.transposed_offsets[-1])), scratch=layout.scratch(of.team.size), **arrays,
    )  # fmt: skip
    return packed


class PassExecutor:
    """Base of the executors that do passes before a push arrives: keeps what they leave in slots."""

    def __init__(self, of: Minibatches, slots: int, limits: Limits, together: int = 1) -> None:
        """Allocate `slots` slots, and workspace for at least `together` minibatches at once."""
        layout, mu = of.layout(of.chunk), of.mu
        self._team, self._mu, self._kernels = of.team, mu, specialise("gradient", mu, of.split)
        self._passes = PendingPasses(layout, mu, slots, limits)
        #: See GradientExecutor.
        self.slot_bytes, self.pending = self._passes.slot_bytes, self._passes.arrays
        together = max(together, together_in_cache(layout))
        self._slots, self._held, self._rows = (np.zeros((together, n), np.int64) for n in (1, 1, mu))
        self._pass_arguments = pack_passes(
            of, together, slots=self._slots, losses=self.pending["losses"], errors=self.pending["errors"],
            activations=self.pending["activations"], out=0,
        )  # fmt: skip
        self._pass_arguments.set(rows=self._rows, held=self._held)
        self._size = int(layout.offsets(layout.sizes[1:])[-1])

    def _begin(self, slots: Integers, held: Integers | int, rows: NDArray[Any]) -> None:
        """Do the passes of the samples `rows` (n, µ) at the parameters at the addresses `held` (n,), or at one."""
        together = len(self._slots)
        for begin in range(0, len(slots), together):
            some = slice(begin, begin + together)
            batches = self._choose(slots[some], rows[some])
            self._held[:batches, 0] = held if isinstance(held, int) else held[some]
            self._run(self._kernels.forward_backward, batches)
            self.pending["samples"][slots[some]] = rows[some]

    def _choose(self, slots: Integers | int, rows: NDArray[Any]) -> int:
        """Set the slots and samples for the next kernel call; return how many minibatches there are."""
        batches = rows.size // self._mu
        self._slots[:batches, 0], self._rows[:batches] = slots, rows
        self._pass_arguments.batches = batches
        return batches

    def _run(self, kernel: Compiled, batches: int) -> None:
        self._team.run(kernel, self._pass_arguments, batches * self._mu * self._size)


class NumbaGradientExecutor(PassExecutor):
    """Does passes, and forms their gradients one by one: fredsim.compute.engines.GradientExecutor."""

    def __init__(self, of: Minibatches, slots: int, limits: Limits) -> None:
        super().__init__(of, slots, limits)
        self._gradient, self._copy = aligned(self._size), aligned(self._size + MARGIN)
        self._pass_arguments.set(out=np.array([address(self._gradient)]))
        self._used_bytes = 0  # the bytes of slots that were used since the file was last paged out

    def run_passes(self, slots: Integers, params: Array, rows: NDArray[np.int32]) -> None:
        """Do the passes of minibatches at the same parameters; see GradientExecutor."""
        params = with_margin(params, self._copy)
        self._begin(slots, address(params), rows)

    def gradient(self, slot: int) -> tuple[Array, Array]:
        """Return the gradient and the losses of the passes in a slot; see GradientExecutor."""
        self._run(self._kernels.form_gradient, self._choose(slot, self.pending["samples"][slot]))
        return self._gradient, self.pending["losses"][slot]

    def _run(self, kernel: Compiled, batches: int) -> None:
        alone_below = GRADIENT_ALONE_BELOW if kernel is self._kernels.form_gradient else PASSES_ALONE_BELOW
        if batches * self._mu * self._size < alone_below:
            self._team.run_alone(kernel, self._pass_arguments)
        else:
            self._team.run(kernel, self._pass_arguments)
        self._used_bytes += batches * self.slot_bytes
        if self._used_bytes > PAGE_OUT_EVERY:
            self._passes.page_out()
            self._used_bytes = 0


def with_margin(params: Array, spare: Array) -> Array:
    """Return parameters (P,) behind which MARGIN floats can be read: the same array, or a copy in `spare`.

    Reading beyond an array is safe if what is read lies in the same page of memory as the array's end.
    """
    params = np.ascontiguousarray(params)
    if -(address(params) + params.nbytes) % mmap.PAGESIZE < 4 * MARGIN:
        spare[: len(params)] = params
        return spare
    return params
