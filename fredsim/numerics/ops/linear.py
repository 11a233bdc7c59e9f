"""The dense layer: y_j = (Σ_k x_k·w_kj, k ascending from +0) + b_j, at every position of a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Leaves, Operator, Shape, Tensors, quiet
from fredsim.numerics.ops.sums import combine, over_positions

__all__ = ["Linear"]


@dataclass(frozen=True)
class Linear(Operator):
    """From (…, inputs) to (…, outputs). `layout` is the order of the weight's axes: in_out, or out_in, as PyTorch's.

    Input error: δ_k = Σ_j δ'_j·w_kj, j ascending from +0. A sample's own gradient of w_kj is Σ x_k·δ'_j over its
    positions, in bands of rows; a position is a row.
    """

    at_least: ClassVar[Mapping[str, int]] = {"outputs": 1}

    outputs: int
    bias: bool = True
    layout: Literal["in_out", "out_in"] = "in_out"

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        """Return weight, in the layout, and bias (outputs,)."""
        inputs = self._check(*shapes)[-1]
        weight = (inputs, self.outputs) if self.layout == "in_out" else (self.outputs, inputs)
        return {"weight": weight} | ({"bias": (self.outputs,)} if self.bias else {})

    def _check(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        if not x:
            raise ValueError(f"linear: takes samples of shape (…, inputs), not {x}")
        return x

    def shape(self, *shapes: Shape) -> Shape:
        """Return (…, outputs)."""
        return (*self._check(*shapes)[:-1], self.outputs)

    def _in_out(self, tensors: Tensors) -> Array:
        return tensors["weight"] if self.layout == "in_out" else tensors["weight"].T

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Array]:
        """Keep x."""
        (x,) = inputs
        y = combine(x, self._in_out(tensors))
        with quiet():
            return (y + tensors["bias"] if self.bias else y), x

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        """Return δ."""
        return [combine(error, np.ascontiguousarray(self._in_out(tensors).T))]

    def gradients(self, error: Array, kept: Array, tensors: Tensors) -> dict[str, Leaves]:
        """Return Σ x_k·δ'_j and Σ δ'_j over positions."""
        positions = math.prod(kept.shape[1:-1])
        x = kept.reshape(len(kept), positions, 1, kept.shape[-1])
        d = error.reshape(len(error), positions, 1, self.outputs)

        def weight(part: slice) -> Array:
            with quiet():
                if self.layout == "in_out":
                    return over_positions(x[..., part, None] * d[..., None, :])
                return over_positions(d[..., part, None] * x[..., None, :])

        leaves: dict[str, Leaves] = {"weight": weight}
        if self.bias:
            leaves["bias"] = lambda part: over_positions(d[..., part])
        return leaves
