"""Types of arrays, arrays that begin at a cache line, arrays near each other, and constants of arrays and caches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["LARGEST", "LINE", "MARGIN", "Array", "Floats", "Integers", "aligned", "near"]

Array = NDArray[np.float32]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LARGEST = 3.4028234663852886e38  # the largest finite float32
LINE = 64  # bytes of a cache line
#: How many floats behind an array must be readable and writable if kernels load and store whole vectors in it.
MARGIN = 64


def aligned(*shape: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return an array of zeros that begins at a cache line: a vector across two lines takes twice as long to load."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE, np.uint8)
    begin = -memory.ctypes.data % LINE
    return memory[begin : begin + size].view(dtype).reshape(shape)


def near(found: Array, expected: Array, tolerance: float) -> bool:
    """Return whether arrays are equal, but for parts of their elements and of the largest finite one expected.

    NaN is near NaN, and an infinity near itself alone.
    """
    finite = np.abs(expected[np.isfinite(expected)])
    return np.allclose(found, expected, tolerance, tolerance * finite.max(initial=0), equal_nan=True)
