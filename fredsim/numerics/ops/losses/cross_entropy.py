"""Cross-entropy after a softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fredsim.numerics import oracle
from fredsim.numerics.elementary import log32
from fredsim.numerics.ops.losses.loss import Loss, Losses
from fredsim.numerics.ops.operator import Array, Shape, quiet
from fredsim.numerics.ops.sums import add_up

__all__ = ["CrossEntropy"]


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Of outputs (…, classes) and labels (…): log Σ exp(z − max) − (z_y − max) at each position (docs/numerics.md).

    A sample with several positions, such as a sequence, has the mean over those whose label is not `ignored`: the
    losses are added in row-major order from +0 and divided once, as each position's error is. A sample without any has
    the loss +0. (PyTorch divides by the number of positions of the whole minibatch, which is the same where all samples
    have as many.)

    With label smoothing ε the loss of a position is (1 − ε)·(loss) + ε·(the mean over classes of log Σ exp(z − max) −
    (z_j − max)), j ascending, and the label's 1 becomes (1 − ε) + ε/classes, the others' 0 becomes ε/classes.
    """

    measured_by: ClassVar[Literal["error", "loss"]] = "error"
    targets: ClassVar[Literal["classes", "numbers", "shares"]] = "classes"
    at_least: ClassVar[Mapping[str, int]] = {"ignored": -(2**31)}

    smoothing: float = 0.0
    ignored: int | None = None

    def check(self, output: Shape, target: Shape) -> None:
        """Take (…, classes) and (…)."""
        if not output or output[:-1] != target:
            what = f"takes outputs (…, classes) and labels (…), not {output} and {target}"
            are_second = target and output[1:] == target
            raise ValueError(f"cross_entropy: {what}{'; put the classes last: x.movedim(1, -1)' * bool(are_second)}")

    def output(self, target: Shape, classes: int) -> Shape:
        """Return (…, classes)."""
        return (*target, classes)

    def target(self, output: Shape) -> Shape:
        """Return (…)."""
        return output[:-1]

    def losses(self, output: Array, target: Array) -> Losses:
        """Return the losses and p − onehot(y), +0 where it is below 2⁻⁶²."""
        positions = math.prod(target.shape[1:])
        logits, labels = output.reshape(-1, output.shape[-1]), target.reshape(-1)
        counts = np.ones(len(labels), bool) if self.ignored is None else labels != self.ignored
        each, errors, _ = oracle.softmax_cross_entropy(logits, np.where(counts, labels, 0))
        if self.smoothing:
            each, errors = self._smoothed(logits, np.where(counts, labels, 0))
        each = np.where(counts, each, np.float32(0)).reshape(-1, positions)
        errors = np.where(counts[:, None], errors, np.float32(0))
        if target.ndim == 1 and self.ignored is None:
            return Losses(each[:, 0], errors.reshape(output.shape))
        count = np.maximum(counts.reshape(-1, positions).sum(axis=1), 1).astype(np.float32)
        with quiet():
            total = add_up(each.T, np.zeros(len(each), np.float32))
            shared = errors.reshape(len(count), -1) / count[:, None]
            return Losses(total / count, shared.reshape(output.shape))

    def _smoothed(self, logits: Array, labels: Array) -> tuple[Array, Array]:
        classes, rows = logits.shape[1], np.arange(len(logits))
        share, rest = np.float32(self.smoothing / classes), np.float32(1 - self.smoothing)
        with quiet():
            p, shifted, total = oracle.softmax(logits)
            log_total = log32(total)
            own = log_total - shifted[rows, labels]
            others = add_up((log_total - shifted[:, j] for j in range(classes)), np.zeros_like(own))
            wanted = np.full_like(p, share)
            wanted[rows, labels] = rest + share
            errors = p - wanted
            errors = np.where(np.abs(errors) < oracle.FLUSH, np.float32(0), errors)
            return rest * own + share * others, errors

    def wrong(self, output: Array, target: Array) -> Array:
        """Return the share of positions whose largest output is not the label's; a tie goes to the lowest class."""
        best = oracle.largest(output)
        counts = np.ones(target.shape, bool) if self.ignored is None else target != self.ignored
        axes = tuple(range(1, target.ndim))
        count = np.maximum(counts.sum(axis=axes), 1)
        return np.asarray(((best != target) & counts).sum(axis=axes) / count)
