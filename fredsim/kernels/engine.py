"""The engine of the numba backend: it prepares the data once, keeps the work space, and calls the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.datasets import Dataset, Split
from fredsim.kernels.data import cuts, sparse
from fredsim.kernels.evaluation import evaluate
from fredsim.kernels.inhand import CHUNK_BYTES, WorkInHand
from fredsim.kernels.reductions import mean64
from fredsim.kernels.team import Team, default_threads
from fredsim.kernels.trees import specialised
from fredsim.kernels.update import CompiledRule, address, compile_rule
from fredsim.models import Mlp
from fredsim.numerics import oracle
from fredsim.numerics.rules import Rule

__all__ = ["NumbaEngine"]

Array = NDArray[np.float32]

#: Floats that must be readable behind an array that a kernel loads whole vectors from.
MARGIN = 16
ALONE = 20_000  # multiply-adds below which waking the other threads costs more than they bring


class NumbaEngine:
    """Gradients of many minibatches at once, on a team of threads."""

    def __init__(self, model: Mlp, dataset: Dataset, threads: int | None) -> None:
        self.model = model
        self._sizes = np.array(model.sizes, np.int64)
        self._dataset = dataset
        self._team = Team(threads or default_threads())
        self.threads = self._team.size
        widths = -(-self._sizes[1:] // 16) * 16  # of each layer's rows, padded
        self._floats = int(widths.sum())  # of what enters the layers above the first, and of the logits, for one sample
        self._turned = int((widths[:-1] * widths[1:]).sum()) + MARGIN
        self._strides = widths
        self._offsets = np.concatenate([[0], np.cumsum((self._sizes[:-1] + 1) * widths)])
        self._chunk = max(8, min(112, CHUNK_BYTES // (4 * int(widths[0]))))
        self._shape = (-1, 0)
        # Compile, or load what was compiled before, on nothing: a run's clock leaves compilation out.
        empty = Split(dataset.train.x[:0], dataset.train.y[:0])
        self._evaluate(np.zeros(model.layout.size, np.float32), empty)

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Compute all minibatches together."""
        batches, mu = rows.shape
        if batches > self._shape[0] or mu != self._shape[1]:
            self._make_room(batches, mu)
        held_at = np.array([address(array) for array in held], np.int64)
        out_at = address(self._grads) + self._grads.strides[0] * np.arange(batches, dtype=np.int64)
        data = sparse(self._dataset.train)
        run = self._team.run if batches * mu * self.model.layout.size > ALONE else self._team.alone
        run(
            self._gradients, self._sizes, held_at, out_at, data.first, data.column, data.value, data.labels,
            cuts(self._dataset.train, self._chunk), self._chunk, rows, *self._room,
        )  # fmt: skip
        return self._grads[:batches], self._losses[:batches]

    def _make_room(self, batches: int, mu: int) -> None:
        """Make work space for so many minibatches."""
        self._shape = (batches, mu)
        module = specialised("gradient", mu)
        self._gradients = module.gradients
        samples = -(-mu // module.LEAVES) * module.LEAVES
        inside = samples * int((self._sizes[1:-1] + 1).sum())
        self._grads = np.empty((batches, self.model.layout.size), np.float32)
        self._losses = np.empty((batches, mu), np.float32)
        self._room = (
            np.empty(batches * samples * int(self._sizes[0] + 1), np.float32),  # the inputs in blocks
            np.empty(batches * samples // module.LEAVES * int(self._sizes[0] + 1), np.uint8),  # and which are not 0
            np.zeros(batches * mu * self._floats + MARGIN, np.float32),
            np.zeros((batches, samples * self._floats), np.float32),  # errors; those beyond the minibatch stay 0
            np.zeros((batches, inside), np.float32),
            self._losses,
            np.zeros((batches, self._turned), np.float32),
        )

    def work_in_hand(
        self, mu: int, rule: CompiledRule, params: Array, arrays: Sequence[Array], slots: int, window: int | None
    ) -> WorkInHand:
        """Return a machine for events whose minibatches are known when clients fetch."""
        return WorkInHand(self._team, self.model.sizes, self._dataset.train, mu, rule, params, arrays, slots, window)

    def evaluate(self, params: Array, part: str) -> tuple[float, float]:
        """Evaluate the samples in parallel; sums follow the contract's tree whatever the threads."""
        split: Split = getattr(self._dataset, part)
        if len(split) == 0:
            return float("nan"), float("nan")
        losses, wrong = self._evaluate(params, split)
        return oracle.mean64(losses), float(np.count_nonzero(wrong) / len(split))

    def _evaluate(self, params: Array, split: Split) -> tuple[Array, NDArray[np.bool_]]:
        data = sparse(split)
        weights = np.zeros(self._offsets[-1] + MARGIN, np.float32)
        at = 0
        for inputs, width, offset, stride in zip(
            self._sizes, self._sizes[1:], self._offsets, self._strides, strict=False
        ):
            count = (inputs + 1) * width
            rows = weights[offset : offset + (inputs + 1) * stride].reshape(-1, stride)
            rows[:, :width] = params[at : at + count].reshape(-1, width)
            at += count
        losses = np.empty(len(split), np.float32)
        wrong = np.empty(len(split), np.bool_)
        self._team.run(
            evaluate, self._sizes, self._offsets, self._strides, weights, data.first, data.column, data.value,
            data.labels, cuts(split, self._chunk), losses, wrong,
        )  # fmt: skip
        return losses, wrong

    def compile_rule(self, rule: Rule) -> CompiledRule:
        """Compile the rule's fused loop."""
        return compile_rule(rule)

    def mean(self, array: Array) -> float:
        """Return the mean over the flat index."""
        return float(mean64(array))

    def close(self) -> None:
        """End the threads."""
        self._team.close()
