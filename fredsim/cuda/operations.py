"""What servers, gates, compressors and clients ask of the device, whatever the model is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fredsim.compute.shelf import Limits
from fredsim.cuda.arithmetic import Arithmetic
from fredsim.cuda.array import DeviceArray
from fredsim.cuda.device import launch, tile
from fredsim.cuda.rules import BLOCK, compile_rule
from fredsim.cuda.ternary import CudaTernary
from fredsim.errors import ConfigError
from fredsim.numerics.rules import Rule
from fredsim.numerics.ternary import Ternary

__all__ = ["CudaOperations"]

Update = Callable[..., bool]


class DeviceShelf:
    """Gives out arrays on the device, and takes them back; as fredsim.compute.shelf.Shelf."""

    def __init__(self, operations: Arithmetic, size: int) -> None:
        self._operations, self._size = operations, size
        self._free: list[Any] = []

    def take(self) -> Any:
        """Return an array, its contents arbitrary."""
        return self._free.pop() if self._free else self._operations.zeros(self._size)

    def give_back(self, array: Any) -> None:
        """Take an array that nobody uses any more."""
        self._free.append(array)

    def rest(self, array: Any) -> None:
        """Do nothing."""


class CudaOperations(Arithmetic):
    """Operations on whole arrays, and rules compiled for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.ternary: Ternary = CudaTernary(self)
        self._bad = torch.zeros(1, dtype=torch.int32, device=self._device)
        self._nowhere = torch.zeros(1, dtype=torch.int64, device=self._device)

    def compile_rule(self, rule: Rule) -> Update:
        """Return update(theta, *state, g, begin, end, *coefficients) → finite, in place on arrays of the device.

        Arrays of the host, such as a server picks sparse rows into, go there and back.
        """
        kernel, count = compile_rule(rule), 2 + len(rule.state)

        def update(*arguments: Any) -> bool:
            begin, end, *coefficients = arguments[count:]
            arrays = [self.taken(array)[begin:end] for array in arguments[:count]]
            if begin == end:  # a call on nothing, to compile
                arrays = [torch.zeros(1, device=self._device) for _ in arguments[:count]]
            numbers = self.on_device([coefficients or [0.0]], torch.float32)
            self._bad.fill_(1)
            self.apply(kernel, arrays[:-1], arrays[-1], numbers, self._nowhere, 0, 1, self._bad)
            for given, array in zip(arguments[: count - 1], arrays, strict=False):
                if not isinstance(given, DeviceArray) and begin < end:
                    given[begin:end] = array.cpu().numpy()
            return bool(self._bad.item())

        return update

    def apply(
        self,
        kernel: Any,
        arrays: Sequence[torch.Tensor],
        gradients: torch.Tensor,
        coefficients: torch.Tensor,
        targets: torch.Tensor,
        first: int,
        events: int,
        bad: torch.Tensor,
    ) -> None:
        """Queue a rule for a window of pushes; see fredsim.cuda.rules."""
        size, block = arrays[0].numel(), tile(arrays[0].numel(), BLOCK)
        launch(
            kernel, (-(-size // block),), *arrays, gradients, size, coefficients, targets, size, first, events, bad,
            BLOCK=block,
        )  # fmt: skip

    def shelf(self, size: int, limits: Limits) -> Any:
        """Return room for what clients hold. Raises ConfigError where a limit is given: it is one of the host's."""
        if limits.memory is not None:
            raise ConfigError("memory is a limit of the host's; with backend cuda clients hold arrays on the device")
        return DeviceShelf(self, size)

    def close(self) -> None:
        """Do nothing: memory goes with the engine."""
