"""Calls the kernels of the backend cuda for the records; without a device, emulated."""

from functools import cache
from typing import Any

import numpy as np

from fredsim.cuda.array import empty, upload
from fredsim.cuda.engine import CudaEngine
from fredsim.cuda.interface import Loaded
from fredsim.cuda.kernels import make_unit
from fredsim.cuda.launches import launch
from fredsim.cuda.machines import machine
from fredsim.cuda.operations import CudaOperations
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.mlp import Mlp
from tests.vectors.drive_numpy import Answers, Array, NumpyDriver

__all__ = ["CudaDriver"]

#: Kernels that do nothing but call the functions of others.
SOURCE = """
#include "common.h"
#include "elementary.h"
#include "ternary.cu"

struct Map {
  const float* x;
  float* y;
  i64 n;
};
KERNEL(exponential, Map, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i < p.n) p.y[i] = exp32(p.x[i]);
}
KERNEL(logarithm, Map, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i < p.n) p.y[i] = log32(p.x[i]);
}

struct Words {
  const int* counter;
  int* out;
  int key0;
  int key1;
};
KERNEL(random_words, Words, 4, 0) {
  const u32 counter[4] = {(u32)p.counter[0], (u32)p.counter[1], (u32)p.counter[2], (u32)p.counter[3]};
  p.out[threadIdx.x] = (int)random_word(counter, p.key0, p.key1, threadIdx.x);
}
"""


@cache
def kernel(name: str) -> Loaded:
    return machine().load(unit())[name]


@cache
def unit() -> Any:
    return make_unit("the records", SOURCE)


class CudaDriver(NumpyDriver):
    """The methods of NumpyDriver; arrays are copied to the device and back."""

    def __init__(self) -> None:
        self.operations: Any = CudaOperations()

    def engine(self, model: Mlp, dataset: Dataset, mu: int) -> Any:
        return CudaEngine(model, dataset, mu)

    def exp32(self, x: Array) -> Answers:
        return {"y": self.mapped("exponential", x)}

    def log32(self, x: Array) -> Answers:
        return {"y": self.mapped("logarithm", x)}

    def mapped(self, name: str, x: Array) -> Array:
        given, found = upload(x, np.float32), empty(len(x))
        launch(machine(), kernel(name), (-(-len(x) // 128), 1, 1), x=given.address, y=found.address, n=len(x))
        return np.asarray(found)

    def philox(self, counter: Array, key: Array) -> Answers:
        given, words = upload(counter.view(np.int32)), empty(4, np.int32)
        key0, key1 = key.view(np.int32)
        fields = {"counter": given.address, "out": words.address, "key0": key0, "key1": key1}
        launch(machine(), kernel("random_words"), (1, 1, 1), **fields)
        return {"words": np.asarray(words).view(np.uint32)}

    def inside(self, engine: Any, model: Mlp, held: list[Array], split: Split, rows: Array) -> Answers:
        """Return the activations and errors in the engine's buffers."""
        del held, split
        made = {"logits": engine._z[-1]}
        made |= {f"errors{layer}": errors for layer, errors in enumerate(engine._errors, start=1)}
        found = {name: np.asarray(values)[: len(rows)] for name, values in made.items()}
        for layer, z in enumerate(engine._z[:-1], start=1):
            values = np.asarray(z)[: len(rows)]
            found[f"activations{layer}"] = np.where(values > 0, values, np.float32(0))
        assert len(found) == 2 * (len(model.sizes) - 1)
        return found
