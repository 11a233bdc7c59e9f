"""The engine of the backend `cuda` for multilayer perceptrons: data and workspace on the device, queued kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.compute.graph_engine import Evaluation
from fredsim.compute.storage import Limits
from fredsim.cuda import dense, trees
from fredsim.cuda.array import DeviceArray
from fredsim.cuda.device import INTERPRETED, launch, name, tile
from fredsim.cuda.operations import CudaOperations
from fredsim.cuda.rules import compile_rule
from fredsim.data.datasets import Dataset, Split
from fredsim.errors import ConfigError
from fredsim.networks.mlp import Mlp
from fredsim.numerics import distributions
from fredsim.numerics.distributions import Draw
from fredsim.numerics.rules import Rule

__all__ = ["CudaEngine", "CudaQueueExecutor"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

#: The most samples that are evaluated together: a launch has at most 65,535 blocks along its second axis.
EVALUATED = 2**16


class CudaEngine(Evaluation, CudaOperations):
    """Computes gradients of minibatches of µ samples, many in a few launches, and evaluates: see Engine."""

    threads = 1
    seconds = float("nan")
    why_whole = ""
    queues = True
    window_bytes = 256 * 2**20

    def __init__(self, model: Mlp, dataset: Dataset, mu: int, draw: Draw = distributions.draw) -> None:
        super().__init__(draw)
        self.device_name: str | None = name()
        self._sizes, self._mu, self._dataset = model.sizes, mu, dataset
        self._size = model.layout.size
        heights = [(inputs + 1) * width for inputs, width in pairwise(model.sizes)]
        self._offsets = [sum(heights[:layer]) for layer in range(len(heights))]
        self._uploaded = lru_cache(maxsize=3)(self._upload)
        self._allocate(1)
        if not INTERPRETED:  # compile now, so that this is not counted in the run's time
            start = self.zeros(self._size)
            self.gradients([start], np.zeros((1, mu), np.int64))
            self.mean(start)

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64]) -> tuple[Any, Array]:
        """Compute the gradients of all minibatches together; they stay on the device. See Engine."""
        tensors = [
            self.tensor_of(params) for params in held
        ]  # kept alive until the losses are back, as kernels get addresses
        addresses = self.on_device([params.data_ptr() for params in tensors], torch.int64)
        gradients, losses = self.queue(addresses, self.on_device(rows, torch.int32))
        return DeviceArray(gradients), losses.cpu().numpy()

    def queue(self, held: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queue the computation of B minibatches; return the gradients (B, P) and losses (B, µ) that it will write.

        `rows`, int32 (B, µ), are the samples; `held`, int64 (B,), the addresses of the parameters.
        """
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
        """Queue the mean gradients of all layers; for large minibatches, first sums over subtrees, then their sums."""
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
                trees.sum_subtrees, (batches, left, -(-self._size // block)), self._sums[level],
                self._grads if left == 1 else self._sums[level + 1], count, self._size, mu,
                WHOLE=left == 1, COUNT=tile(count, trees.LEAVES), BLOCK=block,
            )  # fmt: skip

    def _allocate(self, batches: int) -> None:
        """Allocate workspace for `batches` minibatches: z, errors, losses, gradients, and sums over subtrees."""
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
        """Return a split's inputs and labels as tensors on the device."""
        return self.on_device(split.x, torch.float32), self.on_device(split.y, torch.int32)

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return each sample's loss, and whether its answer is wrong; see Engine."""
        split: Split = getattr(self._dataset, part)
        n = len(split)
        x, labels = self._uploaded(split)
        here = self.tensor_of(params)
        held, rows = self.on_device([here.data_ptr()], torch.int64), torch.arange(n, dtype=torch.int32).to(self._device)
        z = [torch.empty((1, min(n, EVALUATED), width), device=self._device) for width in self._sizes[1:]]
        losses, wrong = torch.empty(n, device=self._device), torch.empty(n, dtype=torch.bool, device=self._device)
        for begin in range(0, n, EVALUATED):
            some = slice(begin, min(begin + EVALUATED, n))
            count = some.stop - begin
            self._forward(held, x, rows[some], z, 1, count)
            block = tile(count, 64)
            launch(
                dense.softmax_cross_entropy, (-(-count // block),), z[-1], labels, rows[some], count, self._sizes[-1],
                losses[some], losses[some], wrong[some], ERRORS=False, SAMPLES=block, warps=2,
            )  # fmt: skip
        return losses.cpu().numpy(), wrong.cpu().numpy()

    def queue_executor(self, rule: Rule, params: Any, arrays: Sequence[Any], places: int) -> CudaQueueExecutor:
        """Return an executor that applies the rule in place to the server's arrays; see Engine."""
        return CudaQueueExecutor(self, rule, params, arrays, places)


class CudaQueueExecutor:
    """Processes events: fredsim.compute.engines.QueueExecutor. In `advance` the host waits only once, at the end."""

    def __init__(self, engine: CudaEngine, rule: Rule, params: Any, arrays: Sequence[Any], places: int) -> None:
        """Allocate places, and copy θ to the first of them. Raises ConfigError if the device has too little memory."""
        self._engine, self._kernel, pool = engine, compile_rule(rule), engine.pool(params.size, Limits())
        self._arrays = [array.tensor for array in (params, *arrays)]
        try:
            self._places: list[torch.Tensor] = [engine.tensor_of(pool.take()) for _ in range(places)]
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"backend is cuda; {places:,} versions of {4 * params.size:,} bytes are live at once, more than the "
                "device has room for: choose fewer clients, or backend numba"
            ) from None
        self._places[0].copy_(self._arrays[0])
        self._addresses = np.array([place.data_ptr() for place in self._places])

    def warm_up(self) -> None:
        """Compile the rule's kernel, or load it from Triton's cache."""
        one = self._engine.on_device([0], torch.int64)
        none = torch.zeros((1, 1), device=one.device)
        diverged_at = torch.ones(1, dtype=torch.int32, device=one.device)
        self._engine.apply(self._kernel, self._arrays, self._places[0], none, one, 0, 0, diverged_at)

    def take_places(self) -> Array:
        """Return what clients hold, a copy (places, P)."""
        return np.stack([place.cpu().numpy() for place in self._places])

    def put_places(self, values: Array) -> None:
        """Overwrite what clients hold, (places, P)."""
        for place, value in zip(self._places, values, strict=True):
            place.copy_(torch.from_numpy(value))

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: Integers,
        kept: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events, window by window: first all gradients of a window, then its updates in one kernel."""
        engine, n = self._engine, len(held)
        sources = engine.on_device(self._addresses[held], torch.int64)
        targets = engine.on_device(np.where(kept >= 0, self._addresses[kept], 0), torch.int64)
        samples = engine.on_device(rows, torch.int32)
        numbers = engine.on_device(coefficients if coefficients.size else np.zeros((n, 1)), torch.float32)
        losses = torch.empty(rows.shape, device=samples.device)
        diverged_at = torch.full((1,), n, dtype=torch.int32, device=samples.device)
        for begin, end in windows:
            gradients, losses[begin:end] = engine.queue(sources[begin:end], samples[begin:end])
            engine.apply(
                self._kernel, self._arrays, gradients, numbers[begin:], targets[begin:], begin, end - begin, diverged_at
            )
        return losses.cpu().numpy(), int(diverged_at.item())
