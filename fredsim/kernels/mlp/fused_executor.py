"""The executor of the path `fused`: keeps the arguments of the kernel fredsim.kernels.mlp.fused.apply, and calls it.

It keeps passes that are done before the push arrives (fredsim.kernels.mlp.pending), the addresses of the rule's arrays,
and which rows are steady (fredsim.kernels.arrays.steady).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits
from fredsim.jit.team import address, addresses
from fredsim.kernels.arrays.steady import SteadyRows
from fredsim.kernels.arrays.update import compile_rule
from fredsim.kernels.mlp.pending import Minibatches, PassExecutor, slot_bytes
from fredsim.kernels.mlp.specialisation import specialise
from fredsim.numerics.arrays import Array, aligned
from fredsim.numerics.rules import Rule

__all__ = ["NumbaFusedExecutor"]

#: The most bytes of passes that are done before the window in which their push arrives.
AHEAD_BYTES = 2**22


class NumbaFusedExecutor(PassExecutor):
    """Applies a rule on a team of threads: fredsim.compute.engines.FusedExecutor."""

    def __init__(self, of: Minibatches, rule: Rule, arrays: Sequence[Array], watched: str, window: int) -> None:
        layout = of.layout(of.chunk)
        #: See FusedExecutor.
        self.slots = window + AHEAD_BYTES // slot_bytes(layout, of.mu)
        super().__init__(of, self.slots, Limits(), together=window)
        fused, rows = specialise("fused", of.mu, of.split), int(layout.sizes[0]) + 1
        self._kernel, self._steady, self._applied = fused.apply, SteadyRows(rule, 1, rows), 0
        # The number of terms of a sum in float32, and twice the bound of its relative rounding error.
        terms = fused.DRAIN_EVERY + of.chunk * (int(layout.widths.max()) // 16 + 1) + 16
        rounding = np.array([terms * 2.0**-23 if terms < 2**17 else np.inf])
        apply_zeros, sums = len(arrays) > 1 or not rule.zero_keeps, aligned(of.team.size, 32) if watched else 0
        self._arguments = self._kernel.pack(
            passes=self._pass_arguments, begin=0, end=0, rule=compile_rule(rule, watched).address,
            table=addresses([arrays[0], *arrays]), coefficients=0, coefficients_stride=0, apply_zeros=apply_zeros,
            sums=sums, partials=0, rounding=rounding, bounds=0, copies=0, verdicts=0, parameters=len(arrays[0]),
            steady=self._steady.flags, steady_sums=np.zeros((rows, 2)), may_skip=0, applied=0,
        )  # fmt: skip
        for kernel in (self._kernels.forward_backward, self._kernel):
            kernel.address  # noqa: B018  compiles it now, so that this is not counted in the run's time

    def run_passes(self, slots: Sequence[int], held: Sequence[Array], rows: NDArray[np.int64]) -> None:
        """Do the passes of minibatches; see FusedExecutor."""
        different = {id(params): params for params in held}  # several minibatches of a client share parameters
        at = dict(zip(different, addresses(different.values()).tolist(), strict=True))
        self._begin(np.array(slots), np.array([at[id(params)] for params in held]), rows)

    def prepare(
        self, slots: Sequence[int], coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array | None]
    ) -> Array:
        """Prepare the next arrivals; see FusedExecutor."""
        n, coefficients, bounds = len(slots), np.ascontiguousarray(coefficients), np.ascontiguousarray(bounds)
        places, to = np.array(slots), np.array([0 if copy is None else address(copy) for copy in copies])
        self._choose(places, self.pending["samples"][places])
        self._verdicts, self._partials = np.empty(n, np.int64), np.empty((n, self._team.size, 3))
        self._arguments.set(
            coefficients=coefficients, coefficients_stride=coefficients.strides[0], partials=self._partials,
            bounds=bounds, copies=to, verdicts=self._verdicts, may_skip=self._steady.may_skip(coefficients),
            applied=self._applied,
        )  # fmt: skip
        losses: Array = self.pending["losses"][places]
        return losses

    def apply(self, b: int, end: int) -> list[int]:
        """Apply the rule to the gradients of arrivals b … end − 1; see FusedExecutor."""
        self._verdicts[b:] = -1
        self._arguments.begin, self._arguments.end = b, end
        self._team.run(self._kernel, self._arguments)
        verdicts: list[int] = [verdict for verdict in self._verdicts[b:].tolist() if verdict >= 0]
        self._applied += len(verdicts)
        return verdicts

    def mean(self, b: int) -> float:
        """Return the approximate mean of the watched array after arrival b; see FusedExecutor."""
        found = float(self._partials[b, :, 1].sum()) / self._arguments.parameters
        return found if self._arguments.sums else math.nan
