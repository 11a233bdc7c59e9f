"""The wire format of a compressed push in a live run.

A tensor with few different values is sent as a table of these values and one code per element; any other tensor is sent
as it is. So any compressor's result is sent bit for bit; for compressors that round, it takes about as many bytes as
the compressor counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array

__all__ = ["pack", "unpack"]

Bytes = NDArray[np.uint8]
WIDTHS = (1, 2, 4, 8)  # how many bits a code may have
UNCODED = 32  # written in place of a width: the tensor has too many different values, and is sent as it is


def pack(values: Array, tensors: Sequence[slice]) -> Bytes:
    """Return a push (P,), tensor after tensor, as bytes."""
    parts = [part for at in tensors for part in _encoded_tensor(np.ascontiguousarray(values[at]).view(np.uint32))]
    return np.concatenate([part.view(np.uint8) for part in parts])


def unpack(packed: Bytes) -> Array:
    """Return the push (P,) that was packed."""
    return np.concatenate(list(_decoded_tensors(packed))).view(np.float32)


def _encoded_tensor(bits: NDArray[np.uint32]) -> tuple[NDArray[np.uint32] | Bytes, ...]:
    """Return the encoding of a tensor (n,): the width of a code, n, the number of values; the values; the codes."""
    codes, table = pd.factorize(bits)
    width = next((width for width in WIDTHS if len(table) <= 2**width), None)
    if width is not None:
        return np.array([width, len(bits), len(table)], np.uint32), table, _packed_codes(codes, width)
    return np.array([UNCODED, len(bits), len(bits)], np.uint32), bits


def _decoded_tensors(packed: Bytes) -> Iterator[NDArray[np.uint32]]:
    at = 0

    def take_bytes(count: int) -> Bytes:
        nonlocal at
        at += count
        return packed[at - count : at]

    while at < len(packed):
        width, count, values = take_bytes(12).copy().view(np.uint32).tolist()
        table = take_bytes(4 * values).copy().view(np.uint32)
        if width == UNCODED:
            yield table
        else:
            per_byte = 8 // width
            shifts = width * np.arange(per_byte, dtype=np.uint8)
            codes = take_bytes(-(-count // per_byte))[:, None] >> shifts & (2**width - 1)
            yield table[codes.reshape(-1)[:count]]


def _packed_codes(codes: NDArray[np.int64], width: int) -> Bytes:
    """Pack codes (n,) of `width` bits each, several into a byte."""
    per_byte = 8 // width
    padded = np.zeros(-(-len(codes) // per_byte) * per_byte, np.uint8)
    padded[: len(codes)] = codes
    shifts = width * np.arange(per_byte, dtype=np.uint8)
    packed: Bytes = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed
