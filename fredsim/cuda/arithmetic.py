"""What is done to whole arrays on a device: they go there and back, are summed up, copied and tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fredsim.cuda import trees
from fredsim.cuda.array import DeviceArray
from fredsim.cuda.device import device, launch

__all__ = ["Arithmetic"]


class Arithmetic:
    """Arrays of the device, and of the host where they are few."""

    def __init__(self) -> None:
        self._device = device()

    def zeros(self, size: int) -> Any:
        """Return zeros, float32 (size,), on the device."""
        return DeviceArray(torch.zeros(size, device=self._device))

    def on_device(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return host values as a tensor on the device."""
        return torch.as_tensor(values, dtype=dtype).to(self._device)

    def taken(self, array: Any) -> torch.Tensor:
        """Return an array's tensor on the device; one of the host is copied there."""
        if isinstance(array, DeviceArray):
            return array.tensor
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def finite(self, array: Any) -> bool:
        """Return whether every element is finite."""
        return bool(torch.isfinite(self.taken(array)).all())

    def duplicate(self, array: Any, out: Any) -> None:
        """Copy an array, on the device or to it."""
        out[...] = array

    def mean(self, array: Any) -> float:
        """Return the mean by the contract's tree in float64."""
        values = self.taken(array).reshape(-1)
        return float(self.total(values) / np.float64(len(values)))

    def total(self, values: torch.Tensor) -> float:
        """Return the sum in float64 by the contract's tree."""
        while len(values) > 1:
            sums = torch.empty(-(-len(values) // trees.BLOCK), dtype=torch.float64, device=self._device)
            launch(trees.sum_blocks, (len(sums),), values, len(values), sums, BLOCK=trees.BLOCK)
            values = sums
        return float(values.item() if len(values) else 0.0) + 0.0
