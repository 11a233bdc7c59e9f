"""Dropout with keyed draws (Srivastava et al. 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors, quiet

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout(Operator):
    """+0 where a uniform draw is below p, else x·s with s = 1/(1 − p) rounded to float32 once; x while evaluating.

    Raises ValueError for a p outside [0, 1).
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ValueError(f"dropout: p is {self.p}; it must be at least 0 and below 1")

    @property
    def draws(self) -> bool:
        return self.p > 0

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Array | None]:
        """Keep which elements stay."""
        (x,) = inputs
        if draw is None or self.p == 0:
            return x, None
        stays = draw(x.shape) >= self.p
        return self._scaled(x, stays), stays

    def _scaled(self, x: Array, stays: Array) -> Array:
        with quiet():
            return np.where(stays, x * np.float32(1 / (1 - self.p)), np.float32(0))

    def backward(self, error: Array, kept: Array | None, tensors: Tensors) -> list[Array | None]:
        """Return δ·s where x stayed, else +0."""
        return [error if kept is None else self._scaled(error, kept)]
