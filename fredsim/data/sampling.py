"""Which training samples make a minibatch."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fredsim.data.shards import TOGETHER, Shards
from fredsim.numerics.streams import Stream, Streams, Words

__all__ = ["OfWorks", "Sampler", "make_sampler", "work_of"]

Integers = NDArray[np.int64]

KEPT = 2**25  # samples in the orders of passes that are kept: 128 MiB
AHEAD = 16  # minibatches that are drawn where one is asked for
KEPT_AHEAD = 2**23  # their samples that are kept: 64 MiB


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


class OfClients(Sampler):
    """A minibatch depends on the client and which of the client's it is, not on who arrives when.

    Where one is asked for at a time, some are drawn: most of what one costs is the calls.
    """

    def __init__(self, samples: int, batch_size: int, streams: Streams) -> None:
        super().__init__(samples, batch_size, streams)
        self._ahead: dict[int, tuple[int, Integers]] = {}  # by client: the first of those drawn, and their rows

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return what the client's gradients have, whenever they arrive."""
        if len(clients) != 1:
            return self._rows(clients, numbers)
        client, number = int(clients[0]), int(numbers[0])
        first, rows = self._ahead.get(client, (0, None))
        if rows is None or not first <= number < first + AHEAD:
            if (len(self._ahead) + 1) * AHEAD * self.batch_size > KEPT_AHEAD:
                self._ahead.clear()
            first, rows = number, self._rows(np.full(AHEAD, client), np.arange(number, number + AHEAD))
            self._ahead[client] = first, rows
        return rows[number - first : number - first + 1]

    @abstractmethod
    def _rows(self, clients: Integers, numbers: Integers) -> Integers:
        """Return the indices (B, µ) of the samples of these gradients of these clients."""


class Iid(OfClients):
    """With replacement."""

    def _rows(self, clients: Integers, numbers: Integers) -> Integers:
        return self._streams.below(self._samples, Stream.IID, self._within, numbers[:, None], clients[:, None])


class OfWorks(Sampler):
    """For gradients that have no samples, but draws of their own: the client's work itself, as `work_of` reads it."""

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return client·2³² + number, (B, 1)."""
        return (clients << 32 | numbers)[:, None]


def work_of(row: int) -> tuple[int, int]:
    """Return the client, and which of its gradients it is, from a row of OfWorks."""
    return row >> 32, row & 0xFFFF_FFFF


class Within(OfClients):
    """Minibatches from the client's own shard: its gradient number `number` has positions number·µ … of its own."""

    def __init__(self, shards: Shards, batch_size: int, streams: Streams) -> None:
        super().__init__(batch_size, batch_size, streams)  # how many samples there are, each shard says
        self._shards = shards

    def _rows(self, clients: Integers, numbers: Integers) -> Integers:
        positions, of = numbers[:, None] * self.batch_size + self._within, clients[:, None]
        return self._shards.rows(of, self._places(positions, self._shards.sizes(of), numbers[:, None], of))

    def _places(self, positions: Integers, sizes: Integers, numbers: Integers, clients: Integers) -> Integers:
        """Return places (B, µ) in shards of these sizes (B, 1): the positions (B, µ) one after another, over again."""
        return positions % sizes


class IidWithin(Within):
    """With replacement, from (client, that client's own gradient number)."""

    def _places(self, positions: Integers, sizes: Integers, numbers: Integers, clients: Integers) -> Integers:
        return self._streams.below(sizes, Stream.IID, self._within, numbers, clients)


class ShuffledWithin(Within):
    """Each pass of a client over its shard is in an order of its own, from (client, pass)."""

    def __init__(self, shards: Shards, batch_size: int, streams: Streams) -> None:
        super().__init__(shards, batch_size, streams)
        self._orders: dict[int, NDArray[np.int32]] = {}  # by client and pass; some of the last
        self._kept = 0

    def _places(self, positions: Integers, sizes: Integers, numbers: Integers, clients: Integers) -> Integers:
        shape = positions.shape
        codes = (clients << 32 | positions // sizes & 0xFFFF_FFFF).reshape(-1)
        places, sizes = (positions % sizes).reshape(-1), np.broadcast_to(sizes, shape).reshape(-1)
        known, first, which = np.unique(codes, return_index=True, return_inverse=True)
        self._draw(known, sizes[first])
        together = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which)).tolist()
        for code, begin, end in zip(known.tolist(), [0, *ends], ends, strict=False):
            some = together[begin:end]
            places[some] = self._orders[code][places[some]]
        self._forget()
        return places.reshape(shape)

    def _draw(self, codes: Integers, sizes: Integers) -> None:
        """Draw the orders of passes that are not kept, some at a time: stable ascending sorts of 64-bit keys."""
        new = np.array([code not in self._orders for code in codes.tolist()], bool)
        codes, sizes = codes[new], sizes[new]
        blocks = -(-sizes // 2)  # of the stream: two keys each
        begin = 0
        while begin < len(codes):
            end = begin + max(1, int(np.searchsorted(np.cumsum(blocks[begin:]), TOGETHER, side="right")))
            self._draw_some(codes[begin:end], sizes[begin:end], blocks[begin:end])
            begin = end

    def _draw_some(self, codes: Integers, sizes: Integers, blocks: Integers) -> None:
        of = np.repeat(np.arange(len(codes)), blocks)
        within = np.arange(len(of)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        passes, clients = codes[of] & 0xFFFF_FFFF, codes[of] >> 32
        a, b, c, d = self._streams.blocks(Stream.SHUFFLE, within, passes, clients)
        keys = np.stack([_joined(a, b), _joined(c, d)], axis=1)
        ends = np.cumsum(2 * blocks)
        for code, size, begin in zip(codes.tolist(), sizes.tolist(), (ends - 2 * blocks).tolist(), strict=True):
            order = np.argsort(keys.reshape(-1)[begin : begin + size], kind="stable")
            self._orders[code] = order.astype(np.int32)
            self._kept += size

    def _forget(self) -> None:
        """Forget the orders that were drawn first, beyond what is kept."""
        while self._kept > KEPT and len(self._orders) > 1:
            self._kept -= len(self._orders.pop(next(iter(self._orders))))


def _joined(high: Words, low: Words) -> NDArray[np.uint64]:
    return high.astype(np.uint64) << np.uint64(32) | low


SAMPLERS: dict[str, type[Sampler]] = {"sequential": Sequential, "shuffled": Shuffled, "iid": Iid}
WITHIN: dict[str, type[Within]] = {"sequential": Within, "shuffled": ShuffledWithin, "iid": IidWithin}


def make_sampler(kind: str, samples: int, batch_size: int, streams: Streams, shards: Shards | None = None) -> Sampler:
    """Return the sampler of a kind, sequential, shuffled or iid, over `samples` training rows, or within shards."""
    if shards is not None:
        return WITHIN[kind](shards, batch_size, streams)
    return SAMPLERS[kind](samples, batch_size, streams)
