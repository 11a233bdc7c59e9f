"""The mean squared error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fredsim.numerics.ops.losses.loss import Loss, Losses
from fredsim.numerics.ops.operator import Array, Shape, quiet
from fredsim.numerics.ops.sums import add_up

__all__ = ["MeanSquaredError"]


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Of outputs and targets of one shape, n elements: e = z − y; Σ e·e in row-major order from +0, divided by n once.

    The error is (e·2)/n. With `half`, of least squares, the loss is (e·e)·½ for one element, and the error is e.
    """

    half: bool = False

    def check(self, output: Shape, target: Shape) -> None:
        """Take two equal shapes; with `half`, of one element. () stands for (1,)."""
        if (output or (1,)) != (target or (1,)) or (self.half and (output or (1,)) != (1,)):
            wanted = "one output and one target" if self.half else "outputs and targets of one shape"
            raise ValueError(f"mse: takes {wanted}, not {output} and {target}")

    def losses(self, output: Array, target: Array) -> Losses:
        with quiet():
            e = output.reshape(len(output), -1) - target.reshape(len(target), -1)
            if self.half:
                return Losses((e * e * np.float32(0.5))[:, 0], e.reshape(output.shape))
            count = np.float32(e.shape[1])
            total = add_up((e * e).T, np.zeros(len(e), np.float32))
            return Losses(total / count, (e * np.float32(2) / count).reshape(output.shape))
