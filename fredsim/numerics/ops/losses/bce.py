"""Binary cross-entropy of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fredsim.numerics.elementary import exp64, log64, sigmoid64
from fredsim.numerics.ops.losses.loss import Loss, Losses
from fredsim.numerics.ops.operator import Array, Shape, quiet
from fredsim.numerics.ops.sums import add_up

__all__ = ["BinaryCrossEntropy"]


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Of logits z and targets y in [0, 1] of one shape, n elements: max(z, 0) − z·y + log(1 + exp(−|z|)).

    It is computed in float64 and rounded once for each element; elements are added in row-major order from +0 and
    divided by n once. The error is (σ(z) − y)/n, with σ(z) − y in float64, rounded once.
    """

    measured_by: ClassVar[Literal["error", "loss"]] = "error"
    targets: ClassVar[Literal["classes", "numbers", "shares"]] = "shares"

    def check(self, output: Shape, target: Shape) -> None:
        """Take two equal shapes; () stands for (1,)."""
        if (output or (1,)) != (target or (1,)):
            raise ValueError(f"bce: takes outputs and targets of one shape, not {output} and {target}")

    def losses(self, output: Array, target: Array) -> Losses:
        z = output.reshape(len(output), -1).astype(np.float64)
        y = target.reshape(len(target), -1).astype(np.float64)
        with quiet():
            each = np.where(z > 0.0, z, 0.0) - z * y + log64(1.0 + exp64(-np.abs(z)))
            each = np.where(np.isnan(z), np.nan, each).astype(np.float32)
            count = np.float32(z.shape[1])
            total = add_up(each.T, np.zeros(len(z), np.float32))
            errors = (sigmoid64(z) - y).astype(np.float32) / count
        return Losses(total / count, errors.reshape(output.shape))

    def wrong(self, output: Array, target: Array) -> Array:
        """Return the share of elements on the other side of 0 than y is of ½; a logit of 0 says 0."""
        z, y = output.reshape(len(output), -1), target.reshape(len(target), -1)
        return np.asarray(((z > 0) != (y > 0.5)).mean(axis=1))
