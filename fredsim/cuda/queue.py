"""Stretches of events queued on a device: nothing goes back to the host before their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.cuda.operations import CudaOperations
from fredsim.cuda.rules import compile_rule
from fredsim.errors import ConfigError
from fredsim.numerics.rules import Rule

__all__ = ["Queue"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]
#: Queues the gradients (B, P) and losses (B, µ) of minibatches, from parameters' addresses and samples.
Gradients = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Queue:
    """Places for what clients hold, and a rule in place on the server's arrays."""

    def __init__(
        self,
        operations: CudaOperations,
        gradients: Gradients,
        rule: Rule,
        params: Any,
        arrays: Sequence[Any],
        places: int,
    ) -> None:
        """Make room, the initial parameters in place 0. Raises ConfigError where the device has not enough memory."""
        self._operations, self._gradients, self._kernel = operations, gradients, compile_rule(rule)
        self._arrays = [array.tensor for array in (params, *arrays)]
        try:
            self._places = torch.empty((places, params.size), device=self._arrays[0].device)
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"backend is cuda; {places:,} versions of {4 * params.size:,} bytes are live at once, more than the "
                "device has room for: choose fewer clients, or backend numba"
            ) from None
        self._places[0] = self._arrays[0]

    def warm(self) -> None:
        """Compile, or load what was compiled before."""
        one = self._operations.on_device([0], torch.int64)
        none = torch.zeros((1, 1), device=one.device)
        bad = torch.ones(1, dtype=torch.int32, device=one.device)
        self._operations.apply(self._kernel, self._arrays, self._places[0], none, one, 0, 0, bad)

    def take_places(self) -> Array:
        """Return what clients hold, a copy (places, P)."""
        held: Array = self._places.cpu().numpy().copy()
        return held

    def put_places(self, values: Array) -> None:
        """Let clients hold this, (places, P)."""
        self._places.copy_(torch.from_numpy(values))

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: Integers,
        kept: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events, window by window: the gradients of one together, then its pushes in one kernel.

        Each event's gradient is of the parameters in place held[i]; after it θ is put in place kept[i], unless −1.
        Returns the losses (n, µ) and the first event that is not finite, else n.
        """
        operations, n = self._operations, len(held)
        start, apart = self._places.data_ptr(), 4 * self._places.shape[1]
        sources = operations.on_device(start + held * apart, torch.int64)
        targets = operations.on_device(np.where(kept >= 0, start + kept * apart, 0), torch.int64)
        samples = operations.on_device(rows, torch.int32)
        numbers = operations.on_device(coefficients if coefficients.size else np.zeros((n, 1)), torch.float32)
        losses = torch.empty(rows.shape, device=samples.device)
        bad = torch.full((1,), n, dtype=torch.int32, device=samples.device)
        for begin, end in windows:
            gradients, losses[begin:end] = self._gradients(sources[begin:end], samples[begin:end])
            operations.apply(
                self._kernel, self._arrays, gradients, numbers[begin:], targets[begin:], begin, end - begin, bad
            )
        return losses.cpu().numpy(), int(bad.item())
