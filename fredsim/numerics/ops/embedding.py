"""Embedding: rows of a table, chosen by integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fredsim.errors import SimulationError
from fredsim.numerics.ops.operator import Array, Draw, Inputs, Leaves, Operator, Shape, Tensors, quiet

__all__ = ["Embedding"]


@dataclass(frozen=True)
class Embedding(Operator):
    """From integers (…) to (…, width): row x of the table (rows, width). Floats are cut off to integers.

    A sample's own gradient of a row is the sum of δ at the positions where the row occurs, in row-major order, from +0;
    that of the row `untrained` (PyTorch's padding_idx) is +0.
    """

    at_least: ClassVar[Mapping[str, int]] = {"rows": 1, "width": 1, "untrained": 0}
    added: ClassVar[frozenset[str]] = frozenset({"untrained"})

    rows: int
    width: int
    untrained: int | None = None

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        """Return weight (rows, width)."""
        del shapes
        return {"weight": (self.rows, self.width)}

    def shape(self, *shapes: Shape) -> Shape:
        """Return (…, width)."""
        return (*shapes[0], self.width)

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Array]:
        """Keep x. Raises SimulationError for an integer that is no row's."""
        x = inputs[0].astype(np.int64, copy=False)
        if x.size and not 0 <= x.min() <= x.max() < self.rows:
            raise SimulationError(f"embedding: {x.min()} … {x.max()} are no rows of 0 … {self.rows - 1}")
        return tensors["weight"][x], x

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        """Return that integers have no error."""
        return [None]

    def gradients(self, error: Array, kept: Array, tensors: Tensors) -> dict[str, Leaves]:
        """Return the sums of δ by row."""
        x = kept.reshape(len(kept), -1)
        learns = x != (-1 if self.untrained is None else self.untrained)
        each = error.reshape(*x.shape, self.width)

        def weight(part: slice) -> Array:
            first, end, _ = part.indices(self.rows)
            grads, samples = np.zeros((len(x), end - first, self.width), np.float32), np.arange(len(x))
            with quiet():
                for at in range(x.shape[1]):
                    inside = (x[:, at] >= first) & (x[:, at] < end) & learns[:, at]
                    grads[samples[inside], x[inside, at] - first] += each[inside, at]
            return grads

        return {"weight": weight}
