"""Applies an elementwise rule to the tensors that autograd returns, so that no gradient is copied into one vector.

θ is copied for the client that fetches in the pass that changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from ctypes import memmove
from itertools import accumulate
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from fredsim.native.concurrent import ConcurrentPasses
from fredsim.native.passes import Passes
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array, Integers, aligned
from fredsim.numerics.ops.draws import Keys

__all__ = ["Found", "Gradients", "Updates"]

#: The losses (µ,) of a minibatch, and its gradient: a tensor for each parameter.
Found = tuple[torch.Tensor, Sequence[torch.Tensor]]


class Gradients(Protocol):
    """What the executors need of an engine (fredsim.native.engine)."""

    @property
    def width(self) -> int:
        """How many minibatches are computed at once by vmap."""
        ...

    @property
    def concurrent(self) -> ConcurrentPasses | None:
        """What computes passes of several clients at the same time, if they are computed so."""
        ...

    #: The clients' running statistics, if they have some (fredsim.compute.statistics).
    statistics: Any

    @property
    def keyed(self) -> bool:
        """Whether a gradient depends on its key."""
        ...

    def gradients(self, held: Sequence[Array], rows: Integers, keys: Keys | None = None) -> tuple[Array, Array]:
        """Return whole gradients and losses; see Engine."""
        ...

    def beginning(self, passes: Passes, keys: Keys | None, b: int) -> AbstractContextManager[None]:
        """Let passes compute gradient b in a `with` block with what belongs to its key."""
        ...

    def computed(self, keys: Keys | None, b: int, statistics: Sequence[NDArray[Any]], *, arrived: bool = False) -> None:
        """Note the running statistics after gradient b; `arrived`: its push is at the server now."""
        ...

    def computing(self, *, alone: bool = True) -> AbstractContextManager[None]:
        """Return what is to be entered while gradients are computed; `alone`: and nothing that may draw, too."""
        ...

    def nothing_drawn(self) -> AbstractContextManager[None]:
        """Return what is to be entered where nothing but gradients is computed, if that was not said before."""
        ...


class Updates:
    """Applies a rule to gradients where they are, and writes the losses of their minibatches to an array (B, µ)."""

    def __init__(self, passes: Passes, update: Callable[..., bool], layout: Layout, *, stored: bool = False) -> None:
        """`update` applies the rule: fredsim.kernels.arrays.update.RuleInParts.

        `stored`: the elements of θ, its copies and the state have the order of the module's memory of its parameters.
        """
        self.passes, self._update, self._stored = passes, update, stored
        flat = [torch.contiguous_format] * len(layout.sizes)
        self._formats = passes.own.formats if stored else flat
        self._size, self._begins = layout.size, [0, *accumulate(layout.sizes)][:-1]
        self._room: Array | None = None  # for gradients that cannot be read where they are

    def write_to(self, losses: Array) -> None:
        """Write the following losses to this array (B, µ)."""
        self._losses, self._mu, self._address = losses, losses.shape[1], losses.ctypes.data

    def compute(self, b: int, params: Array, rows: Integers, coefficients: Array, copy: Array | None) -> bool:
        """Compute the gradient of minibatch b, the samples `rows` (µ,), at `params` (P,), and apply the rule to it.

        `copy` (P,) becomes a copy of θ if it is given. Returns whether θ stays finite.
        """
        return self.apply(b, self.found(params, rows), params, coefficients, copy)

    def found(self, params: Array, rows: Integers) -> Found:
        """Return what is computed for the samples `rows` (µ,) at `params` (P,), for `apply` before the next ones."""
        return self.passes.one(params, rows, stored=self._stored)

    def apart(self, passes: Passes, params: Array, rows: Integers) -> Found:
        """Return what these passes compute for the samples `rows` (µ,) at `params` (P,), for `apply` later on."""
        return passes.apart(params, rows, stored=self._stored)

    def apply(self, b: int, found: Found, params: Array, coefficients: Array, copy: Array | None) -> bool:
        """Apply the rule to the losses and the gradient of minibatch b, computed at `params`; see `compute`."""
        losses, tensors = found
        if losses.dtype == torch.float32 and losses.numel() == self._mu and _is_dense(losses):
            memmove(self._address + 4 * self._mu * b, losses.data_ptr(), 4 * self._mu)  # a tenth of PyTorch's own time
        else:
            self._losses[b] = losses.detach()
        overwritten = params if self.passes.own.by_views and copy is params else None
        return self._update(self._addresses(tensors, overwritten), coefficients, copy)

    def take(self, b: int, gradient: Array, losses: Array, coefficients: Array, copy: Array | None) -> bool:
        """Apply the rule to the gradient (P,) of minibatch b, whose losses are these (µ,); see `compute`."""
        self._losses[b] = losses
        return self._update([gradient.ctypes.data + 4 * begin for begin in self._begins], coefficients, copy)

    def _addresses(self, gradients: Sequence[torch.Tensor], overwritten: Array | None) -> list[int]:
        """Return where gradients lie.

        Those whose elements do not follow the order of the parameter's are copied, and so are those that are in an
        array that is overwritten meanwhile: a gradient may be another parameter itself.
        """
        found = [gradient.data_ptr() for gradient in gradients]
        begin = 0 if overwritten is None else overwritten.ctypes.data
        within = range(begin, begin + (0 if overwritten is None else overwritten.nbytes))
        dense = map(_is_dense, gradients, self._formats)
        if moved := [i for i, (at, one) in enumerate(zip(found, dense, strict=True)) if at in within or not one]:
            self._room = aligned(self._size) if self._room is None else self._room
            self.passes.own.write([gradients[i] for i in moved], self._room, moved, stored=self._stored)
            for i in moved:
                found[i] = self._room.ctypes.data + 4 * self._begins[i]
        return found


def _is_dense(tensor: torch.Tensor, order: torch.memory_format = torch.contiguous_format) -> bool:
    """Return whether a tensor's elements follow each other in memory, in this order, and are not the negated ones."""
    plain = tensor.layout == torch.strided and not tensor.is_neg()  # of an imaginary part it may be a negated view
    return bool(plain and tensor.is_contiguous(memory_format=order))
