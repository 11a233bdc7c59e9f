"""The operations of the backend `cuda` that do not depend on the model: fredsim.numerics.operations on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.compute.storage import Limits, Pool
from fredsim.cuda import ternary as kernels
from fredsim.cuda import trees
from fredsim.cuda.array import DeviceArray
from fredsim.cuda.device import device, launch, tile
from fredsim.cuda.rules import BLOCK, compile_rule
from fredsim.errors import ConfigError
from fredsim.numerics import distributions, ternary
from fredsim.numerics.distributions import Draw
from fredsim.numerics.rules import Rule
from fredsim.numerics.ternary import Draws, Ternary

__all__ = ["CudaOperations"]

Update = Callable[..., bool]


class CudaTernary:
    """Ternary gradients on the device: fredsim.numerics.ternary.Ternary."""

    def __init__(self, operations: CudaOperations) -> None:
        self._operations = operations

    def scaler(self, g: Any) -> np.float32:
        """Return max|g|."""
        return np.float32(self._flat(g).abs().max().item())

    def clip(self, g: Any, sigmas: float) -> Any:
        """Return g clipped to ±sigmas·σ; see fredsim.numerics.ternary.clip."""
        centre = self._operations.on_device([self._operations.mean(g)], torch.float64)
        squares = torch.empty(-(-g.size // trees.BLOCK), dtype=torch.float64, device=centre.device)
        launch(kernels.square_blocks, (len(squares),), self._flat(g), g.size, centre, squares, BLOCK=trees.BLOCK)
        return ternary.clipped(g, sigmas * np.sqrt(self._operations.total(squares) / np.float64(g.size)))

    def encode(self, g: Any, s: np.float32, draws: Draws) -> NDArray[np.uint8]:
        """Return g quantised with the scaler s and packed, uint8 (⌈n/4⌉,), on the host."""
        scaler, n = self._operations.on_device([s], torch.float32), ternary.packed_size(g.size)
        packed = torch.empty(n, dtype=torch.uint8, device=scaler.device)
        key, block = int(draws.stream) << 32 | draws.streams.seed, tile(n, trees.BLOCK)
        launch(
            kernels.encode, (-(-n // block),), self._flat(g), g.size, scaler, key, draws.begin, draws.step,
            draws.client, packed, BLOCK=block,
        )  # fmt: skip
        result: NDArray[np.uint8] = packed.cpu().numpy()
        return result

    def decode(self, packed: NDArray[np.uint8], count: int, s: np.float32) -> Any:
        """Return s times the first `count` packed values, on the device."""
        scaler, codes = self._operations.on_device([s], torch.float32), self._operations.on_device(packed, torch.uint8)
        out, block = torch.empty(count, device=scaler.device), tile(count, trees.BLOCK)
        launch(kernels.decode, (-(-count // block),), codes, count, scaler, out, BLOCK=block)
        return DeviceArray(out)

    def _flat(self, g: Any) -> torch.Tensor:
        flat: torch.Tensor = self._operations.tensor_of(g).reshape(-1)
        return flat


class CudaOperations:
    """Operations on whole arrays and rules, on the device; arrays on the host are copied to it and back."""

    def __init__(self, draw: Draw = distributions.draw) -> None:
        """Set up the device; `draw` draws from distributions, on the host, where the few draws are used."""
        self._device, self.draw = device(), draw
        self.ternary: Ternary = CudaTernary(self)
        self._diverged_at = torch.zeros(1, dtype=torch.int32, device=self._device)
        self._no_target = torch.zeros(1, dtype=torch.int64, device=self._device)

    def compile_rule(self, rule: Rule) -> Update:
        """Return update(theta, *state, g, begin, end, *coefficients) → whether θ stayed finite; see Operations.

        Arrays on the host are copied to the device and back.
        """
        kernel, count = compile_rule(rule), 2 + len(rule.state)

        def update(*arguments: Any) -> bool:
            begin, end, *coefficients = arguments[count:]
            arrays = [self.tensor_of(array)[begin:end] for array in arguments[:count]]
            if begin == end:  # a call on no elements, made only to compile
                arrays = [torch.zeros(1, device=self._device) for _ in arguments[:count]]
            numbers = self.on_device([coefficients or [0.0]], torch.float32)
            self._diverged_at.fill_(1)
            self.apply(kernel, arrays[:-1], arrays[-1], numbers, self._no_target, 0, 1, self._diverged_at)
            for given, array in zip(arguments[: count - 1], arrays, strict=False):
                if not isinstance(given, DeviceArray) and begin < end:
                    given[begin:end] = array.cpu().numpy()
            return bool(self._diverged_at.item())

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
        diverged_at: torch.Tensor,
    ) -> None:
        """Queue a rule's kernel for a window of pushes; the arguments are those of fredsim.cuda.rules."""
        size, block = arrays[0].numel(), tile(arrays[0].numel(), BLOCK)
        launch(
            kernel, (-(-size // block),), *arrays, gradients, gradients.shape[-1], coefficients, targets, size, first,
            events, diverged_at, BLOCK=block,
        )  # fmt: skip

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of arrays (size,) for what clients hold. Raises ConfigError if a limit on memory is given."""
        if limits.memory is not None:
            raise ConfigError("memory is a limit of the host's; with backend cuda clients hold arrays on the device")
        return Pool(size, 0, limits, self.zeros)

    def close(self) -> None:
        """Do nothing: the device's memory is freed with the engine."""

    def zeros(self, size: int) -> Any:
        """Return zeros, float32 (size,), on the device."""
        return DeviceArray(torch.zeros(size, device=self._device))

    def on_device(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return host values as a tensor on the device."""
        return torch.as_tensor(values, dtype=dtype).to(self._device)

    def tensor_of(self, array: Any) -> torch.Tensor:
        """Return an array's tensor on the device; an array on the host is copied there."""
        if isinstance(array, DeviceArray):
            return array.tensor
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def finite(self, array: Any) -> bool:
        """Return whether every element is finite."""
        return bool(torch.isfinite(self.tensor_of(array)).all())

    def duplicate(self, array: Any, out: Any) -> None:
        """Copy an array, on the device or to it."""
        out[...] = array

    def duplicate_finite(self, array: Any, out: Any) -> bool:
        """Copy an array, on the device or to it; return whether every element is finite."""
        out[...] = array
        return self.finite(out)

    def mean(self, array: Any) -> float:
        """Return the mean of all elements in float64, as fredsim.numerics.oracle.mean64."""
        values = self.tensor_of(array).reshape(-1)
        return float(self.total(values) / np.float64(len(values)))

    def total(self, values: torch.Tensor) -> float:
        """Return the sum of a flat tensor (n,) in float64 by the binary tree; 0 for an empty one."""
        while len(values) > 1:
            sums = torch.empty(-(-len(values) // trees.BLOCK), dtype=torch.float64, device=self._device)
            launch(trees.sum_blocks, (len(sums),), values, len(values), sums, BLOCK=trees.BLOCK)
            values = sums
        return float(values.item() if len(values) else 0.0) + 0.0
