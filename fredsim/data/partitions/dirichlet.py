"""Shards with label mixes from a Dirichlet distribution (Yurochkin et al. 2019, arXiv:1905.12022): see docs/shards.md.

All draws are from stream PARTITION of docs/numerics.md: a proportion is drawn from elements 0 … 11 of (its step, its
client); a sample of a client that draws its samples from elements 12 and 13 of (its place in the shard, the client).
"""

from __future__ import annotations

import numpy as np

from fredsim.data.partitions.shards import BLOCK_ROWS, Shards, ShardTable
from fredsim.errors import ConfigError
from fredsim.numerics.arrays import Floats, Integers
from fredsim.numerics.distributions import Distribution, draw
from fredsim.numerics.elementary import exp64, log64
from fredsim.numerics.streams import Stream, Streams

__all__ = ["ATTEMPTS", "dirichlet", "dirichlet_of_equal_sizes"]

#: How often the whole partition is drawn before giving up, as in Flower.
ATTEMPTS = 11
POWER, LABEL, ROW = 8, 12, 13  # the elements of the draws other than those of the gamma distribution
EXCLUDED = -np.inf
MOST_CACHED = 2**21  # the most float64 numbers in the cached label mixes: 16 MiB


def _log_scores(streams: Streams, alpha: float, steps: Integers, clients: Integers) -> Floats:
    """Return α·log G for gamma draws G of shape α, one per (step, client); in this form G cannot underflow for small α.

    G = G′·U^(1/α) with G′ of shape α + 1, U = (word + ½)·2⁻³².
    """
    larger = draw(Distribution("gamma", (alpha + 1.0, 1.0)), streams, Stream.PARTITION, steps, clients)
    words = streams.words(Stream.PARTITION, POWER, steps, clients)
    return alpha * log64(larger) + log64((words.astype(np.float64) + 0.5) * 2.0**-32)


def _cumulative_weights(scores: Floats, alpha: float) -> Floats:
    """Return cumulated weights along the last axis; weights are proportional to the gamma draws, the largest is 1."""
    with np.errstate(over="ignore"):
        weights = exp64((scores - scores.max(axis=-1, keepdims=True)) / alpha)
    return np.cumsum(weights, axis=-1)  # summed one after another


def dirichlet(
    labels: Integers, clients: int, streams: Streams, alpha: float, min_size: int, *, self_balancing: bool
) -> ShardTable:
    """Divide each class's rows, in their order, among the clients, by proportions drawn from Dirichlet(α).

    With `self_balancing` a client that has more than n/λ rows gets no rows of the classes after that. Everything is
    drawn again if a client has fewer than `min_size` rows. Raises ConfigError if it does after the last attempt, too.
    """
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    ids, average = np.arange(clients), len(labels) / clients
    hopeless = min_size * clients > len(labels)
    attempts = 1 if hopeless else ATTEMPTS
    for attempt in range(attempts):
        owners, sizes = np.empty(len(labels), np.int64), np.zeros(clients, np.int64)
        for number, rows in enumerate(by_class):
            step = np.full(clients, attempt * len(by_class) + number)
            scores = _log_scores(streams, alpha, step, ids)
            if self_balancing:
                scores[sizes > average] = EXCLUDED
            cumulated = _cumulative_weights(scores, alpha)
            ends = (cumulated / cumulated[-1] * len(rows)).astype(np.int64)
            ends[-1] = len(rows)
            own = np.diff(ends, prepend=0)
            owners[rows] = np.repeat(ids, own)
            sizes += own
        if sizes.min() >= min_size:
            return ShardTable.from_owners(owners, clients)
    raise _too_few_rows(sizes, alpha, min_size, len(labels), attempts)


def _too_few_rows(sizes: Integers, alpha: float, min_size: int, rows: int, attempts: int) -> ConfigError:
    small = np.flatnonzero(sizes < min_size)
    those = f"the first of {len(small):,} clients" if len(small) > 1 else "the one client"
    if min_size == 1:
        found = f"client {small[0]} is {those} without data"
    else:
        found = f"client {small[0]} has {sizes[small[0]]} samples, {those} with fewer than min_size, {min_size}"
    hopeless = min_size * len(sizes) > rows
    why = f"there are {rows:,} training rows" if hopeless else f"this was the last of {attempts} attempts"
    lower = "clients.count" if min_size == 1 else "clients.count or min_size"
    remedy = f"lower {lower}, raise alpha, or give equal_sizes: true, by which clients may share samples"
    return ConfigError(f"clients.partition is dirichlet with alpha {alpha:g}; {found}: {why}; {remedy}")


def dirichlet_of_equal_sizes(labels: Integers, clients: int, streams: Streams, alpha: float, size: int) -> Shards:
    """Return shards of equal sizes: each client's label mix is drawn from Dirichlet(α), and its samples from that mix.

    For each sample first a label is drawn from the mix, then a row among those with that label; clients may share
    samples. The shards are stored if they are small, otherwise drawn again whenever they are needed.
    """
    drawn = EqualShards(labels, clients, streams, alpha, size)
    if clients * size > BLOCK_ROWS:
        return drawn
    rows = np.concatenate([rows for _, _, rows in drawn.blocks()])
    return ShardTable(np.arange(clients + 1) * size, rows)


class EqualShards(Shards):
    """Shards that are drawn when they are needed. Label mixes are cached, by the client's id modulo the size."""

    def __init__(self, labels: Integers, clients: int, streams: Streams, alpha: float, size: int) -> None:
        self.count, self._size = clients, size
        self._streams, self._alpha = streams, alpha
        self._by_label = np.argsort(labels, kind="stable")
        counts = np.unique(labels, return_counts=True)[1]  # labels may be any integers, also negative ones
        self._counts, self._begins = counts, np.cumsum(counts) - counts
        cached = min(clients, max(1, MOST_CACHED // len(counts)))
        self._cached_clients, self._cached_mixes = np.full(cached, -1, np.int64), np.empty((cached, len(counts)))

    def sizes(self, clients: Integers) -> Integers:
        """Return the size of these clients' shards, which is the same for all."""
        return np.full(clients.shape, self._size, np.int64)

    def rows(self, clients: Integers, places: Integers) -> Integers:
        """Draw the rows at these places of these clients' shards, some at a time."""
        clients, places = np.broadcast_arrays(clients, places)
        flat, where = clients.reshape(-1), places.reshape(-1)
        result, some = np.empty(len(flat), np.int64), max(1, BLOCK_ROWS // 4 // len(self._counts))
        for begin in range(0, len(flat), some):
            part = slice(begin, begin + some)
            result[part] = self._draw_rows(flat[part], where[part])
        return result.reshape(clients.shape)

    def _draw_rows(self, clients: Integers, places: Integers) -> Integers:
        ids, which = np.unique(clients, return_inverse=True)
        mixes = self._mixes(ids)[which]
        words = self._streams.words(Stream.PARTITION, LABEL, places, clients)
        drawn = (words.astype(np.float64) + 0.5) * 2.0**-32 * mixes[:, -1]
        label = (mixes <= drawn[:, None]).sum(axis=1)
        within = self._streams.below(self._counts[label], Stream.PARTITION, ROW, places, clients)
        rows: Integers = self._by_label[self._begins[label] + within]
        return rows

    def _mixes(self, clients: Integers) -> Floats:
        """Return the cumulated label mixes (n, classes) of different clients."""
        places = clients % len(self._cached_clients)
        unknown = self._cached_clients[places] != clients
        result = self._cached_mixes[places]
        if unknown.any():
            new, steps = clients[unknown], np.arange(len(self._counts))
            grid = np.meshgrid(new, steps, indexing="ij")
            scores = _log_scores(self._streams, self._alpha, grid[1].reshape(-1), grid[0].reshape(-1))
            result[unknown] = mixes = _cumulative_weights(scores.reshape(grid[0].shape), self._alpha)
            # If several clients have the same place, the last one is cached, in both arrays.
            self._cached_clients[places[unknown]], self._cached_mixes[places[unknown]] = new, mixes
        return result
