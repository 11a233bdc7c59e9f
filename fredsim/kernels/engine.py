"""The engine of the numba backend: it prepares the data once, keeps the work space, and calls the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fredsim.datasets import Dataset, Split
from fredsim.kernels.dense import evaluate
from fredsim.kernels.gradient import gradients
from fredsim.kernels.reductions import mean64
from fredsim.kernels.team import Team, default_threads
from fredsim.kernels.update import compile_rule
from fredsim.models import Mlp
from fredsim.numerics import oracle
from fredsim.numerics.rules import Rule

__all__ = ["NumbaEngine"]

Array = NDArray[np.float32]

#: Floats that must be readable behind an array that a kernel loads whole vectors from.
MARGIN = 16
ALONE = 20_000  # multiply-adds below which waking the other threads costs more than they bring


@dataclass(frozen=True)
class Sparse:
    """A split in compressed sparse rows: 81 % of MNIST's pixels are zero, and a zero's products are left out anyway."""

    first: NDArray[np.int64]  # (n + 1,)
    column: NDArray[np.int32]
    value: Array
    labels: NDArray[np.int64]


@lru_cache(maxsize=12)
def sparse(split: Split) -> Sparse:
    """Return the sparse form of a split; runs of one sweep share it."""
    occupied = split.x != 0
    first = np.concatenate([[0], np.cumsum(np.count_nonzero(occupied, axis=1))]).astype(np.int64)
    return Sparse(first, np.nonzero(occupied)[1].astype(np.int32), split.x[occupied], split.y)


def address(array: NDArray[np.generic]) -> int:
    """Return the memory address of an array's first element."""
    return int(array.__array_interface__["data"][0])


class NumbaEngine:
    """Gradients of many minibatches at once, on a team of threads."""

    def __init__(self, model: Mlp, dataset: Dataset, threads: int | None) -> None:
        self._sizes = np.array(model.sizes, np.int64)
        self._layout = model.layout
        self._dataset = dataset
        self._train = sparse(dataset.train)
        self._team = Team(threads or default_threads())
        self.threads = self._team.size
        widths = self._sizes[1:]
        self._stride = int(((widths + 15) // 16 * 16).sum())
        self._turned = int((self._sizes[1:-1] * self._sizes[2:]).sum()) + MARGIN
        self._shape = (0, 0)
        # Compile both kernels, or load what was compiled before, on nothing: a run's clock leaves compilation out.
        self.gradients([], np.empty((0, 1), np.int64))
        self._evaluate(np.empty(0, np.float32), sparse(Split(dataset.train.x[:0], dataset.train.y[:0])))

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Compute all minibatches together."""
        batches, mu = rows.shape
        if batches > self._shape[0] or mu != self._shape[1]:
            self._shape = (batches, mu)
            self._grads = np.empty((batches, self._layout.size), np.float32)
            self._losses = np.empty((batches, mu), np.float32)
            self._activations = np.empty(batches * mu * self._stride + MARGIN, np.float32)
            self._errors = np.empty_like(self._activations)
            self._turned_weights = np.empty((batches, self._turned), np.float32)
        held_at = np.array([address(array) for array in held], np.int64)
        out_at = address(self._grads) + self._grads.strides[0] * np.arange(batches, dtype=np.int64)
        run = self._team.run if batches * mu * self._layout.size > ALONE else self._team.alone
        run(
            gradients, self._sizes, held_at, out_at, self._train.first, self._train.column, self._train.value,
            self._train.labels, rows, self._activations, self._errors, self._losses[:batches], self._turned_weights,
        )  # fmt: skip
        return self._grads[:batches], self._losses[:batches]

    def evaluate(self, params: Array, part: str) -> tuple[float, float]:
        """Evaluate the samples in parallel; sums follow the contract's tree whatever the threads."""
        split: Split = getattr(self._dataset, part)
        if len(split) == 0:
            return float("nan"), float("nan")
        losses, wrong = self._evaluate(params, sparse(split))
        return oracle.mean64(losses), float(np.count_nonzero(wrong) / len(split))

    def _evaluate(self, params: Array, data: Sparse) -> tuple[Array, NDArray[np.bool_]]:
        weights = np.empty(len(params) + MARGIN, np.float32)
        weights[: len(params)] = params
        losses = np.empty(len(data.labels), np.float32)
        wrong = np.empty(len(data.labels), np.bool_)
        self._team.run(evaluate, self._sizes, weights, data.first, data.column, data.value, data.labels, losses, wrong)
        return losses, wrong

    def compile_rule(self, rule: Rule) -> Callable[..., bool]:
        """Compile the rule's fused loop."""
        return compile_rule(rule)

    def mean(self, array: Array) -> float:
        """Return the mean over the flat index."""
        return float(mean64(array))

    def close(self) -> None:
        """End the threads."""
        self._team.close()
