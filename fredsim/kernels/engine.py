"""The engine of the numba backend: it prepares the data once, keeps the work space, and calls the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.shelf import Limits
from fredsim.data.datasets import Dataset, Split
from fredsim.jit.cache import Compiled
from fredsim.jit.team import address, pack
from fredsim.kernels.data import cuts, sparse
from fredsim.kernels.inhand import WorkInHand
from fredsim.kernels.operations import NumbaOperations
from fredsim.kernels.shape import Shape
from fredsim.kernels.trees import specialised
from fredsim.kernels.update import compile_rule
from fredsim.models.mlp import Mlp
from fredsim.numerics import oracle
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.rules import Rule

__all__ = ["NumbaEngine"]

Array = NDArray[np.float32]

#: The rows of a chunk should stay in the first level of cache.
CHUNK_BYTES = 24 * 2**10


class NumbaEngine(NumbaOperations):
    """Gradients of many minibatches at once, on a team of threads."""

    def __init__(self, model: Mlp, dataset: Dataset, mu: int, threads: int | None) -> None:
        super().__init__(threads)
        self.model = model
        self._size = model.layout.size
        self._mu = mu
        self._evaluation = specialised("evaluation", mu)
        together = self._evaluation.TOGETHER
        self._dataset = dataset
        self._evaluated = shape = Shape(model.sizes, together, self._evaluation, 1)
        self._chunk = max(8, min(112, CHUNK_BYTES // (4 * int(shape.widths[0]))))
        self._scratch = (
            aligned(self.threads, int(shape.inside[-1])),
            aligned(self.threads, (together + 1) * shape.floats + MARGIN),
        )
        self._make_room(0)
        # Compile, or load what was compiled before, on nothing: a run's clock leaves compilation out.
        self._evaluate(aligned(model.layout.size), Split(dataset.train.x[:0], dataset.train.y[:0]))

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Compute all minibatches together."""
        self._run(self._kernels.gradients, held, rows)
        return self._grads[: len(rows)], self._losses[: len(rows)]

    def passes(self, held: Sequence[Array], rows: NDArray[np.int64]) -> Array:
        """Do the forward and error passes of all minibatches; return the losses (B, µ). `apply` goes on from there."""
        self._run(self._kernels.passes, held, rows)
        return self._losses[: len(rows)]

    def applier(self, rule: Rule, arrays: Sequence[Array], watched: str) -> _Applier:
        """Return what applies a rule in place to `arrays`, θ first, (P,) each; `watched` names one of its state."""
        return _Applier(self, rule, arrays, watched)

    def _run(self, kernel: Compiled, held: Sequence[Array], rows: NDArray[np.int64]) -> None:
        batches = len(rows)
        if batches > self._batches:
            self._make_room(batches)
        held_at = np.array([address(array) for array in held], np.int64)
        rows = np.ascontiguousarray(rows, np.int64)
        arguments = self._arguments
        arguments[2], arguments[19], arguments[21] = batches, address(held_at), address(rows)
        self._team.run(kernel, arguments, batches * self._mu * self._size)

    def _make_room(self, batches: int) -> None:
        """Make work space for so many minibatches."""
        self._batches, mu = batches, self._mu
        self._kernels = module = specialised("gradient", mu)
        self._shape = shape = Shape(self.model.sizes, mu, module, self._chunk)
        self._flat = shape.offsets(shape.sizes[1:])
        self._grads = aligned(batches, self._size)
        self._losses = aligned(batches, mu)
        inputs, threads, chunk = int(shape.sizes[0]) + 1, self.threads, self._chunk
        data, pieces = sparse(self._dataset.train), cuts(self._dataset.train, chunk)
        floats = aligned(threads, MARGIN * 66 + chunk * int(shape.widths.max()) + MARGIN)
        out = address(self._grads) + self._grads.strides[0] * np.arange(batches, dtype=np.int64)
        self._room = (
            len(shape.sizes) - 1, mu, batches, chunk, pieces.shape[1] - 1,
            shape.sizes, shape.sizes[1:], self._flat, shape.places, shape.inside, shape.transposed, *shape.tables,
            data.first, data.column, data.value, data.labels, pieces, 0, out, 0, self._losses,
            aligned(batches * shape.samples * inputs),  # the inputs in blocks
            np.empty(batches * shape.groups * inputs, np.uint8),  # and which are not 0
            aligned(batches * shape.samples * shape.floats + MARGIN),
            aligned(batches, int(shape.places[-1])),  # errors; those of samples beyond the minibatch stay 0
            aligned(batches, int(shape.inside[-1])),
            aligned(batches, int(shape.transposed[-1])),
            shape.every, shape.every.shape[1], floats, floats.shape[1],
        )  # fmt: skip
        self._arguments = pack(*self._room)

    def work_in_hand(
        self, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits
    ) -> WorkInHand:
        """Return a machine for events whose minibatches are known when clients fetch."""
        model, train = self.model, self._dataset.train
        return WorkInHand(self._team, model.sizes, train, self._mu, rule, params, arrays, slots, limits)

    def evaluate(self, params: Array, part: str) -> tuple[float, float]:
        """Evaluate the samples in parallel; sums follow the contract's tree whatever the threads."""
        split: Split = getattr(self._dataset, part)
        if len(split) == 0:
            return float("nan"), float("nan")
        losses, wrong = self._evaluate(params, split)
        return oracle.mean64(losses), float(np.count_nonzero(wrong) / len(split))

    def _evaluate(self, params: Array, split: Split) -> tuple[Array, NDArray[np.uint8]]:
        data, shape = sparse(split), self._evaluated
        offsets = shape.offsets(shape.widths)
        weights = aligned(offsets[-1] + MARGIN)
        at = 0
        for inputs, width, offset, stride in zip(shape.sizes, shape.sizes[1:], offsets, shape.widths, strict=False):
            rows = weights[offset : offset + (inputs + 1) * stride].reshape(-1, stride)
            rows[:, :width] = params[at : at + (inputs + 1) * width].reshape(-1, width)
            at += (inputs + 1) * width
        losses = np.empty(len(split), np.float32)
        wrong = np.empty(len(split), np.uint8)
        pieces, order = cuts(split, self._chunk), np.arange(len(split))
        blocks, floats = self._scratch
        self._team.run(
            self._evaluation.evaluate,
            pack(
                len(shape.sizes) - 1, len(split), pieces.shape[1] - 1, shape.sizes, shape.widths, offsets, shape.inside,
                weights, data.first, data.column, data.value, data.labels, pieces, losses, wrong,
                order, blocks, blocks.shape[1], floats, floats.shape[1],
            ),
        )  # fmt: skip
        return losses, wrong


class _Applier:
    """A rule applied to the gradients of the last passes, and what their clients fetch then."""

    def __init__(self, engine: NumbaEngine, rule: Rule, arrays: Sequence[Array], watched: str) -> None:
        compiled, threads = compile_rule(rule, watched), engine.threads
        self._engine, self._kernel = engine, engine._kernels.apply
        self._table = pack(arrays[0], *arrays)
        self._sums = aligned(threads, 32) if watched else np.empty(0)
        terms = engine._kernels.DRAIN + engine._chunk * (int(engine._shape.widths.max()) // 16 + 1) + 16  # of a sum
        # Twice what the theory of rounding gives for so many terms; where it gives too much, nothing is known.
        self._error = np.array([terms * 2.0**-23 if terms < 2**17 else np.inf])
        visit = len(arrays) > 1 or not rule.zero_keeps
        sums = self._sums if watched else 0
        self._arguments = pack(
            0, 0, 0, compiled.address, self._table, 0, 0, visit, sums, 0, self._error, 0, 0, 0, len(arrays[0])
        )
        self._kernel.address  # noqa: B018  it is compiled now, not while a clock runs

    def begin(self, coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array]) -> None:
        """Take what belongs to the minibatches of the last passes."""
        n = len(coefficients)
        self._coefficients, self._bounds = np.ascontiguousarray(coefficients), np.ascontiguousarray(bounds)
        self._copies, self._verdicts = np.array([address(copy) for copy in copies], np.int64), np.empty(n, np.int64)
        self._states = np.empty((n, self._engine.threads, 3))
        arguments = self._arguments
        arguments[0], arguments[2] = address(self._engine._arguments), n
        arguments[5], arguments[6] = address(self._coefficients), self._coefficients.strides[0]
        arguments[9], arguments[11] = address(self._states), address(self._bounds)
        arguments[12], arguments[13] = address(self._copies), address(self._verdicts)

    def __call__(self, b: int) -> list[int]:
        """Apply the rule to the gradients of minibatches b on."""
        self._verdicts[b:] = -1
        self._arguments[1] = b
        self._engine._team.run(self._kernel, self._arguments)
        verdicts: list[int] = self._verdicts[b:].tolist()
        return verdicts[: verdicts.index(-1)] if -1 in verdicts else verdicts
