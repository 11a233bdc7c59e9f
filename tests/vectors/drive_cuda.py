"""Calls the kernels of the backend cuda for the records; without a device, in Triton's interpreter."""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fredsim.cuda.device import launch
from fredsim.cuda.elementary import exp32, log32
from fredsim.cuda.engine import CudaEngine
from fredsim.cuda.operations import CudaOperations
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.mlp import Mlp
from tests.vectors.drive_numpy import Answers, Array, NumpyDriver

__all__ = ["CudaDriver"]


@triton.jit  # type: ignore[untyped-decorator]
def exponential(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    tl.store(y + i, exp32(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


@triton.jit  # type: ignore[untyped-decorator]
def logarithm(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    tl.store(y + i, log32(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


@triton.jit
def draw(key, counter, words):  # type: ignore[no-untyped-def]
    i = tl.arange(0, 1)
    c0, c1, c2, c3 = tl.load(counter + i), tl.load(counter + 1 + i), tl.load(counter + 2 + i), tl.load(counter + 3 + i)
    w0, w1, w2, w3 = tl.philox(tl.load(key), c0, c1, c2, c3)
    tl.store(words + i, w0)
    tl.store(words + 1 + i, w1)
    tl.store(words + 2 + i, w2)
    tl.store(words + 3 + i, w3)


class CudaDriver(NumpyDriver):
    """The methods of NumpyDriver; arrays are copied to the device and back."""

    def __init__(self) -> None:
        self.operations: Any = CudaOperations()

    def engine(self, model: Mlp, dataset: Dataset, mu: int) -> Any:
        return CudaEngine(model, dataset, mu)

    def exp32(self, x: Array) -> Answers:
        return {"y": self.mapped(exponential, x)}

    def log32(self, x: Array) -> Answers:
        return {"y": self.mapped(logarithm, x)}

    def mapped(self, kernel: Any, x: Array) -> Array:
        given = self.operations.on_device(x, torch.float32)
        found = torch.empty_like(given)
        launch(kernel, (1,), given, found, len(x), BLOCK=triton.next_power_of_2(len(x)))
        return np.asarray(found.cpu().numpy())

    def philox(self, counter: Array, key: Array) -> Answers:
        whole = self.operations.on_device(key.view(np.int64), torch.int64)
        given = self.operations.on_device(counter.view(np.int32), torch.int32)
        words = torch.empty_like(given)
        launch(draw, (1,), whole, given, words)
        return {"words": words.cpu().numpy().view(np.uint32)}

    def inside(self, engine: Any, model: Mlp, held: list[Array], split: Split, rows: Array) -> Answers:
        """Return the activations and errors in the engine's buffers."""
        del held, split
        made = {"logits": engine._z[-1]}
        made |= {f"errors{layer}": errors for layer, errors in enumerate(engine._errors, start=1)}
        made |= {f"activations{layer}": torch.relu(z) for layer, z in enumerate(engine._z[:-1], start=1)}
        assert len(made) == 2 * (len(model.sizes) - 1)
        return {name: values[: len(rows)].cpu().numpy() for name, values in made.items()}
