"""Which training samples make a minibatch."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.streams import Stream, Streams

__all__ = ["Sampler", "make_sampler"]

Integers = NDArray[np.int64]


class Sampler(ABC):
    """Chooses minibatches of µ = `batch_size` among so many samples."""

    def __init__(self, samples: int, batch_size: int, streams: Streams) -> None:
        self.batch_size = batch_size
        self._samples = samples
        self._batches = samples // batch_size
        self._within = np.arange(batch_size, dtype=np.int64)
        self._streams = streams

    @abstractmethod
    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return the indices (B, µ) of B minibatches' samples.

        Of each minibatch, (B,): the iteration in which its gradient arrives, the client, which of the client's it is.
        """


class Sequential(Sampler):
    """One pointer shared by all clients, as in FRED: minibatch k = iteration mod ⌊n/µ⌋ is samples kµ … kµ + µ − 1."""

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return consecutive samples."""
        return (iterations % self._batches * len(self._within))[:, None] + self._within


class Shuffled(Sequential):
    """The same pointer over a permutation of the samples that is redrawn each pass."""

    def __init__(self, samples: int, batch_size: int, streams: Streams) -> None:
        super().__init__(samples, batch_size, streams)
        self._permutations: dict[int, Integers] = {}

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return consecutive entries of the passes' permutations."""
        places, passes = super().rows(iterations, clients, numbers), iterations // self._batches
        for number in np.unique(passes):
            chosen = passes == number
            places[chosen] = self._permutation(int(number))[places[chosen]]
        return places

    def _permutation(self, number: int) -> Integers:
        """Return a pass's permutation: the stable ascending sort of one 64-bit key a sample, the high word first."""
        if number not in self._permutations:
            words = self._streams.run_of_words(Stream.SHUFFLE, 2 * self._samples, step=number).astype(np.uint64)
            keys = words[0::2] << np.uint64(32) | words[1::2]
            self._permutations = {k: p for k, p in self._permutations.items() if k >= number - 1}
            self._permutations[number] = np.argsort(keys, kind="stable").astype(np.int64)
        return self._permutations[number]


class Iid(Sampler):
    """With replacement; a draw depends on the client and which of its minibatches it is, not on who arrives when."""

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return independent samples."""
        return self._streams.below(self._samples, Stream.IID, self._within, numbers[:, None], clients[:, None])


SAMPLERS: dict[str, type[Sampler]] = {"sequential": Sequential, "shuffled": Shuffled, "iid": Iid}


def make_sampler(kind: str, samples: int, batch_size: int, streams: Streams) -> Sampler:
    """Return the sampler of a kind, sequential, shuffled or iid, over `samples` training rows."""
    return SAMPLERS[kind](samples, batch_size, streams)
