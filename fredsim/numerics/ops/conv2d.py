"""Convolution of images (channels, rows, columns), with strides, padding, groups and dilation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fredsim.numerics.ops.operator import Array, Draw, Inputs, Leaves, Operator, Shape, Tensors, quiet
from fredsim.numerics.ops.sums import add_up, over_positions

__all__ = ["Conv2d"]


@dataclass(frozen=True)
class Conv2d(Operator):
    """From (inputs, H, W) to (outputs, H', W'); the weight is (outputs, inputs ÷ groups, rows, columns), as PyTorch's.

    z = (Σ x·w from +0, ascending in the kernel's row, its column, and the input channel of the group) + b. Places
    outside the image are inputs of +0. Input error: Σ δ'·w from +0, ascending in the kernel's row, its column, and the
    output channel of the group, over the outputs that exist. A sample's own gradient of a weight is Σ x·δ' over output
    positions, in bands of rows. Neighbours in the kernel meet inputs that are `dilation` rows and columns apart. With
    `flat`, the kernel has one row, and the weight is (outputs, inputs ÷ groups, columns), as that of PyTorch's Conv1d.
    """

    at_least: ClassVar[Mapping[str, int]] = {
        "outputs": 1, "kernel": 1, "stride": 1, "padding": 0, "groups": 1, "dilation": 1,
    }  # fmt: skip

    added: ClassVar[frozenset[str]] = frozenset({"flat", "dilation"})

    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    bias: bool = True
    flat: bool = False
    dilation: tuple[int, int] = (1, 1)

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        self.shape(*shapes)
        weight = (self.outputs, shapes[0][0] // self.groups, *self.kernel[self.flat :])
        return {"weight": weight} | ({"bias": (self.outputs,)} if self.bias else {})

    def shape(self, *shapes: Shape) -> Shape:
        """Return (outputs, H', W')."""
        (x,) = shapes
        if self.flat and self.kernel[0] != 1:
            raise ValueError(f"conv2d: a flat kernel has one row, not {self.kernel[0]}")
        if len(x) != 3 or x[0] % self.groups or self.outputs % self.groups:
            raise ValueError(
                f"conv2d: takes samples of shape (channels, rows, columns), the channels and {self.outputs} outputs in "
                f"{self.groups} groups of one size; not {x}"
            )
        axes = zip(x[1:], self.padding, self.kernel, self.stride, self.dilation, strict=True)
        rows, columns = (
            (size + 2 * pad - apart * (kernel - 1) - 1) // stride + 1 for size, pad, kernel, stride, apart in axes
        )
        if min(rows, columns) < 1:
            raise ValueError(f"conv2d: the kernel {self.kernel} is larger than the padded image {x}")
        return self.outputs, rows, columns

    def _weight(self, tensors: Tensors) -> Array:
        """Return the weight with rows."""
        weight = tensors["weight"]
        return weight[:, :, None] if self.flat else weight

    def _padded(self, x: Array) -> Array:
        return np.pad(x, ((0, 0), (0, 0), *((pad, pad) for pad in self.padding)))

    def _offsets(self) -> Iterator[tuple[int, int]]:
        return ((r, c) for r in range(self.kernel[0]) for c in range(self.kernel[1]))

    def _seen(self, padded: Array, offset: tuple[int, int], out: Shape) -> Array:
        """Return a view (µ, inputs, H', W') of what a position of the kernel meets at each output position."""
        (r, c), (rows, columns) = (at * apart for at, apart in zip(offset, self.dilation, strict=True)), self.stride
        return padded[:, :, r : r + rows * out[1] : rows, c : c + columns * out[2] : columns][..., : out[1], : out[2]]

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Array]:
        """Keep x."""
        (x,), w = inputs, self._weight(tensors)
        padded, out = self._padded(x), self.shape(x.shape[1:])
        each_in, each_out = w.shape[1], self.outputs // self.groups
        z = np.empty((len(x), *out), np.float32)
        with quiet():
            for g in range(self.groups):
                own = slice(g * each_out, (g + 1) * each_out)
                z[:, own] = add_up(
                    (
                        self._seen(padded, (r, c), out)[:, None, g * each_in + k] * w[own, k, r, c, None, None]
                        for r, c in self._offsets()
                        for k in range(each_in)
                    ),
                    np.zeros_like(z[:, own]),
                )
            return (z + tensors["bias"][:, None, None] if self.bias else z), x

    def backward(self, error: Array, kept: Array, tensors: Tensors) -> list[Array | None]:
        x, w = kept, self._weight(tensors)
        padded, out = self._padded(x), error.shape[1:]
        each_in, each_out = w.shape[1], self.outputs // self.groups
        dx = np.zeros_like(padded)
        with quiet():
            for r, c in self._offsets():
                for j in range(each_out):
                    for g in range(self.groups):
                        o, own = g * each_out + j, slice(g * each_in, (g + 1) * each_in)
                        position = self._seen(dx, (r, c), out)[:, own]
                        position += error[:, o, None] * w[o, :, r, c, None, None]
        top, left = self.padding
        return [np.ascontiguousarray(dx[:, :, top : top + x.shape[2], left : left + x.shape[3]])]

    def gradients(self, error: Array, kept: Array, tensors: Tensors) -> dict[str, Leaves]:
        """Return Σ x·δ' and Σ δ' over output positions."""
        x, out = kept, error.shape[1:]
        padded, each_in, each_out = self._padded(x), x.shape[1] // self.groups, self.outputs // self.groups
        last = np.ascontiguousarray(error.transpose(0, 2, 3, 1))  # (µ, H', W', outputs)

        def weight(part: slice) -> Array:
            chosen = range(self.outputs)[part]
            grads = np.empty((len(x), len(chosen), each_in, *self.kernel), np.float32)
            with quiet():
                for at, o in enumerate(chosen):
                    first = o // each_out * each_in
                    for r, c in self._offsets():
                        seen = self._seen(padded, (r, c), out)[:, first : first + each_in].transpose(0, 2, 3, 1)
                        grads[:, at, :, r, c] = over_positions(seen * last[..., o, None])
            return grads[:, :, :, 0] if self.flat else grads

        leaves: dict[str, Leaves] = {"weight": weight}
        if self.bias:
            leaves["bias"] = lambda part: over_positions(last[..., part])
        return leaves
