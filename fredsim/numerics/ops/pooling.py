"""Pooling of images (channels, rows, columns): the largest or the mean of each window."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors, quiet
from fredsim.numerics.ops.sums import add_up

__all__ = ["AdaptiveAvgPool2d", "AvgPool2d", "MaxPool2d"]

Windows = list[tuple[int, int, int, int]]  # first row, end, first column, end of each window, in row-major order


def _image(name: str, shapes: Sequence[Shape]) -> Shape:
    (x,) = shapes
    if len(x) != 3:
        raise ValueError(f"{name}: takes samples of shape (channels, rows, columns), not {x}")
    return x


@dataclass(frozen=True)
class _Windowed(Operator):
    """Windows of `kernel` positions, `stride` apart, over an image with `padding` around it."""

    at_least: ClassVar[Mapping[str, int]] = {"kernel": 1, "stride": 1, "padding": 0}

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)

    def shape(self, *shapes: Shape) -> Shape:
        """Return (channels, H', W')."""
        x = _image(type(self).__name__, shapes)
        if any(2 * pad > kernel for pad, kernel in zip(self.padding, self.kernel, strict=True)):
            raise ValueError(f"{type(self).__name__}: the padding {self.padding} is over half of the {self.kernel}")
        rows, columns = (
            (size + 2 * pad - kernel) // stride + 1
            for size, pad, kernel, stride in zip(x[1:], self.padding, self.kernel, self.stride, strict=True)
        )
        if min(rows, columns) < 1:
            raise ValueError(f"{type(self).__name__}: the window {self.kernel} is larger than the padded image {x}")
        return x[0], rows, columns

    def _windows(self, x: Shape) -> Windows:
        """Return the part of each window that lies inside the image."""
        _, rows, columns = self.shape(x)
        spans = []
        for count, size, kernel, stride, pad in zip(
            (rows, columns), x[1:], self.kernel, self.stride, self.padding, strict=True
        ):
            begins = [i * stride - pad for i in range(count)]
            spans.append([(max(0, begin), min(begin + kernel, size)) for begin in begins])
        return [(*r, *c) for r in spans[0] for c in spans[1]]


@dataclass(frozen=True)
class MaxPool2d(_Windowed):
    """The largest element of each window, in row-major order: v replaces the best if v > best, or if v is NaN.

    The error goes to its position; where windows overlap, errors are added from +0 in row-major order of windows.
    """

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, tuple[Shape, Array]]:
        """Keep the shape of x, and the position in the image of each window's largest element."""
        (x,) = inputs
        out, width = self.shape(x.shape[1:]), x.shape[3]
        best = np.empty((*x.shape[:2], out[1] * out[2]), np.float32)
        positions = np.empty(best.shape, np.int64)
        for at, (top, bottom, left, right) in enumerate(self._windows(x.shape[1:])):
            best[..., at], positions[..., at] = x[..., top, left], top * width + left
            for r in range(top, bottom):
                for c in range(left, right):
                    v = x[..., r, c]
                    better = (v > best[..., at]) | np.isnan(v)
                    best[..., at] = np.where(better, v, best[..., at])
                    positions[..., at] = np.where(better, r * width + c, positions[..., at])
        return best.reshape(len(x), *out), (x.shape, positions)

    def backward(self, error: Array, kept: tuple[Shape, Array], tensors: Tensors) -> list[Array | None]:
        """Return the errors at the positions of the largest."""
        shape, positions = kept
        flat = np.zeros((*shape[:2], shape[2] * shape[3]), np.float32)
        each = error.reshape(positions.shape)
        m, channel = np.ogrid[: shape[0], : shape[1]]
        with quiet():
            for at in range(positions.shape[2]):
                flat[m, channel, positions[..., at]] += each[..., at]
        return [flat.reshape(shape)]


class _Mean(Operator):
    """The mean of each window: its elements in row-major order from +0, divided once; δ is divided once, too."""

    @abstractmethod
    def _windows(self, x: Shape) -> Windows:
        """Return the part of each window that lies inside the image."""

    def _count(self, window: tuple[int, int, int, int]) -> int:
        """Return what the sum over a window is divided by: the number of its elements, unless padding counts, too."""
        top, bottom, left, right = window
        return (bottom - top) * (right - left)

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Shape]:
        """Keep the shape of x."""
        (x,) = inputs
        zero = np.zeros(x.shape[:2], np.float32)
        means = []
        with quiet():
            for window in self._windows(x.shape[1:]):
                top, bottom, left, right = window
                total = add_up((x[..., r, c] for r in range(top, bottom) for c in range(left, right)), zero)
                means.append(total / np.float32(self._count(window)))
        return np.stack(means, axis=-1).reshape(len(x), *self.shape(x.shape[1:])), x.shape

    def backward(self, error: Array, kept: Shape, tensors: Tensors) -> list[Array | None]:
        """Return δ ÷ count at each position of a window, added from +0 in row-major order of windows."""
        dx, each = np.zeros(kept, np.float32), error.reshape(*kept[:2], -1)
        with quiet():
            for at, window in enumerate(self._windows(kept[1:])):
                top, bottom, left, right = window
                share = each[..., at] / np.float32(self._count(window))
                dx[..., top:bottom, left:right] += share[..., None, None]
        return [dx]


@dataclass(frozen=True)
class AvgPool2d(_Windowed, _Mean):
    """The mean of each window; the padding counts as zeros if `count_padding`, as in PyTorch by default."""

    count_padding: bool = True

    def _count(self, window: tuple[int, int, int, int]) -> int:
        return self.kernel[0] * self.kernel[1] if self.count_padding else super()._count(window)


@dataclass(frozen=True)
class AdaptiveAvgPool2d(_Mean):
    """The means of `size` windows: window i of n covers the rows ⌊i·H/n⌋ … ⌈(i + 1)·H/n⌉ − 1, as in PyTorch."""

    at_least: ClassVar[Mapping[str, int]] = {"size": 1}

    size: tuple[int, int] = (1, 1)

    def shape(self, *shapes: Shape) -> Shape:
        """Return (channels, H', W')."""
        return _image("AdaptiveAvgPool2d", shapes)[0], *self.size

    def _windows(self, x: Shape) -> Windows:
        spans = [[(i * n // k, -(-(i + 1) * n // k)) for i in range(k)] for n, k in zip(x[1:], self.size, strict=True)]
        return [(*r, *c) for r in spans[0] for c in spans[1]]
