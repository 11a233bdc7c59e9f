"""Values that are the same for every sample: numbers that are part of the network, and a tensor as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Leaves, Operator, Shape, Tensors

__all__ = ["Constant", "Parameter"]


class _Source(Operator):
    """Of the input only its samples are counted; each gets the same values, of shape `sizes`."""

    sizes: Shape

    def shape(self, *shapes: Shape) -> Shape:
        del shapes
        return self.sizes

    def _repeated(self, values: Array, inputs: Inputs) -> Array:
        return np.repeat(values[None], len(inputs[0]), axis=0)

    def backward(self, error: Array, kept: None, tensors: Tensors) -> list[Array | None]:
        return [None]


@dataclass(frozen=True)
class Constant(_Source):
    """Numbers of a shape, in row-major order: `data` has their little-endian bytes, float32 or int64."""

    sizes: Shape
    data: bytes = field(repr=False)
    dtype: Literal["float32", "int64"] = "float32"

    def __post_init__(self) -> None:
        if len(self.data) != int(np.prod(self.sizes, dtype=object)) * np.dtype(self.dtype).itemsize:
            raise ValueError(f"constant: {len(self.data)} bytes are no {self.dtype} of shape {self.sizes}")

    @classmethod
    def of(cls, values: Array) -> Constant:
        """Return the constant of an array, float32 or int64."""
        dtype: Literal["float32", "int64"] = "int64" if values.dtype.kind == "i" else "float32"
        ordered = np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<"))
        return cls(values.shape, ordered.tobytes(), dtype)

    @property
    def values(self) -> Array:
        """The numbers as an array."""
        return np.frombuffer(self.data, np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype).reshape(self.sizes)

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, None]:
        """Keep nothing."""
        return self._repeated(self.values, inputs), None


@dataclass(frozen=True)
class Parameter(_Source):
    """A tensor of parameters, `weight`, for every sample; a sample's own gradient of it is its error."""

    sizes: Shape

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        """Return weight, of the sizes."""
        del shapes
        return {"weight": self.sizes}

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, None]:
        """Keep nothing."""
        return self._repeated(tensors["weight"], inputs), None

    def gradients(self, error: Array, kept: None, tensors: Tensors) -> dict[str, Leaves]:
        """Return δ."""
        return {"weight": lambda part: error.reshape(len(error), *(self.sizes or (1,)))[:, part]}
