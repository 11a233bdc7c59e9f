"""The engines of least squares and of a quadratic of the backend `cuda`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.compute.quadratic_engine import QuadraticEvaluation
from fredsim.cuda import squares as kernels
from fredsim.cuda.array import DeviceArray
from fredsim.cuda.device import INTERPRETED, launch, name, tile
from fredsim.cuda.engine import CudaEngine
from fredsim.cuda.operations import CudaOperations
from fredsim.data.datasets import Dataset, Split
from fredsim.data.problems import Quadratic
from fredsim.data.sampling import decode_task
from fredsim.networks.mlp import Mlp
from fredsim.numerics import distributions, squares
from fredsim.numerics.distributions import Draw
from fredsim.numerics.streams import Streams

__all__ = ["CudaLeastSquares", "CudaQuadratic"]

Array = NDArray[np.float32]


class CudaLeastSquares(CudaEngine):
    """Computes gradients of many minibatches in a few launches; see Engine.

    The linear model is computed as a layer with one output; the gradient of its bias is left out at the end.
    """

    why_whole = "a linear model forms whole gradients"

    def __init__(self, dataset: Dataset, mu: int, draw: Draw = distributions.draw) -> None:
        super().__init__(Mlp((dataset.inputs, 1)), dataset, mu, draw)

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64]) -> tuple[Any, Array]:
        """Compute the gradients of all minibatches together; they stay on the device."""
        found, losses = super().gradients(held, rows)
        return DeviceArray(found.tensor[:, : self._dataset.inputs]), losses

    def queue(self, held: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queue the computation of gradients (B, P + 1), whose last element is the bias's, and losses (B, µ)."""
        batches = rows.shape[0]
        if batches > self._batches:
            self._allocate(batches)
        x, _ = self._uploaded(self._dataset.train)
        self._errors_of(self._dataset.train, held, rows, self._losses, self._errors[-1])
        self._sum_gradients(x, rows, batches)
        return self._grads[:batches], self._losses[:batches]

    def _errors_of(
        self, split: Split, held: torch.Tensor, rows: torch.Tensor, losses: torch.Tensor, errors: torch.Tensor
    ) -> None:
        batches, mu = rows.shape
        x, y = self._uploaded(split)
        samples = tile(mu, 64)
        launch(
            kernels.squared_errors, (batches, -(-mu // samples)), held, x, y, rows, losses, errors, mu,
            self._dataset.inputs, SAMPLES=samples, warps=2,
        )  # fmt: skip

    def _upload(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a split's inputs and targets as tensors on the device."""
        return self.on_device(split.x, torch.float32), self.on_device(split.y, torch.float32)

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return the losses (n,), computed as one minibatch, and NaN (n,): no answer is right or wrong; see Engine."""
        split: Split = getattr(self._dataset, part)
        n = len(split)
        here = self.tensor_of(params)
        held, rows = self.on_device([here.data_ptr()], torch.int64), self.on_device(np.arange(n)[None], torch.int32)
        losses, errors = (torch.empty((1, n), device=self._device) for _ in range(2))
        self._errors_of(split, held, rows, losses, errors)
        return losses[0].cpu().numpy(), np.full(n, np.nan)


class CudaQuadratic(QuadraticEvaluation, CudaOperations):
    """Computes many gradients in one launch; noise and values are computed on the host."""

    threads = 1
    seconds = float("nan")

    def __init__(self, dataset: Quadratic, draw: Draw = distributions.draw) -> None:
        super().__init__(draw)
        self.device_name: str | None = name()
        self._dataset, self._streams = dataset, Streams(dataset.seed)
        if not INTERPRETED:  # compile now, so that this is not counted in the run's time
            self.gradients([self.zeros(dataset.inputs)], np.zeros((1, 1), np.int64))

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64]) -> tuple[Any, Array]:
        """Compute all gradients together; they stay on the device. `rows` (B, 1) encode client and number."""
        size, sd = self._dataset.inputs, self._dataset.noise
        tensors = [self.tensor_of(params) for params in held]  # kept alive until the kernel is done
        addresses = self.on_device([params.data_ptr() for params in tensors], torch.int64)
        out = torch.empty((len(rows), size), device=self._device)
        noise = out
        if sd and len(rows):
            drawn = [squares.quadratic_noise(self._streams, size, *decode_task(int(row)), sd) for (row,) in rows]
            noise = self.on_device(np.stack(drawn), torch.float32)
        block = tile(size, 1024)
        launch(
            kernels.quadratic_gradients, (len(rows), -(-size // block)), addresses, noise, out, size,
            NOISY=bool(sd), BLOCK=block,
        )  # fmt: skip
        values = [squares.quadratic_value(params.cpu().numpy()) for params in tensors]
        return DeviceArray(out), np.array(values, np.float64).astype(np.float32).reshape(-1, 1)
