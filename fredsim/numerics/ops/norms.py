"""Normalisation: y = ((x − m)·r)·γ + β, with the mean m and r = 1/√(v + ε) of a set of elements.

m = S(x)/N and v = S((x − m)·(x − m))/N, each rounded once, for N elements and a sum S; with d = δ·γ and x̂ = (x − m)·r
the input error is r·((d − S(d)/N) − x̂·(S(d·x̂)/N)). A sample's own gradients of γ and β are the sums of δ·x̂ and of δ
over positions. Group norm: Wu and He 2018; layer norm: Ba et al. 2016; RMS norm: Zhang and Sennrich 2019; batch norm:
Ioffe and Szegedy 2015.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Leaves, Operator, Shape, Tensors, quiet
from fredsim.numerics.ops.sums import over_axis, over_positions

__all__ = ["BatchNorm", "FrozenBatchNorm", "GroupNorm", "LayerNorm", "RmsNorm"]

ONE = np.float32(1)


class Kept(NamedTuple):
    """x̂ and r, as they broadcast over (µ, rows, columns, channels), the shape of x, and the mean and the variance."""

    normal: Array
    r: Array
    shape: Shape
    moments: tuple[Array, ...] = ()


class _Norm(Operator):
    """Elements as (µ, rows, columns, channels); γ and β have one element a channel."""

    eps: float
    affine: bool
    #: Whether channels are a sample's first axis, as in images of PyTorch, or its last.
    _first = True

    @abstractmethod
    def _sum(self, values: Array) -> Array:
        """Return S of values (µ, rows, columns, channels), as it broadcasts over them."""

    @abstractmethod
    def _count(self, shape: Shape) -> int:
        """Return N for values of a shape (µ, rows, columns, channels)."""

    def _channels(self, x: Shape) -> int:
        if not x:
            raise ValueError(f"{type(self).__name__}: takes samples with channels, not {x}")
        return x[0] if self._first else x[-1]

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        """Return weight γ and bias β, (channels,) each, if it is affine."""
        each = (self._channels(*shapes),)
        return {"weight": each, "bias": each} if self.affine else {}

    def shape(self, *shapes: Shape) -> Shape:
        self._channels(*shapes)
        return shapes[0]

    def _last(self, x: Array) -> Array:
        """Return x (µ, …) as (µ, rows, columns, channels): all positions but those of an image are rows."""
        if self._first:
            flat = x.reshape(*x.shape[:2], *(x.shape[2:] if x.ndim == 4 else (-1, 1)))
            return np.ascontiguousarray(flat.transpose(0, 2, 3, 1))
        return x.reshape(len(x), -1, 1, x.shape[-1])

    def _back(self, y: Array, shape: Shape) -> Array:
        if self._first:
            y = y.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(y).reshape(shape)

    def _normal(self, x: Array, tensors: Tensors) -> tuple[Array, ...]:
        """Return x̂ and r, and the mean and the variance if both are those of the elements."""
        count = np.float32(self._count(x.shape))
        mean = self._sum(x) / count
        apart = x - mean
        variance = self._sum(apart * apart) / count
        return *self._over_deviation(apart, variance), mean, variance

    def _over_deviation(self, apart: Array, variance: Array) -> tuple[Array, Array]:
        r = ONE / np.sqrt(variance + np.float32(self.eps))
        return apart * r, r

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Kept]:
        """Keep x̂ and r."""
        (x,) = inputs
        with quiet():
            normal, r, *moments = self._normal(self._last(x), tensors)
            y = normal * tensors["weight"] if "weight" in tensors else normal
            y = y + tensors["bias"] if "bias" in tensors else y
        return self._back(y, x.shape), Kept(normal, r, x.shape, tuple(moments))

    def backward(self, error: Array, kept: Kept, tensors: Tensors) -> list[Array | None]:
        given = self._last(error)
        with quiet():
            dx = self._input_error(given * tensors["weight"] if self.affine else given, kept)
        return [self._back(dx, kept.shape)]

    def gradients(self, error: Array, kept: Kept, tensors: Tensors) -> dict[str, Leaves]:
        """Return Σ δ·x̂ and Σ δ over positions."""
        given = self._last(error)
        with quiet():
            scaled = given * kept.normal
        leaves: dict[str, Leaves] = {
            "weight": lambda part: over_positions(scaled[..., part]),
            "bias": lambda part: over_positions(given[..., part]),
        }
        return {role: own for role, own in leaves.items() if role in tensors}

    def _input_error(self, d: Array, kept: Kept) -> Array:
        count = np.float32(self._count(d.shape))
        centred = d - self._sum(d) / count
        return np.asarray(kept.r * (centred - kept.normal * (self._sum(d * kept.normal) / count)))


@dataclass(frozen=True)
class GroupNorm(_Norm):
    """Over the positions and channels of each of `groups` groups of a sample (channels, …).

    S: per channel over positions, in bands of rows; then over the group's channels by the tree.
    """

    at_least: ClassVar[Mapping[str, int]] = {"groups": 1}

    groups: int
    eps: float = 1e-5
    affine: bool = True

    def shape(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        if self._channels(x) % self.groups:
            raise ValueError(f"GroupNorm: {x[0]} channels are no {self.groups} groups of one size")
        return x

    def _sum(self, values: Array) -> Array:
        each = over_positions(values)
        sums = over_axis(each.reshape(len(each), self.groups, -1), 2)
        return np.repeat(sums, each.shape[1] // self.groups, axis=1)[:, None, None]

    def _count(self, shape: Shape) -> int:
        return shape[1] * shape[2] * (shape[3] // self.groups)


@dataclass(frozen=True)
class LayerNorm(_Norm):
    """Over the last axis of (…, channels), at each position alone; S is the tree over channels."""

    eps: float = 1e-5
    affine: bool = True
    _first = False

    def _sum(self, values: Array) -> Array:
        return over_axis(values, 3)[..., None]

    def _count(self, shape: Shape) -> int:
        return shape[3]


@dataclass(frozen=True)
class RmsNorm(LayerNorm):
    """y = (x·r)·γ with r = 1/√(S(x·x)/N + ε), without a mean and β; the input error is r·(d − x̂·(S(d·x̂)/N))."""

    eps: float = 1e-6

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        """Return weight γ (channels,) if it is affine."""
        return {"weight": (self._channels(*shapes),)} if self.affine else {}

    def _normal(self, x: Array, tensors: Tensors) -> tuple[Array, ...]:
        return self._over_deviation(x, self._sum(x * x) / np.float32(self._count(x.shape)))

    def _input_error(self, d: Array, kept: Kept) -> Array:
        mean = self._sum(d * kept.normal) / np.float32(self._count(d.shape))
        return np.asarray(kept.r * (d - kept.normal * mean))


@dataclass(frozen=True)
class BatchNorm(_Norm):
    """Over the positions of all samples of a minibatch, for each channel of (channels, …).

    S: a sample's positions in bands of rows; then samples by the tree. The only operator in which samples meet.
    """

    eps: float = 1e-5
    affine: bool = True

    def _sum(self, values: Array) -> Array:
        return over_axis(over_positions(values), 0)

    def _count(self, shape: Shape) -> int:
        return shape[0] * shape[1] * shape[2]


@dataclass(frozen=True)
class FrozenBatchNorm(_Norm):
    """Batch normalisation by given statistics: tensors mean and variance, (channels,) each, which have no gradient."""

    eps: float = 1e-5
    affine: bool = True

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        """Return weight and bias if it is affine, then mean and variance."""
        each = (self._channels(*shapes),)
        return super().tensors(*shapes) | {"mean": each, "variance": each}

    def _normal(self, x: Array, tensors: Tensors) -> tuple[Array, ...]:
        return self._over_deviation(x - tensors["mean"], tensors["variance"])

    def _input_error(self, d: Array, kept: Kept) -> Array:
        return np.asarray(kept.r * d)

    def _sum(self, values: Array) -> Array:
        raise NotImplementedError

    def _count(self, shape: Shape) -> int:
        raise NotImplementedError
