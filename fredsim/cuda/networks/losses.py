"""Losses on a device: sources/networks/losses.cu."""

from __future__ import annotations

import math

from fredsim.compute.buffers import Buffer
from fredsim.cuda.networks.operator import LossKernels
from fredsim.cuda.networks.steps import Given, Steps, Value
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy

__all__ = ["CrossEntropyKernels", "ElementsKernels"]

THREADS = 64


class CrossEntropyKernels(LossKernels):
    """fredsim.numerics.ops.losses.cross_entropy.CrossEntropy."""

    loss: CrossEntropy

    def losses(self, plan: Steps, output: Value, error: Value | None) -> None:
        """Add a launch that has a place a thread, then one that sums the places of a sample if it may have several."""
        loss, places, classes = self.loss, math.prod(output.shape[:-1]), output.shape[-1]
        alone = len(output.shape) == 1 and loss.ignored is None
        fields = {
            "z": output, "labels": Given.TARGETS, "rows": Given.ROWS, "losses": Given.LOSSES, "wrong": Given.WRONG,
            "each": 0 if alone else Buffer(plan.mu * places), "mu": plan.mu, "places": places, "classes": classes,
            "ignored": loss.ignored or 0, "ignores": int(loss.ignored is not None), "smooth": int(loss.smoothing > 0),
            "share": loss.smoothing / classes, "rest": 1 - loss.smoothing,
        }  # fmt: skip
        blocks = -(-plan.mu * places // THREADS), 1
        plan.step("networks/losses", "cross_entropy", blocks, errors=0 if error is None else error, **fields)
        if not alone:
            plan.step("networks/losses", "sum_of_places", (-(-plan.mu // THREADS), 1), **fields)


class ElementsKernels(LossKernels):
    """MeanSquaredError and BinaryCrossEntropy of fredsim.numerics.ops.losses."""

    def losses(self, plan: Steps, output: Value, error: Value | None) -> None:
        """Add a launch that has a sample a thread."""
        name = "binary_cross_entropy" if isinstance(self.loss, BinaryCrossEntropy) else "squared_error"
        plan.step(
            "networks/losses", name, (-(-plan.mu // THREADS), 1), z=output, targets=Given.TARGETS, rows=Given.ROWS,
            losses=Given.LOSSES, wrong=Given.WRONG, errors=0 if error is None else error, mu=plan.mu,
            count=output.each, half=int(getattr(self.loss, "half", False)),
        )  # fmt: skip
