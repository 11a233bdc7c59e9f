"""Products of matrices that both depend on the sample, and softmax: what attention consists of, for other uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fredsim.numerics.elementary import log32
from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors, quiet
from fredsim.numerics.ops.sums import add_up, combine
from fredsim.numerics.oracle import softmax

__all__ = ["LogSoftmax", "MatMul", "Softmax"]


@dataclass(frozen=True)
class MatMul(Operator):
    """From a (…, rows, k) and b (…, k, columns) to Σ_k a·b, (…, rows, columns): k ascending, from +0.

    The errors are Σ δ·b over columns and Σ a·δ over rows, ascending from +0.
    """

    inputs: ClassVar[int | None] = 2

    def shape(self, *shapes: Shape) -> Shape:
        """Return (…, rows, columns)."""
        a, b = shapes
        if min(len(a), len(b)) < 2 or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise ValueError(f"matmul: takes a (…, rows, k) and b (…, k, columns), not {a} and {b}")
        return (*a[:-1], b[-1])

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, tuple[Array, Array]]:
        """Keep both inputs."""
        a, b = inputs
        return combine(a, b), (a, b)

    def backward(self, error: Array, kept: tuple[Array, Array], tensors: Tensors) -> list[Array | None]:
        a, b = kept
        return [combine(error, np.swapaxes(b, -1, -2)), combine(np.swapaxes(a, -1, -2), error)]


class _OfRows(Operator):
    def shape(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        if not x:
            raise ValueError("softmax: takes samples of shape (…, classes), not ()")
        return x


@dataclass(frozen=True)
class Softmax(_OfRows):
    """p = exp(x − max)/Σ exp(x − max) over the last axis, summed ascending from +0, as in cross-entropy.

    The input error is p·(δ − Σ p·δ), the sum ascending from +0.
    """

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Array]:
        """Keep p."""
        (x,) = inputs
        p = softmax(x.reshape(-1, x.shape[-1]))[0].reshape(x.shape)
        return p, p

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        p = kept
        with quiet():
            mean = add_up((p[..., j] * error[..., j] for j in range(p.shape[-1])), np.zeros(p.shape[:-1], np.float32))
            return [p * (error - mean[..., None])]


@dataclass(frozen=True)
class LogSoftmax(_OfRows):
    """(x − max) − log Σ exp(x − max) over the last axis, summed ascending from +0, as in cross-entropy.

    The input error is δ − p·(Σ δ), p as of softmax, the sum ascending from +0.
    """

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Array]:
        """Keep p."""
        (x,) = inputs
        p, shifted, total = softmax(x.reshape(-1, x.shape[-1]))
        with quiet():
            return (shifted - log32(total)[:, None]).reshape(x.shape), p.reshape(x.shape)

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        with quiet():
            total = add_up((error[..., j] for j in range(error.shape[-1])), np.zeros(error.shape[:-1], np.float32))
            return [error - kept * total[..., None]]
