"""What a network's values look like in memory: arrays in C order, or images with their channels innermost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.buffers import Buffer

__all__ = ["Value"]


@dataclass(frozen=True)
class Value:
    """A value of a minibatch of µ samples, float32 if nothing else is said; as an argument the first element's address.

    A plain one is an array (µ, *shape) in C order. An image, of shape (channels, rows, columns), is stored with its
    channels innermost: element (i, c, y, x) is `sample`·i + `row`·y + channels·x + c floats behind the first. Beside
    each row are `halo` columns of +0, before and behind it; a row's last ones are the next row's first. Operators that
    write an image write these columns, too (fredsim.kernels.ops.rows.clear_halo).

    `error_halo` is the halo that its error has.
    """

    buffer: Buffer = field(repr=False)
    samples: int
    shape: tuple[int, ...]
    image: bool = False
    halo: int = 0
    error_halo: int = 0
    dtype: Any = np.float32

    @property
    def size(self) -> int:
        """The number of elements of a sample."""
        return math.prod(self.shape)

    @property
    def row(self) -> int:
        """How many floats behind a row of an image the next one begins."""
        channels, _, columns = self.shape
        return (columns + self.halo) * channels

    @property
    def sample(self) -> int:
        """How many elements behind a sample the next one begins."""
        if not self.image:
            return self.size
        return self.halo * self.shape[0] + self.shape[1] * self.row

    @property
    def begin(self) -> int:
        """How many bytes behind the buffer's begin the first element is."""
        return self.halo * self.shape[0] * 4 if self.image else 0

    @property
    def dense(self) -> bool:
        """Whether its samples are stored one after the other, without anything between their elements."""
        return not self.image or self.halo == 0

    @property
    def bytes(self) -> int:
        """The bytes that it takes."""
        return (self.samples * self.sample) * np.dtype(self.dtype).itemsize + 2 * self.begin

    def like(self, **changes: Any) -> Value:
        """Return a value in a buffer of its own that is otherwise like this one, but for `changes`."""
        other = replace(self, **changes)
        return replace(other, buffer=Buffer(other.bytes))

    def error(self) -> Value:
        """Return the value's error, in a buffer of its own."""
        return self.like(halo=self.error_halo, dtype=np.float32)

    def read(self, name: str) -> dict[str, Any]:
        """Return the fields of a step that reads the image as `name`, and how many floats its samples and rows take."""
        return {name: self, f"{name}_sample": self.sample, f"{name}_row": self.row}

    def written(self) -> dict[str, Any]:
        """Return the fields of a step that writes the image as `out`; `gap` is the floats of the halo beside a row."""
        return {"out": self, "sample": self.sample, "row": self.row, "gap": self.halo * self.shape[0]}

    def view(self, arena: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the value as an array (µ, *shape); of an image, with strides."""
        begin = self.buffer.offset + self.begin
        if not self.image:
            count = self.samples * self.size * np.dtype(self.dtype).itemsize
            return arena[begin : begin + count].view(self.dtype).reshape(self.samples, *self.shape)
        flat = arena[begin:].view(np.float32)
        strides = (4 * self.sample, 4, 4 * self.row, 4 * self.shape[0])
        return np.lib.stride_tricks.as_strided(flat, (self.samples, *self.shape), strides)
