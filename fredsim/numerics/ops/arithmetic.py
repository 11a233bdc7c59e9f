"""Sums, products, extremes, choices of two inputs, element by element; shapes broadcast as in NumPy, samples apart."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors, quiet
from fredsim.numerics.ops.sums import add_up

__all__ = ["Add", "Keep", "Maximum", "Minimum", "Mul"]

NONE, HALF, ALL = np.float32(0), np.float32(0.5), np.float32(1)


def _fit(error: Array, shape: Shape) -> Array:
    """Return an error summed over the axes that an input of this shape, (µ, …), was repeated along.

    The elements are added in row-major order of these axes, from +0.
    """
    repeated = [axis for axis, size in enumerate(shape) if size == 1 < error.shape[axis]]
    if not repeated:
        return error
    front = np.moveaxis(error, repeated, range(len(repeated)))
    terms = front.reshape(-1, *front.shape[len(repeated) :])
    return add_up(terms, np.zeros(terms.shape[1:], np.float32)).reshape(shape)


class _Both(Operator):
    inputs = 2

    def shape(self, *shapes: Shape) -> Shape:
        a, b = shapes
        if len(a) != len(b):
            raise ValueError(f"{type(self).__name__}: takes two inputs with as many axes, not {a} and {b}")
        try:
            return np.broadcast_shapes(a, b)
        except ValueError:
            raise ValueError(f"{type(self).__name__}: {a} and {b} do not fit together") from None

    @abstractmethod
    def _both(self, a: Array, b: Array) -> Array: ...

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, tuple[Array, Array]]:
        """Keep both inputs."""
        a, b = inputs
        with quiet():
            return self._both(a, b), (a, b)


@dataclass(frozen=True)
class Add(_Both):
    """a + b; the error goes to both."""

    def _both(self, a: Array, b: Array) -> Array:
        return np.asarray(a + b)

    def backward(self, error: Array, kept: tuple[Array, Array], tensors: Tensors) -> list[Array | None]:
        """Return δ twice."""
        return [_fit(error, x.shape) for x in kept]


@dataclass(frozen=True)
class Mul(_Both):
    """a·b; the errors are δ·b and δ·a."""

    def _both(self, a: Array, b: Array) -> Array:
        return np.asarray(a * b)

    def backward(self, error: Array, kept: tuple[Array, Array], tensors: Tensors) -> list[Array | None]:
        """Return δ·b and δ·a."""
        a, b = kept
        with quiet():
            return [_fit(error * b, a.shape), _fit(error * a, b.shape)]


class _Extreme(_Both):
    _beats: ClassVar[np.ufunc]

    def _both(self, a: Array, b: Array) -> Array:
        return np.where(self._beats(a, b) | (a != a), a, b)

    def _share(self, own: Array, other: Array) -> Array:
        return np.where(self._beats(other, own), NONE, np.where(own == other, HALF, ALL))

    def backward(self, error: Array, kept: tuple[Array, Array], tensors: Tensors) -> list[Array | None]:
        """Return δ·s twice."""
        a, b = kept
        with quiet():
            return [_fit(error * self._share(*pair), pair[0].shape) for pair in ((a, b), (b, a))]


@dataclass(frozen=True)
class Maximum(_Extreme):
    """The larger of a and b, NaN if one is; the errors are δ·s, s being 0 for a smaller one, ½ for equal ones, else 1.

    Of equal ones it is b, and beside a NaN both have s = 1.
    """

    _beats = np.greater


@dataclass(frozen=True)
class Minimum(_Extreme):
    """The smaller of a and b, NaN if one is; the errors are δ·s, s being 0 for a larger one, ½ for equal ones, else 1.

    Of equal ones it is b, and beside a NaN both have s = 1.
    """

    _beats = np.less


@dataclass(frozen=True)
class Keep(_Both):
    """a where b > 0, else +0, and the error likewise; b, such as a constant mask, has none."""

    def _both(self, a: Array, b: Array) -> Array:
        return np.where(b > 0, a, NONE)

    def backward(self, error: Array, kept: tuple[Array, Array], tensors: Tensors) -> list[Array | None]:
        """Select instead of multiplying: what is not kept may be infinite."""
        a, b = kept
        return [_fit(self._both(error, b), a.shape), None]
