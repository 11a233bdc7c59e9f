"""The wire format of a compressed push: a tensor with few different values is sent as these and a code per element.

Any other tensor is sent as it is. So any compressor's result is sent bit for bit; for compressors that round, it takes
about as many bytes as the compressor counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["pack", "unpack"]

Array = NDArray[np.float32]
Bytes = NDArray[np.uint8]
WIDTHS = (1, 2, 4, 8)  # how many bits a code may have
WHOLE = 32  # stands for the width of a tensor with too many different values, which is sent as it is


def pack(values: Array, tensors: Sequence[slice]) -> Bytes:
    """Return a push (P,), tensor after tensor, as bytes."""
    parts = [part for at in tensors for part in _packed(np.ascontiguousarray(values[at]).view(np.uint32))]
    return np.concatenate([part.view(np.uint8) for part in parts])


def unpack(packed: Bytes) -> Array:
    """Return the push (P,) that was packed."""
    return np.concatenate(list(_unpacked(packed))).view(np.float32)


def _packed(bits: NDArray[np.uint32]) -> tuple[NDArray[np.uint32] | Bytes, ...]:
    """Return a tensor (n,) as: the width of a code, n, and the number of values; then the values, then the codes."""
    codes, table = pd.factorize(bits)
    width = next((width for width in WIDTHS if len(table) <= 2**width), None)
    if width is not None:
        return np.array([width, len(bits), len(table)], np.uint32), table, _joined(codes, width)
    return np.array([WHOLE, len(bits), len(bits)], np.uint32), bits


def _unpacked(packed: Bytes) -> Iterator[NDArray[np.uint32]]:
    at = 0

    def take(count: int) -> Bytes:
        nonlocal at
        at += count
        return packed[at - count : at]

    while at < len(packed):
        width, count, values = take(12).copy().view(np.uint32).tolist()
        table = take(4 * values).copy().view(np.uint32)
        if width == WHOLE:
            yield table
        else:
            per = 8 // width
            codes = take(-(-count // per))[:, None] >> (width * np.arange(per, dtype=np.uint8)) & (2**width - 1)
            yield table[codes.reshape(-1)[:count]]


def _joined(codes: NDArray[np.int64], width: int) -> Bytes:
    """Pack codes (n,) of `width` bits each, several into a byte."""
    per = 8 // width
    slots = np.zeros(-(-len(codes) // per) * per, np.uint8)
    slots[: len(codes)] = codes
    joined: Bytes = np.bitwise_or.reduce(slots.reshape(-1, per) << (width * np.arange(per, dtype=np.uint8)), axis=1)
    return joined
