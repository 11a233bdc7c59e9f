"""Calls the compiled kernels for the records. Values between layers are not accessible; draws are NumPy's."""

from typing import Any

import numpy as np
from numba import njit

from fredsim.data.datasets import Dataset, Split
from fredsim.kernels.arrays import elementary
from fredsim.kernels.mlp.engine import NumbaEngine
from fredsim.networks.mlp import Mlp
from tests.vectors.drive_numpy import Answers, Array, NumpyDriver

__all__ = ["NumbaDriver"]


@njit
def exponentials(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = elementary.exp32(x[i])


@njit
def logarithms(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = elementary.log32(x[i])


NOTHING = Split(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))


class NumbaDriver(NumpyDriver):
    """The methods of NumpyDriver, with two threads, so that work is divided."""

    def __init__(self) -> None:
        self.operations = self.engine(Mlp((1, 2)), Dataset(NOTHING, NOTHING, NOTHING, 2), 1)

    def engine(self, model: Mlp, dataset: Dataset, mu: int) -> Any:
        return NumbaEngine(model, dataset, mu, 2)

    def exp32(self, x: Array) -> Answers:
        out = np.empty(len(x), np.float32)
        exponentials(x, out)
        return {"y": out}

    def log32(self, x: Array) -> Answers:
        out = np.empty(len(x), np.float32)
        logarithms(x, out)
        return {"y": out}

    def inside(self, *_: Any) -> Answers:
        return {}
