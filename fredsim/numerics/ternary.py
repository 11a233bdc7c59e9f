"""Ternary gradients: unbiased quantisation to −s, 0 and +s, and packing with two bits per value.

    g̃ = s sign(g) b,   P(b = 1) = |g|/s,   so that E[g̃] = g;   s = max|g|

Wen et al. 2017, "TernGrad: ternary gradients to reduce communication in distributed deep learning", arXiv:1705.07878;
PaddlePaddle issue 6599. Codes: 00 is −1, 01 is 0, 10 is +1; 11 is an error. Value i is in bits 2(i mod 4) and
2(i mod 4) + 1 of byte i ÷ 4; the unused slots of the last byte hold 01.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array
from fredsim.numerics.oracle import mean64, tree_sum
from fredsim.numerics.streams import Stream, Streams, uniform24

__all__ = ["Draws", "NumpyTernary", "Ternary", "clip", "clipped", "pack", "packed_size", "quantise", "scaler", "unpack"]

SHIFTS = np.array([0, 2, 4, 6], np.uint8)
#: The codes in the four slots of each byte, (256, 4).
SLOTS = (np.arange(256, dtype=np.uint8)[:, None] >> SHIFTS) & 3


@dataclass(frozen=True)
class Draws:
    """The random words for the elements of a tensor that begins at element `begin` of the flat vector."""

    streams: Streams
    stream: Stream
    begin: int
    step: int
    client: int

    def words(self, count: int) -> NDArray[np.uint32]:
        """Return the words of the first `count` elements."""
        end = self.begin + count
        return self.streams.run_of_words(self.stream, end, self.step, self.client)[self.begin :]


class Ternary(Protocol):
    """The interface of a backend's functions. Tensors are float32 (n,), stored where the backend computes."""

    def scaler(self, g: Array) -> np.float32:
        """Return max|g|; NaN if g contains one."""

    def clip(self, g: Array, sigmas: float) -> Array:
        """Return g clipped to ±sigmas·σ; see the function `clip`."""

    def encode(self, g: Array, s: np.float32, draws: Draws) -> NDArray[np.uint8]:
        """Return g quantised with the finite scaler s and packed, uint8 (⌈n/4⌉,), on the host."""

    def decode(self, packed: NDArray[np.uint8], count: int, s: np.float32) -> Array:
        """Return s times the first `count` packed values."""


def scaler(g: Array) -> np.float32:
    """Return s = max|g|, 0 for an empty tensor; NaN if g contains one."""
    return np.float32(np.abs(g).max()) if g.size else np.float32(0)


def clip(g: Array, sigmas: float) -> Array:
    """Return g clipped to ±sigmas·σ, where σ is its population standard deviation, by the tree in float64.

    A tensor whose elements are all equal is not clipped, since its σ is 0.
    """
    wide = g.reshape(-1).astype(np.float64)
    with np.errstate(all="ignore"):  # g may have elements that are not finite
        squares = (wide - mean64(g)) ** 2
        return clipped(g, sigmas * np.sqrt(tree_sum(squares) / np.float64(squares.size)))


def clipped(g: Array, bound: Any) -> Array:
    """Return g clipped to ±`bound`, rounded to float32; if the bound is 0, return g."""
    bound = np.float32(bound)
    return g if bound == 0 else np.where(g > bound, bound, np.where(g < -bound, -bound, g))


def quantise(g: Array, s: np.float32, words: NDArray[np.uint32]) -> NDArray[np.int8]:
    """Return sign(g)·b as −1, 0 and +1: b = 1 iff u·s < |g|, u = (word >> 8)·2⁻²⁴, exactly, in float64."""
    u = uniform24(words)
    taken = u * np.float64(s) < np.abs(g).astype(np.float64)
    return (taken * np.sign(g)).astype(np.int8)


def packed_size(count: int) -> int:
    """Return how many bytes `count` values take."""
    return (count + 3) // 4


def pack(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return values −1, 0, +1 (n,) packed at two bits each, uint8 (⌈n/4⌉,)."""
    slots = np.ones(4 * packed_size(codes.size), np.uint8)
    slots[: codes.size] = (codes.reshape(-1) + 1).astype(np.uint8)
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(slots.reshape(-1, 4) << SHIFTS, axis=1)
    return packed


def unpack(packed: NDArray[np.uint8], count: int | None = None) -> NDArray[np.int8]:
    """Return the first `count` of the packed values, int8 (count,); None means all, four per byte.

    Raises ValueError for a byte with the code 11, a number of bytes that does not fit `count`, and unused slots that do
    not hold 01.
    """
    slots = SLOTS[packed.reshape(-1)].reshape(-1)
    if (slots == 3).any():
        raise ValueError(f"byte {int(np.argmax(slots == 3)) // 4} holds the code 11; codes are 00, 01 and 10")
    if count is None:
        count = slots.size
    if packed.size != packed_size(count):
        raise ValueError(f"{packed.size} bytes do not hold {count} values; these take {packed_size(count)}")
    if (slots[count:] != 1).any():
        raise ValueError("the unused slots of the last byte do not hold 01")
    return slots[:count].astype(np.int8) - np.int8(1)


class NumpyTernary:
    """The functions of this module as a Ternary; they define the bits of every backend."""

    scaler = staticmethod(scaler)
    clip = staticmethod(clip)

    def encode(self, g: Array, s: np.float32, draws: Draws) -> NDArray[np.uint8]:
        """Return g quantised and packed; see Ternary."""
        return pack(quantise(g, s, draws.words(g.size)))

    def decode(self, packed: NDArray[np.uint8], count: int, s: np.float32) -> Array:
        """Return s times the unpacked values; see Ternary."""
        decoded: Array = s * unpack(packed, count).astype(np.float32)
        return decoded
