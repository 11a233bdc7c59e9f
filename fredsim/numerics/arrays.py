"""Arrays of float32: the largest number in them, and arrays that begin at a cache line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["LARGEST", "LINE", "MARGIN", "aligned"]

LARGEST = 3.4028234663852886e38  # in float32: what is larger would be infinite there
LINE = 64  # bytes of a cache line
#: Floats that must be readable and writable behind arrays which kernels load and store whole vectors from.
MARGIN = 64


def aligned(*shape: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return zeros that begin at a cache line: a vector across two lines takes twice as long to load."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.zeros(size + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + size].view(dtype).reshape(shape)
