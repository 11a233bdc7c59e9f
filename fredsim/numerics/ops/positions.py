"""The numbers of a sequence's positions, from which an embedding of positions chooses its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors

__all__ = ["Positions"]


@dataclass(frozen=True)
class Positions(Operator):
    """0, 1, …, `count` − 1 for every sample, as torch.arange gives them; of the input only its samples are counted."""

    at_least: ClassVar[Mapping[str, int]] = {"count": 1}

    count: int

    def shape(self, *shapes: Shape) -> Shape:
        """Return (count,)."""
        del shapes
        return (self.count,)

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, None]:
        """Return integers (µ, count); keep nothing."""
        return np.tile(np.arange(self.count), (len(inputs[0]), 1)), None

    def backward(self, error: Array, kept: None, tensors: Tensors) -> list[Array | None]:
        return [None]
