"""Which samples a gradient is computed from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.streams import Stream, Streams

__all__ = ["Sampler", "make_sampler"]

Integers = NDArray[np.int64]


class Sampler(Protocol):
    """Gives minibatches of `batch_size` samples."""

    batch_size: int

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return the samples (B, µ) of B gradients by iteration of arrival, client and that client's own count."""
        ...


class Sequential:
    """One pointer shared by all clients, as in FRED: minibatch k = iteration mod ⌊n/µ⌋ is samples kµ … kµ + µ − 1."""

    def __init__(self, samples: int, batch_size: int) -> None:
        self._batches = samples // batch_size
        self.batch_size = batch_size
        self._within = np.arange(batch_size, dtype=np.int64)

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return consecutive samples."""
        return (iterations % self._batches * len(self._within))[:, None] + self._within


class Shuffled:
    """The same pointer over a permutation that is redrawn each pass."""

    def __init__(self, samples: int, batch_size: int, streams: Streams) -> None:
        self._batches = samples // batch_size
        self.batch_size = batch_size
        self._within = np.arange(batch_size, dtype=np.int64)
        self._samples = samples
        self._streams = streams
        self._permutations: dict[int, Integers] = {}

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return consecutive entries of the passes' permutations."""
        result = np.empty((len(iterations), len(self._within)), np.int64)
        passes = iterations // self._batches
        for number in np.unique(passes):
            chosen = passes == number
            places = (iterations[chosen] % self._batches * len(self._within))[:, None] + self._within
            result[chosen] = self._permutation(int(number))[places]
        return result

    def _permutation(self, number: int) -> Integers:
        """Return the stable ascending order of one 64-bit key a sample, the high word first."""
        if number not in self._permutations:
            words = self._streams.run_of_words(Stream.SHUFFLE, 2 * self._samples, step=number).astype(np.uint64)
            keys = words[0::2] << np.uint64(32) | words[1::2]
            self._permutations = {k: p for k, p in self._permutations.items() if k >= number - 1}
            self._permutations[number] = np.argsort(keys, kind="stable").astype(np.int64)
        return self._permutations[number]


class Iid:
    """With replacement, from (client, that client's own gradient number)."""

    def __init__(self, samples: int, batch_size: int, streams: Streams) -> None:
        self._samples = samples
        self.batch_size = batch_size
        self._within = np.arange(batch_size, dtype=np.int64)
        self._streams = streams

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return independent samples."""
        return self._streams.below(self._samples, Stream.IID, self._within, numbers[:, None], clients[:, None])


def make_sampler(kind: str, samples: int, batch_size: int, streams: Streams) -> Sampler:
    """Return the sampler of a kind, sequential, shuffled or iid, over `samples` training rows."""
    if kind == "sequential":
        return Sequential(samples, batch_size)
    drawn: dict[str, type[Shuffled | Iid]] = {"shuffled": Shuffled, "iid": Iid}
    return drawn[kind](samples, batch_size, streams)
