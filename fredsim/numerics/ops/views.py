"""The same elements, also in other shapes and orders: no number changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors

__all__ = ["Cat", "Detach", "Permute", "Reshape", "Slice"]


class _View(Operator):
    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Shape]:
        """Keep the shape of x."""
        return np.ascontiguousarray(self._view(inputs[0])), inputs[0].shape

    def _view(self, x: Array) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class Detach(Operator):
    """x as it is; no error goes back to it."""

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, None]:
        """Keep nothing."""
        return inputs[0], None

    def backward(self, error: Array, kept: None, tensors: Tensors) -> list[Array | None]:
        """Return no error."""
        return [None]


@dataclass(frozen=True)
class Reshape(_View):
    """The elements in row-major order in another shape; one size may be −1. Flattening is Reshape((-1,))."""

    sizes: Shape

    def shape(self, *shapes: Shape) -> Shape:
        """Return the sizes, with −1 computed."""
        (x,), known = shapes, math.prod(size for size in self.sizes if size != -1)
        count = math.prod(x)
        free = self.sizes.count(-1)
        if free > 1 or known == 0 or count % known or (free == 0 and count != known):
            raise ValueError(f"reshape: {count} elements, {x}, do not fit {self.sizes}")
        return tuple(count // known if size == -1 else size for size in self.sizes)

    def _view(self, x: Array) -> Array:
        return x.reshape(len(x), *self.shape(x.shape[1:]))

    def backward(self, error: Array, kept: Shape, tensors: Tensors) -> list[Array | None]:
        return [error.reshape(kept)]


@dataclass(frozen=True)
class Permute(_View):
    """The axes of a sample, counted from 0, in another order."""

    at_least: ClassVar[Mapping[str, int]] = {"axes": 0}

    axes: tuple[int, ...]

    def shape(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        if sorted(self.axes) != list(range(len(x))):
            raise ValueError(f"permute: {self.axes} is no order of the {len(x)} axes of {x}")
        return tuple(x[axis] for axis in self.axes)

    def _view(self, x: Array) -> Array:
        return x.transpose(0, *(axis + 1 for axis in self.axes))

    def backward(self, error: Array, kept: Shape, tensors: Tensors) -> list[Array | None]:
        back = (0, *(int(axis) + 1 for axis in np.argsort(self.axes)))
        return [np.ascontiguousarray(error.transpose(back))]


@dataclass(frozen=True)
class Slice(_View):
    """The elements `begin` … `end` − 1 of one axis of a sample."""

    at_least: ClassVar[Mapping[str, int]] = {"axis": 0, "begin": 0, "end": 1}

    axis: int
    begin: int
    end: int

    def shape(self, *shapes: Shape) -> Shape:
        """Return x's shape with `end` − `begin` on the axis."""
        (x,) = shapes
        if not (0 <= self.axis < len(x) and 0 <= self.begin < self.end <= x[self.axis]):
            raise ValueError(f"slice: {x} has no elements {self.begin} … {self.end - 1} of axis {self.axis}")
        return (*x[: self.axis], self.end - self.begin, *x[self.axis + 1 :])

    def _part(self) -> tuple[slice, ...]:
        return (*(slice(None),) * (self.axis + 1), slice(self.begin, self.end))

    def _view(self, x: Array) -> Array:
        return x[self._part()]

    def backward(self, error: Array, kept: Shape, tensors: Tensors) -> list[Array | None]:
        """Return δ with +0 around it."""
        whole = np.zeros(kept, error.dtype)
        whole[self._part()] = error
        return [whole]


@dataclass(frozen=True)
class Cat(Operator):
    """Inputs one after the other along one axis of a sample. Beside floats, integers become float32."""

    at_least: ClassVar[Mapping[str, int]] = {"axis": 0}

    axis: int
    inputs: ClassVar[int | None] = None

    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape with the sum of the sizes on the axis."""
        first = shapes[0]
        around = {(*x[: self.axis], *x[self.axis + 1 :]) for x in shapes}
        if not 0 <= self.axis < len(first) or len(around) > 1 or len({len(x) for x in shapes}) > 1:
            raise ValueError(f"cat: {', '.join(map(str, shapes))} differ elsewhere than on axis {self.axis}")
        return (*first[: self.axis], sum(x[self.axis] for x in shapes), *first[self.axis + 1 :])

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, list[int]]:
        """Keep where inputs end."""
        ends = list(accumulate(x.shape[self.axis + 1] for x in inputs))
        joined = np.concatenate(inputs, axis=self.axis + 1)
        return joined.astype(np.float32, copy=False) if joined.dtype.kind == "f" else joined, ends

    def backward(self, error: Array, kept: list[int], tensors: Tensors) -> list[Array | None]:
        return [np.ascontiguousarray(part) for part in np.split(error, kept[:-1], axis=self.axis + 1)]
