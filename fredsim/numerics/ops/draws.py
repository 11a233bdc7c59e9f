"""The random numbers of a network in training: which ones an operator draws in a client's gradient.

They are a function of (seed, client, number of the client's gradient, operator, sample, element) and of nothing else:
neither of which gradients are computed together, nor of threads, backends, stops, and what else is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Integers
from fredsim.numerics.ops.operator import Draw, Operator, Shape
from fredsim.numerics.streams import Stream, Streams, uniform24

__all__ = ["Draws", "Keys", "blocks_of"]


class Keys(NamedTuple):
    """What the random numbers of B gradients depend on.

    Attributes:
        seed: the run's.
        clients: whose gradient each is, (B,).
        numbers: which of that client's gradients each is, from 0, (B,).
        counted: whether the client computes it; else it is computed once more, to measure something.

    """

    seed: int
    clients: Integers
    numbers: Integers
    counted: bool = True

    def step(self, number: int, steps: int) -> Keys:
        """Return the keys of local step `number` of tasks of so many; `numbers` are those of the clients' tasks."""
        return self._replace(numbers=self.numbers * steps + number)

    def twice(self) -> Keys:
        """Return each key twice, to measure something."""
        return Keys(self.seed, np.repeat(self.clients, 2), np.repeat(self.numbers, 2), counted=False)

    def part(self, some: slice) -> Keys:
        """Return some of the keys."""
        return self._replace(clients=self.clients[some], numbers=self.numbers[some])

    def one(self, b: int) -> Draws:
        """Return the draws of gradient b."""
        return Draws(self.seed, int(self.clients[b]), int(self.numbers[b]))


@dataclass(frozen=True)
class Draws:
    """The random numbers of one gradient: number `number` of the client's, from 0."""

    seed: int
    client: int
    number: int

    def uniform(self, place: int, shape: Shape) -> NDArray[np.float64]:
        """Return uniform numbers in [0, 1) for an array (µ, …) of the drawing operator number `place`, from 0.

        With n elements a sample, element i of sample m has word i mod 4 of block m·⌈n/4⌉ + ⌊i/4⌋, the counter being
        (block, number, client, place); the number is (word >> 8)·2⁻²⁴.
        """
        samples, size = shape[0], math.prod(shape[1:])
        blocks = np.arange(samples * blocks_of(size), dtype=np.int64)
        words = Streams(self.seed).blocks(Stream.DROPOUT, blocks, self.number, self.client, place)
        whole = np.stack(words, axis=1).reshape(samples, -1)[:, :size]
        return uniform24(whole).reshape(shape)

    def of(self, operators: Sequence[Operator]) -> list[Draw | None]:
        """Return the draws of each operator, in their order; None for one that draws nothing."""
        found: list[Draw | None] = []
        place = 0
        for operator in operators:
            found.append(self.draw(place) if operator.draws else None)
            place += operator.draws
        return found

    def draw(self, place: int) -> Draw:
        """Return the draws of the drawing operator number `place`."""
        return partial(self.uniform, place)


def blocks_of(size: int) -> int:
    """Return how many blocks of four words the elements of a sample take."""
    return -(-size // 4)
