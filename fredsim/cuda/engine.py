"""The engine of the cuda backend: data on the device, work space, and the order in which kernels are queued."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.cuda import dense, trees
from fredsim.cuda.array import DeviceArray
from fredsim.cuda.device import INTERPRETED, launch, name, tile
from fredsim.cuda.operations import CudaOperations
from fredsim.cuda.rules import compile_rule
from fredsim.data.datasets import Dataset, Split
from fredsim.errors import ConfigError
from fredsim.models.mlp import Mlp
from fredsim.numerics import distributions, oracle
from fredsim.numerics.distributions import Draw
from fredsim.numerics.rules import Rule

__all__ = ["CudaEngine", "CudaQueueExecutor"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]


class CudaEngine(CudaOperations):
    """Gradients of many minibatches in a few launches."""

    threads = 1
    seconds = float("nan")

    def __init__(self, model: Mlp, dataset: Dataset, mu: int, draw: Draw = distributions.draw) -> None:
        super().__init__(draw)
        self.device_name: str | None = name()
        self._sizes, self._mu, self._dataset = model.sizes, mu, dataset
        self._size = model.layout.size
        heights = [(inputs + 1) * width for inputs, width in pairwise(model.sizes)]
        self._offsets = [sum(heights[:layer]) for layer in range(len(heights))]
        self._uploaded = lru_cache(maxsize=3)(self._upload)
        self._allocate(1)
        if not INTERPRETED:  # compile, or load what was compiled before: a run's clock leaves it out
            start = self.zeros(self._size)
            self.gradients([start], np.zeros((1, mu), np.int64))
            self.mean(start)

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64]) -> tuple[Any, Array]:
        """Compute all minibatches together; the gradients stay on the device."""
        tensors = [self.tensor_of(params) for params in held]  # alive until the losses are back: kernels have addresses
        addresses = self.on_device([params.data_ptr() for params in tensors], torch.int64)
        gradients, losses = self.queue(addresses, self.on_device(rows, torch.int32))
        return DeviceArray(gradients), losses.cpu().numpy()

    def queue(self, held: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queue gradients (B, P) and losses (B, µ) of the samples `rows` (B, µ), parameters at the addresses `held`."""
        batches, mu = rows.shape[0], self._mu
        if batches > self._batches:
            self._allocate(batches)
        x, labels = self._uploaded(self._dataset.train)
        self._forward(held, x, rows, self._z, batches, mu)
        block = tile(batches * mu, 64)
        launch(
            dense.softmax_cross_entropy, (-(-batches * mu // block),), self._z[-1], labels, rows, batches * mu,
            self._sizes[-1], self._errors[-1], self._losses, self._losses, ERRORS=True, SAMPLES=block, warps=2,
        )  # fmt: skip
        for layer in range(len(self._sizes) - 2, 0, -1):
            inputs, width = self._sizes[layer : layer + 2]
            samples, columns = tile(mu, 16), tile(inputs, 64)
            launch(
                dense.propagate, (batches, -(-mu // samples), -(-inputs // columns)), held, self._offsets[layer],
                self._errors[layer], self._z[layer - 1], self._errors[layer - 1], mu, inputs, width,
                SAMPLES=samples, COLUMNS=columns,
            )  # fmt: skip
        self._sum_gradients(x, rows, batches)
        return self._grads[:batches], self._losses[:batches]

    def _forward(
        self, held: torch.Tensor, x: torch.Tensor, rows: torch.Tensor, z: Sequence[torch.Tensor], batches: int, mu: int
    ) -> None:
        for layer, (inputs, width) in enumerate(pairwise(self._sizes)):
            samples, columns = tile(mu, 16), tile(width, 64)
            launch(
                dense.forward, (batches, -(-mu // samples), -(-width // columns)), held, self._offsets[layer],
                x if layer == 0 else z[layer - 1], rows, z[layer], mu, inputs, width,
                FIRST=layer == 0, SAMPLES=samples, COLUMNS=columns,
            )  # fmt: skip

    def _sum_gradients(self, x: torch.Tensor, rows: torch.Tensor, batches: int) -> None:
        """Queue the weight gradients of all layers; of large minibatches first those of subtrees, then their sums."""
        mu, parts = self._mu, self._parts[0]
        leaves = tile(mu, trees.LEAVES) if parts == 1 else trees.LEAVES
        for layer, (inputs, width) in enumerate(pairwise(self._sizes)):
            height, columns = tile(inputs + 1, 16), tile(width, 64)
            launch(
                trees.weight_gradient, (batches, parts, -(-(inputs + 1) // height) * -(-width // columns)),
                x if layer == 0 else self._z[layer - 1], rows, self._errors[layer],
                self._grads if parts == 1 else self._sums[0], self._size, self._offsets[layer], mu, inputs, width,
                FIRST=layer == 0, WHOLE=parts == 1, COUNT=leaves, ROWS=height, COLUMNS=columns,
            )  # fmt: skip
        block = tile(self._size, 1024)
        for level, (count, left) in enumerate(pairwise(self._parts)):
            launch(
                trees.fold, (batches, left, -(-self._size // block)), self._sums[level],
                self._grads if left == 1 else self._sums[level + 1], count, self._size, mu,
                WHOLE=left == 1, COUNT=tile(count, trees.LEAVES), BLOCK=block,
            )  # fmt: skip

    def _allocate(self, batches: int) -> None:
        """Allocate work space for so many minibatches: z, errors, losses, gradients, and sums of subtrees."""
        self._batches, mu = batches, self._mu

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, device=self._device)

        self._z = [empty(batches, mu, width) for width in self._sizes[1:]]
        self._errors = [empty(batches, mu, width) for width in self._sizes[1:]]
        self._losses, self._grads = empty(batches, mu), empty(batches, self._size)
        self._parts = [-(-mu // trees.LEAVES)]  # subtrees of a minibatch, level by level
        while self._parts[-1] > 1:
            self._parts.append(-(-self._parts[-1] // trees.LEAVES))
        self._sums = [empty(batches, count, self._size) for count in self._parts[:-1]]

    def _upload(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy a split's inputs and labels to the device."""
        return self.on_device(split.x, torch.float32), self.on_device(split.y, torch.int32)

    def evaluate(self, params: Any, part: str) -> tuple[float, float]:
        """Evaluate a part of the data set in one go."""
        return oracle.means(*self.outcomes(params, part))

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Evaluate a part of the data set in one go."""
        split: Split = getattr(self._dataset, part)
        n = len(split)
        if n == 0:
            return np.empty(0, np.float32), np.empty(0, np.bool_)
        x, labels = self._uploaded(split)
        here = self.tensor_of(params)
        held, rows = self.on_device([here.data_ptr()], torch.int64), torch.arange(n, dtype=torch.int32).to(self._device)
        z = [torch.empty((1, n, width), device=self._device) for width in self._sizes[1:]]
        losses, wrong = torch.empty(n, device=self._device), torch.empty(n, dtype=torch.bool, device=self._device)
        self._forward(held, x, rows, z, 1, n)
        block = tile(n, 64)
        launch(
            dense.softmax_cross_entropy, (-(-n // block),), z[-1], labels, rows, n, self._sizes[-1], losses, losses,
            wrong, ERRORS=False, SAMPLES=block, warps=2,
        )  # fmt: skip
        return losses.cpu().numpy(), wrong.cpu().numpy()

    def queue_executor(self, rule: Rule, params: Any, arrays: Sequence[Any], places: int) -> CudaQueueExecutor:
        """Return a machine that applies the rule in place on the server's arrays."""
        return CudaQueueExecutor(self, rule, params, arrays, places)


class CudaQueueExecutor:
    """Processes events: fredsim.compute.engines.QueueExecutor. The host waits once a call of `advance`, at its end."""

    def __init__(self, engine: CudaEngine, rule: Rule, params: Any, arrays: Sequence[Any], places: int) -> None:
        """Allocate places, the parameters in the first. Raises ConfigError where the device has not enough memory."""
        self._engine, self._kernel = engine, compile_rule(rule)
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
        one = self._engine.on_device([0], torch.int64)
        none = torch.zeros((1, 1), device=one.device)
        bad = torch.ones(1, dtype=torch.int32, device=one.device)
        self._engine.apply(self._kernel, self._arrays, self._places[0], none, one, 0, 0, bad)

    def take_places(self) -> Array:
        """Return what clients hold, a copy (places, P)."""
        held: Array = self._places.cpu().numpy().copy()
        return held

    def put_places(self, values: Array) -> None:
        """Overwrite what clients hold, (places, P)."""
        self._places.copy_(torch.from_numpy(values))

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: Integers,
        kept: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events, window by window: the gradients of one together, then its updates in one kernel."""
        engine, n = self._engine, len(held)
        start, apart = self._places.data_ptr(), 4 * self._places.shape[1]
        sources = engine.on_device(start + held * apart, torch.int64)
        targets = engine.on_device(np.where(kept >= 0, start + kept * apart, 0), torch.int64)
        samples = engine.on_device(rows, torch.int32)
        numbers = engine.on_device(coefficients if coefficients.size else np.zeros((n, 1)), torch.float32)
        losses = torch.empty(rows.shape, device=samples.device)
        bad = torch.full((1,), n, dtype=torch.int32, device=samples.device)
        for begin, end in windows:
            gradients, losses[begin:end] = engine.queue(sources[begin:end], samples[begin:end])
            engine.apply(
                self._kernel, self._arrays, gradients, numbers[begin:], targets[begin:], begin, end - begin, bad
            )
        return losses.cpu().numpy(), int(bad.item())
