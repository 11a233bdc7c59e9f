"""Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

A draw is a function of (seed, stream, element, step, client, attempt) and of nothing else. So no draw depends on how
many others were made: changing a gate, the evaluation interval or the number of threads changes no other draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fredsim.numerics.elementary import log64

__all__ = ["Stream", "Streams", "Words", "normal_quantile", "philox4x32", "uniform24", "words64"]

Words = NDArray[np.uint32]
DRAWN_AT_ONCE = 2**16  # how many words are drawn together; a normal number takes 150 bytes of memory while it is drawn


class Stream(IntEnum):
    """The purpose of a draw; its number is the second word of Philox's key."""

    PARAMETERS = 0
    DISPATCH = 1
    IID = 2
    SHUFFLE = 3
    PUSH_GATE = 4
    FETCH_GATE = 5
    COMPRESSION = 6
    TIME = 7
    SERVER = 8
    PARTITION = 9
    DATA = 10
    NOISE = 11
    AUGMENT = 12
    DROPOUT = 13
    MODULE = 14
    CLIENT_NOISE = 16
    PARTICIPATION = 17
    PROBLEM = 19


MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = np.uint64(0xFFFF_FFFF)
SHIFT = np.uint64(32)


def philox4x32(
    counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: tuple[int, int]
) -> tuple[Words, Words, Words, Words]:
    """Return the four output words, uint32, for the four 32-bit words of a counter, which broadcast, and a key."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in counter))
    k0, k1 = key
    for _ in range(10):
        p0 = MULTIPLIERS[0] * c0
        p1 = MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & LOW,
            (p0 >> SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & LOW,
        )
        k0 = (k0 + WEYL[0]) & 0xFFFF_FFFF
        k1 = (k1 + WEYL[1]) & 0xFFFF_FFFF
    words = [np.asarray(c, np.uint32) for c in (c0, c1, c2, c3)]
    return words[0], words[1], words[2], words[3]


class Streams:
    """All random draws of a run, by purpose. `seed` is in 0 … 2³² − 1. Raises ValueError for another seed."""

    UNCHANGING: ClassVar = True  # never changes, so it is not saved as part of an object's state

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed is {seed}; it must lie in 0 … 4294967295")
        self.seed = seed

    def words(
        self, stream: Stream, element: ArrayLike, step: ArrayLike = 0, client: ArrayLike = 0, attempt: ArrayLike = 0
    ) -> Words:
        """Return one 32-bit word per draw: word element mod 4 of the block at (element ÷ 4, step, client, attempt)."""
        element, step, client, attempt = np.broadcast_arrays(
            *(np.asarray(x, np.uint64) for x in (element, step, client, attempt))
        )
        block = philox4x32((element >> np.uint64(2), step, client, attempt), (self.seed, int(stream)))
        lane = (element & np.uint64(3)).astype(np.intp)
        return np.choose(lane, block).astype(np.uint32)

    def blocks(
        self, stream: Stream, number: ArrayLike, step: ArrayLike, client: ArrayLike, attempt: ArrayLike = 0
    ) -> tuple[Words, Words, Words, Words]:
        """Return the words of elements 4·number … 4·number + 3, the four words of a block, in one call."""
        return philox4x32((number, step, client, attempt), (self.seed, int(stream)))

    def run_of_words(self, stream: Stream, count: int, step: int = 0, client: int = 0, begin: int = 0) -> Words:
        """Return the words of elements begin … begin + count − 1; `begin` is a multiple of 4; faster than `words`."""
        blocks = np.arange(begin // 4, (begin + count + 3) // 4)
        block = philox4x32((blocks, step, client, 0), (self.seed, int(stream)))
        return np.stack(block, axis=1).reshape(-1)[:count]

    def parts_of_words(
        self, stream: Stream, count: int, step: int = 0, client: int = 0
    ) -> Iterator[tuple[slice, Words]]:
        """Yield the words of elements 0 … count − 1 in parts, each with its place, so that they take little memory."""
        for begin in range(0, count, DRAWN_AT_ONCE):
            part = slice(begin, min(begin + DRAWN_AT_ONCE, count))
            yield part, self.run_of_words(stream, part.stop - begin, step, client, begin)

    def block(self, stream: Stream, number: int, step: int, client: int = 0) -> tuple[int, int, int, int]:
        """Return the words of one block, as `blocks` does, but without NumPy, which is faster for a single block."""
        c0, c1, c2, c3 = number, step, client, 0
        k0, k1 = self.seed, int(stream)
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
            c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFF_FFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFF_FFFF
            k0, k1 = (k0 + WEYL[0]) & 0xFFFF_FFFF, (k1 + WEYL[1]) & 0xFFFF_FFFF
        return c0, c1, c2, c3

    def word(self, stream: Stream, element: int, step: int, client: int = 0) -> int:
        """Return one word, as `words` does, in less time."""
        return self.block(stream, element >> 2, step, client)[element & 3]

    def below(
        self, n: ArrayLike, stream: Stream, element: ArrayLike, step: ArrayLike = 0, client: ArrayLike = 0
    ) -> NDArray[np.int64]:
        """Return unbiased integers in [0, n), n < 2³²; a word that would bias them is redrawn with the next attempt."""
        n, element, step, client = np.broadcast_arrays(*(np.asarray(x, np.uint64) for x in (n, element, step, client)))
        product = np.asarray(
            self.words(stream, element, step, client).astype(np.uint64) * n
        )  # an array also for a single draw
        attempt = 0
        while (redraw := (product & LOW) < (LOW + np.uint64(1)) % n).any():
            attempt += 1
            word = self.words(stream, element[redraw], step[redraw], client[redraw], attempt)
            product[redraw] = word.astype(np.uint64) * n[redraw]
        result: NDArray[np.int64] = (product >> SHIFT).astype(np.int64)
        return result

    def below64(self, n: int, stream: Stream, step: int) -> int:
        """Return an unbiased integer in [0, n), n < 2⁶⁴, from words 0 (high) and 1 (low) of the block."""
        attempt = 0
        while True:
            high, low, _, _ = philox4x32((0, step, 0, attempt), (self.seed, int(stream)))
            product = (int(high) << 32 | int(low)) * n
            if product & (2**64 - 1) >= 2**64 % n:
                return product >> 64
            attempt += 1

    def words64(self, stream: Stream, steps: ArrayLike) -> NDArray[np.uint64]:
        """Return one 64-bit word per step (n,), from words 0 (high) and 1 (low) of the block, as in `below64`."""
        return words64(*philox4x32((0, steps, 0, 0), (self.seed, int(stream)))[:2])

    def all_below64(self, n: int, stream: Stream, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the result of `below64` for each step, int64, for n < 2⁶³."""
        words, n_high, n_low = self.words64(stream, steps), np.uint64(n >> 32), np.uint64(n & 0xFFFF_FFFF)
        high, low = words >> SHIFT, words & LOW  # the upper and lower half of each word, for products of 128 bits
        middle = high * n_low + (low * n_low >> SHIFT)
        crossed = (middle & LOW) + low * n_high
        upper = high * n_high + (middle >> SHIFT) + (crossed >> SHIFT)
        result: NDArray[np.int64] = upper.astype(np.int64)
        biased = words * np.uint64(n) < np.uint64(2**64 % n)
        for place in np.flatnonzero(biased).tolist():
            result[place] = self.below64(n, stream, int(steps[place]))
        return result

    def uniform(self, stream: Stream, *counter: Any) -> NDArray[np.float64]:
        """Return uniform draws in [0, 1), multiples of 2⁻²⁴; `counter` as in `words`."""
        return uniform24(self.words(stream, *counter))


def uniform24(words: Words) -> NDArray[np.float64]:
    """Return u = (word >> 8)·2⁻²⁴, uniform in [0, 1), for words of any shape."""
    return (words >> np.uint32(8)).astype(np.float64) * 2.0**-24


def words64(high: Words, low: Words) -> NDArray[np.uint64]:
    """Return numbers of 64 bits from two words each."""
    return high.astype(np.uint64) << np.uint64(32) | low


def normal_quantile(words: Words) -> NDArray[np.float64]:
    """Return the standard normal quantile of (word + ½)·2⁻³²: Wichura 1988, algorithm AS 241, PPND16, in float64."""
    p = (words.astype(np.float64) + 0.5) * 2.0**-32
    q = p - 0.5
    r = 0.180625 - q * q
    central = q * _ratio(CENTRAL, r)
    tail = np.where(q < 0.0, p, 1.0 - p)
    outer = _ratio(MIDDLE, np.sqrt(-log64(tail)) - 1.6)  # PPND16's last case begins at a tail of e^−25: below 2⁻³³
    return np.where(np.abs(q) <= 0.425, central, np.where(q < 0.0, -outer, outer))


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], r: NDArray[np.float64]) -> NDArray[np.float64]:
    values = []
    for polynomial in coefficients:
        value = np.full_like(r, polynomial[-1])
        for coefficient in polynomial[-2::-1]:
            value = value * r + coefficient
        values.append(value)
    return values[0] / values[1]


CENTRAL = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
MIDDLE = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
