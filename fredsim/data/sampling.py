"""Samplers, which decide which training samples make up a minibatch.

A task is what a client does between two pushes; its number, from 0, says which of the client's tasks it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from fredsim.data.partitions.shards import BLOCK_ROWS, Shards
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Stream, Streams, words64

__all__ = ["Sampler", "TaskSampler", "decode_task", "make_sampler"]

MOST_KEPT = 2**25  # the most samples in the orders of passes that are kept: 128 MiB
AHEAD = 16  # how many of a client's minibatches are drawn together when one is needed
MOST_KEPT_AHEAD = 2**23  # the most samples in the minibatches drawn ahead that are kept: 64 MiB


class Sampler(ABC):
    """Chooses minibatches of µ = `batch_size` samples among `samples`."""

    def __init__(self, samples: int, batch_size: int, streams: Streams) -> None:
        self.batch_size = batch_size
        self._samples = samples
        self._batches = samples // batch_size
        self._within = np.arange(batch_size, dtype=np.int64)
        self._streams = streams

    @abstractmethod
    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return the indices (B, µ) of the samples of B minibatches.

        For each minibatch, (B,): the iteration in which its gradient arrives (on a clock, how many gradients were done
        before), its client, and its number among the client's.
        """


class SequentialSampler(Sampler):
    """One pointer shared by all clients, as in FRED: minibatch k = iteration mod ⌊n/µ⌋ is samples kµ … kµ + µ − 1."""

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return consecutive samples."""
        return (iterations % self._batches * len(self._within))[:, None] + self._within


class ShuffledSampler(SequentialSampler):
    """The pointer of SequentialSampler, over a permutation of the samples that is drawn again for each pass."""

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
        """Return a pass's permutation: a stable ascending sort by one 64-bit key per sample, the high word first."""
        if number not in self._permutations:
            words = self._streams.run_of_words(Stream.SHUFFLE, 2 * self._samples, step=number)
            keys = words64(words[0::2], words[1::2])
            self._permutations = {k: p for k, p in self._permutations.items() if k >= number - 1}
            self._permutations[number] = np.argsort(keys, kind="stable").astype(np.int64)
        return self._permutations[number]


class ClientSampler(Sampler):
    """Base of samplers whose minibatches depend on the client and the minibatch's number, not on the order of arrivals.

    If a single minibatch is needed, AHEAD minibatches are drawn together, because the cost is mostly that of the call.
    """

    def __init__(self, samples: int, batch_size: int, streams: Streams) -> None:
        super().__init__(samples, batch_size, streams)
        self._ahead: dict[int, tuple[int, Integers]] = {}  # by client: the first number drawn, and the rows

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return the samples (B, µ) of the clients' minibatches with these numbers."""
        if len(clients) != 1:
            return self._rows(clients, numbers)
        client, number = int(clients[0]), int(numbers[0])
        first, rows = self._ahead.get(client, (0, None))
        if rows is None or not first <= number < first + AHEAD:
            if (len(self._ahead) + 1) * AHEAD * self.batch_size > MOST_KEPT_AHEAD:
                self._ahead.clear()
            first, rows = number, self._rows(np.full(AHEAD, client), np.arange(number, number + AHEAD))
            self._ahead[client] = first, rows
        return rows[number - first : number - first + 1]

    @abstractmethod
    def _rows(self, clients: Integers, numbers: Integers) -> Integers:
        """Return the indices (B, µ) of the samples of these clients' minibatches with these numbers."""


class IidSampler(ClientSampler):
    """Draws samples with replacement."""

    def _rows(self, clients: Integers, numbers: Integers) -> Integers:
        return self._streams.below(self._samples, Stream.IID, self._within, numbers[:, None], clients[:, None])


class TaskSampler(Sampler):
    """For gradients without samples, such as a quadratic's: a row encodes a client's task (see `decode_task`)."""

    def rows(self, iterations: Integers, clients: Integers, numbers: Integers) -> Integers:
        """Return client·2³² + number, (B, 1)."""
        return (clients << 32 | numbers)[:, None]


def decode_task(row: int) -> tuple[int, int]:
    """Return the client, and the number of its task, from a row of TaskSampler."""
    return row >> 32, row & 0xFFFF_FFFF


class ShardSampler(ClientSampler):
    """Minibatches from the client's own shard, in order: number k has the positions kµ … kµ + µ − 1, cyclically."""

    def __init__(self, shards: Shards, batch_size: int, streams: Streams) -> None:
        super().__init__(batch_size, batch_size, streams)  # the number of samples is not used: each shard has its own
        self._shards = shards

    def _rows(self, clients: Integers, numbers: Integers) -> Integers:
        positions, of = numbers[:, None] * self.batch_size + self._within, clients[:, None]
        return self._shards.rows(of, self._places(positions, self._shards.sizes(of), numbers[:, None], of))

    def _places(self, positions: Integers, sizes: Integers, numbers: Integers, clients: Integers) -> Integers:
        """Return places (B, µ) in shards of these sizes (B, 1), for positions (B, µ) that continue over passes."""
        return positions % sizes


class IidShardSampler(ShardSampler):
    """Draws from the client's own shard with replacement, from (client, number of the client's minibatch)."""

    def _places(self, positions: Integers, sizes: Integers, numbers: Integers, clients: Integers) -> Integers:
        return self._streams.below(sizes, Stream.IID, self._within, numbers, clients)


class ShuffledShardSampler(ShardSampler):
    """Minibatches from the client's own shard; each pass over it has its own order, drawn from (client, pass)."""

    def __init__(self, shards: Shards, batch_size: int, streams: Streams) -> None:
        super().__init__(shards, batch_size, streams)
        self._orders: dict[int, NDArray[np.int32]] = {}  # by client and pass; the latest ones, up to MOST_KEPT samples
        self._kept_samples = 0

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
        while self._kept_samples > MOST_KEPT and len(self._orders) > 1:  # those that were drawn first go
            self._kept_samples -= len(self._orders.pop(next(iter(self._orders))))
        return places.reshape(shape)

    def _draw(self, codes: Integers, sizes: Integers) -> None:
        """Draw the orders of passes that are not kept, some at a time: stable ascending sorts of 64-bit keys."""
        new = np.array([code not in self._orders for code in codes.tolist()], bool)
        codes, sizes = codes[new], sizes[new]
        blocks = -(-sizes // 2)  # blocks of the random stream, each of two keys
        begin = 0
        while begin < len(codes):
            end = begin + max(1, int(np.searchsorted(np.cumsum(blocks[begin:]), BLOCK_ROWS, side="right")))
            self._draw_some(codes[begin:end], sizes[begin:end], blocks[begin:end])
            begin = end

    def _draw_some(self, codes: Integers, sizes: Integers, blocks: Integers) -> None:
        of = np.repeat(np.arange(len(codes)), blocks)
        within = np.arange(len(of)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        passes, clients = codes[of] & 0xFFFF_FFFF, codes[of] >> 32
        a, b, c, d = self._streams.blocks(Stream.SHUFFLE, within, passes, clients)
        keys = np.stack([words64(a, b), words64(c, d)], axis=1)
        ends = np.cumsum(2 * blocks)
        for code, size, begin in zip(codes.tolist(), sizes.tolist(), (ends - 2 * blocks).tolist(), strict=True):
            order = np.argsort(keys.reshape(-1)[begin : begin + size], kind="stable")
            self._orders[code] = order.astype(np.int32)
            self._kept_samples += size


SAMPLERS: dict[str, type[Sampler]] = {"sequential": SequentialSampler, "shuffled": ShuffledSampler, "iid": IidSampler}
SHARD_SAMPLERS: dict[str, type[ShardSampler]] = {
    "sequential": ShardSampler,
    "shuffled": ShuffledShardSampler,
    "iid": IidShardSampler,
}


def make_sampler(kind: str, samples: int, batch_size: int, streams: Streams, shards: Shards | None = None) -> Sampler:
    """Return a sampler, sequential, shuffled or iid, over `samples` training rows or, with `shards`, within these."""
    if shards is not None:
        return SHARD_SAMPLERS[kind](shards, batch_size, streams)
    return SAMPLERS[kind](samples, batch_size, streams)
