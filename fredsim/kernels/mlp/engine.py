"""The engine of the numba backend for multilayer perceptrons: prepares data, allocates workspace, and calls kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits
from fredsim.data.datasets import Dataset, Split
from fredsim.jit.team import address, addresses
from fredsim.kernels.mlp.evaluation import SAMPLES_AT_ONCE
from fredsim.kernels.mlp.fused_executor import NumbaFusedExecutor
from fredsim.kernels.mlp.hand_executor import NumbaHandExecutor
from fredsim.kernels.mlp.pending import Minibatches, NumbaGradientExecutor, pack_passes, together_in_cache
from fredsim.kernels.mlp.sparse_rows import pack_split, rows_in_cache
from fredsim.kernels.mlp.specialisation import specialise
from fredsim.kernels.mlp.workspace import WorkspaceLayout, block_size
from fredsim.kernels.ops.engine import NumbaGraphEngine, OfPlans
from fredsim.networks.graph import Graph
from fredsim.networks.mlp import DenseLayers, Mlp, dense_layers
from fredsim.numerics.arrays import MARGIN, Array, aligned
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.rules import Rule

__all__ = ["NumbaEngine", "NumbaEngineByRule"]

MOST_ROWS = 112  # of the first layer's weights that are multiplied, and of its gradient that are formed, at once


class NumbaEngine(OfPlans):
    """Computes gradients of minibatches of µ samples, many at once, and evaluates: fredsim.compute.engines.Engine.

    `threads` None means one thread per processor.
    """

    why_whole = ""

    def __init__(self, model: Mlp, dataset: Dataset, mu: int, threads: int | None) -> None:
        super().__init__(threads)
        self.model, self._graph = model, model.graph
        self._size = model.layout.size
        self._mu = mu
        self._dataset = dataset
        self._evaluation_layout = layout = WorkspaceLayout(model.sizes, SAMPLES_AT_ONCE, block_size(mu), 1)
        self._chunk = min(MOST_ROWS, rows_in_cache(dataset.train, int(layout.widths[0])))
        self._scratch = (
            aligned(self.threads, int(layout.activation_offsets[-1])),
            aligned(self.threads, (SAMPLES_AT_ONCE + 1) * layout.sample_floats + MARGIN),
        )
        self._of = Minibatches(self._team, cast(DenseLayers, dense_layers(self._graph)), dataset.train, mu, self._chunk)
        self._allocate(0)
        # Compile, or load from the cache, now, so that it is not counted in the run's time.
        for split in (dataset.train, dataset.validation, dataset.test):
            specialise("evaluation", mu, split).evaluate.address  # noqa: B018

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute the gradients of all minibatches together, of none to compile; see Engine."""
        batches = len(rows)
        if max(1, batches) > self._batches:
            self._allocate(max(1, batches))
        rows = np.ascontiguousarray(rows, np.int64)
        for begin in range(0, max(1, batches), self._together):
            some = slice(begin, min(begin + self._together, batches))
            self._arguments.set(
                batches=some.stop - begin, held=addresses(held[some]), rows=rows[some], losses=self._losses[some],
                out=self._out[some],
            )  # fmt: skip
            self._team.run(self._kernels.gradients, self._arguments, (some.stop - begin) * self._mu * self._size)
        return self._grads[:batches], self._losses[:batches]

    def fused_executor(self, rule: Rule, arrays: Sequence[Array], watched: str, window: int) -> NumbaFusedExecutor:
        """Return an executor that applies a rule in place to `arrays`, θ first, (P,) each; see Engine."""
        return NumbaFusedExecutor(self._of, rule, arrays, watched, window)

    def _allocate(self, batches: int) -> None:
        """Allocate gradients of this many minibatches, and workspace for those whose passes are done together."""
        self._batches, layout = batches, self._of.layout(self._chunk)
        self._together = together_in_cache(layout)
        together = min(batches, self._together)
        self._kernels = specialise("gradient", self._mu, self._dataset.train)
        self._grads = aligned(batches, self._size)
        self._losses = aligned(batches, self._mu)
        self._out = address(self._grads) + self._grads.strides[0] * np.arange(batches)
        self._arguments = pack_passes(
            self._of, together, slots=np.arange(together), losses=self._losses, out=self._out,
            errors=aligned(together, int(layout.error_offsets[-1])),  # those of samples beyond the minibatch stay 0
            activations=aligned(together, int(layout.activation_offsets[-1])),
        )  # fmt: skip

    def hand_executor(
        self, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits
    ) -> NumbaHandExecutor:
        """Return an executor for events whose minibatches are known when clients fetch; see Engine."""
        return NumbaHandExecutor(self._of, rule, params, arrays, slots, limits)

    def gradient_executor(self, slots: int, limits: Limits) -> NumbaGradientExecutor:
        """Return an executor for such events, for servers that get whole gradients; see Engine."""
        return NumbaGradientExecutor(self._of, slots, limits)

    def outcomes(self, params: Array, part: str) -> tuple[Array, NDArray[np.bool_]]:
        """Return each sample's loss, and whether its answer is wrong; see Engine."""
        split: Split = getattr(self._dataset, part)
        layout = self._evaluation_layout
        offsets = layout.offsets(layout.widths)
        weights = aligned(offsets[-1] + MARGIN)  # the parameters in rows of whole vectors
        at = 0
        for inputs, width, offset, stride in zip(layout.sizes, layout.sizes[1:], offsets, layout.widths, strict=False):
            rows = weights[offset : offset + (inputs + 1) * stride].reshape(-1, stride)
            rows[:, :width] = params[at : at + (inputs + 1) * width].reshape(-1, width)
            at += (inputs + 1) * width
        losses = np.empty(len(split), np.float32)
        wrong = np.empty(len(split), np.uint8)
        blocks, floats = self._scratch
        kernel = specialise("evaluation", self._mu, split).evaluate
        arguments = kernel.pack(
            net=layout.network(layout.widths, offsets), data=pack_split(split, self._chunk), count=len(split),
            weights=weights, order=np.arange(len(split)), losses=losses, wrong=wrong, activations=blocks,
            activations_stride=blocks.shape[1], z=floats, z_stride=floats.shape[1],
        )  # fmt: skip
        self._team.run(kernel, arguments)
        return losses, wrong.view(np.bool_)


class NumbaEngineByRule(NumbaGraphEngine):
    """The engine of a network that computes what an Mlp does, from parameters in another order, such as PyTorch's.

    On the path `hand` a rule is applied to a copy of the parameters in the order of these kernels.
    """

    why_whole = ""
    in_place = False

    def __init__(self, graph: Graph, layers: DenseLayers, dataset: Dataset, mu: int, threads: int | None) -> None:
        super().__init__(graph, dataset, mu, threads)
        self._of = Minibatches(self._team, layers, dataset.train, mu, chunk=MOST_ROWS)

    def hand_executor(
        self, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits
    ) -> NumbaHandExecutor:
        """Return an executor for events whose minibatches are known when clients fetch; see Engine."""
        return NumbaHandExecutor(self._of, rule, params, arrays, slots, limits)
