"""Arrays that begin at a cache line, and numbers that describe float32 arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["LARGEST", "LINE", "MARGIN", "aligned"]

LARGEST = 3.4028234663852886e38  # the largest finite float32
LINE = 64  # bytes of a cache line
#: Floats that must be readable and writable behind arrays which kernels load and store whole vectors from.
MARGIN = 64


def aligned(*shape: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return zeros of a shape that begin at a cache line: a vector across two lines takes twice as long to load."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE, np.uint8)
    begin = -memory.ctypes.data % LINE
    return memory[begin : begin + size].view(dtype).reshape(shape)
