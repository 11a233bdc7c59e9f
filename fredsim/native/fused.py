"""The executor of the path `fused` for PyTorch modules: a rule is applied to the tensors that autograd returns.

So no gradient is copied into one vector, and θ is copied for the client that fetches in the pass that changes it. A
minibatch's passes are done when its push arrives: until then its client holds the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from ctypes import memmove
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.errors import FredsimError, SimulationError
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array, aligned
from fredsim.numerics.verdicts import ALLOWED, DIVERGED, REFUSED, UNDECIDED

__all__ = ["TorchFusedExecutor"]


class Gradients(Protocol):
    """What the executor needs of an engine (fredsim.native.engine)."""

    @property
    def width(self) -> int:
        """How many minibatches are computed at once."""
        ...

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return whole gradients and losses; see Engine."""
        ...

    def one(self, params: Array, rows: NDArray[np.int64]) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Return the losses (µ,) of one minibatch, and its gradient: a tensor for each parameter."""
        ...

    def write(self, gradients: Sequence[torch.Tensor], to: Array, numbers: Sequence[int]) -> None:
        """Write the gradients of the parameters with these numbers to their places in an array (P,)."""
        ...

    def under_settings(self, kind: type[FredsimError]) -> AbstractContextManager[None]:
        """Set PyTorch up for a `with` block; exceptions of the module become `kind`."""
        ...


class TorchFusedExecutor:
    """Does one minibatch's passes, applies the rule, and so on; see fredsim.compute.engines.FusedExecutor."""

    def __init__(self, engine: Gradients, update: Callable[..., bool], layout: Layout, mu: int, window: int) -> None:
        """`update` applies the rule: fredsim.kernels.arrays.update.RuleInParts."""
        self.slots = window
        self._engine, self._update, self._mu = engine, update, mu
        self._size, self._begins = layout.size, [0, *accumulate(layout.sizes)][:-1]
        #: By slot: what the client holds, and its samples; if several are computed at once, the gradient and losses.
        self._tasks: list[tuple[Array, NDArray[Any]]] = [(np.empty(0, np.float32),) * 2] * window
        self._room: Array | None = None  # for gradients whose elements are in another order than the parameters'

    def run_passes(self, slots: Sequence[int], held: Sequence[Array], rows: NDArray[np.int64]) -> None:
        """Note what to compute; compute it now if several minibatches are computed at once."""
        if self._engine.width == 1:
            for slot, *task in zip(slots, held, rows, strict=True):
                self._tasks[slot] = tuple(task)
            return
        for slot, gradient, losses in zip(slots, *self._engine.gradients(held, rows), strict=True):
            self._tasks[slot] = gradient.copy(), losses.copy()

    def prepare(
        self, slots: Sequence[int], coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array | None]
    ) -> Array:
        """Prepare the next arrivals; their losses are written one by one. See FusedExecutor."""
        self._chosen, self._coefficients, self._copies = slots, coefficients, copies
        self._verdicts = [_verdict(low, high) for low, high in bounds.tolist()]
        self._losses = np.empty((len(slots), self._mu), np.float32)
        self._places = self._losses.ctypes.data
        return self._losses

    def apply(self, b: int, end: int) -> Iterator[int]:
        """Compute one gradient after the other and apply the rule to it; yield the verdicts. See FusedExecutor."""
        verdict = ALLOWED
        with self._engine.under_settings(SimulationError):
            while b < end:
                verdict = self._apply(b)
                if verdict in (UNDECIDED, DIVERGED):
                    break
                yield verdict
                b += 1
        if verdict in (UNDECIDED, DIVERGED):  # a gate may decide now, in which PyTorch is as its author knows it
            yield verdict

    def _apply(self, b: int) -> int:
        verdict, (one, other) = self._verdicts[b], self._tasks[self._chosen[b]]
        if self._engine.width == 1:
            losses, tensors = self._engine.one(one, other)
            self._keep(b, losses)
            addresses = self._addresses(tensors)
        else:
            self._losses[b] = other
            addresses = [one.ctypes.data + 4 * begin for begin in self._begins]
        finite = self._update(addresses, self._coefficients[b], self._copies[b] if verdict == ALLOWED else None)
        return verdict if finite else DIVERGED

    def _keep(self, b: int, losses: torch.Tensor) -> None:
        if losses.dtype == torch.float32 and losses.numel() == self._mu and _is_flat(losses):
            memmove(self._places + 4 * self._mu * b, losses.data_ptr(), 4 * self._mu)  # a tenth of PyTorch's own time
        else:
            self._losses[b] = losses.detach()

    def _addresses(self, gradients: Sequence[torch.Tensor]) -> list[int]:
        """Return where gradients lie; those whose elements do not follow the order of the parameter's are copied."""
        found = [gradient.data_ptr() for gradient in gradients]
        if moved := [i for i, gradient in enumerate(gradients) if not _is_flat(gradient)]:
            self._room = aligned(self._size) if self._room is None else self._room
            self._engine.write([gradients[i] for i in moved], self._room, moved)
            for i in moved:
                found[i] = self._room.ctypes.data + 4 * self._begins[i]
        return found

    def mean(self, b: int) -> float:
        """Return NaN: a gate that needs a mean asks for it itself."""
        del b
        return float("nan")


def _verdict(low: float, high: float) -> int:
    """Return what a gate's bounds say whatever the mean is; see FusedExecutor.prepare."""
    if high == -np.inf:
        return ALLOWED
    return REFUSED if low == np.inf else UNDECIDED


def _is_flat(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements follow each other in memory."""
    return bool(tensor.layout == torch.strided and tensor.is_contiguous())
