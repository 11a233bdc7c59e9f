"""Partitions of the training rows among the clients, with the names of Flower (flwr-datasets): see docs/shards.md.

Dirichlet partitions are in fredsim.data.partitions.dirichlet. All draws are from stream PARTITION of docs/numerics.md.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fredsim.data.partitions.shards import ShardTable
from fredsim.errors import ConfigError
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Stream, Streams, words64

__all__ = ["Assignment", "iid", "pathological", "sorted_shards"]

Assignment = Literal["random", "first-deterministic", "deterministic"]


def _permutations(streams: Streams, count: int, clients: Integers) -> Integers:
    """Return a permutation of `count` for each client, (n, count): the stable ascending sort of 64-bit keys."""
    elements = np.arange(2 * count)
    words = streams.words(Stream.PARTITION, elements, 0, clients[:, None])
    return np.argsort(words64(words[:, 0::2], words[:, 1::2]), axis=1, kind="stable")


def _piece_of(count: int, pieces: int) -> Integers:
    """Return which of `pieces` consecutive pieces each of `count` items is in; the first ones may be longer by one."""
    sizes = count // pieces + (np.arange(pieces) < count % pieces)
    return np.repeat(np.arange(pieces), sizes)


def iid(rows: int, clients: int, streams: Streams) -> ShardTable:
    """Cut a permutation of the rows into λ shards. Raises ConfigError if there are more clients than rows."""
    if clients > rows:
        what = f"clients.count is {clients}, and there are {rows} training rows: client {rows} has no data"
        raise ConfigError(f"clients.partition is iid with shards; {what}; lower clients.count")
    order = _permutations(streams, rows, np.zeros(1, np.int64))[0]
    sizes = np.bincount(_piece_of(rows, clients))
    return ShardTable(np.concatenate([[0], np.cumsum(sizes)]), order)


def sorted_shards(labels: Integers, clients: int, streams: Streams, per_client: int) -> ShardTable:
    """Sort the rows by label, cut them into λ·`per_client` pieces, and assign these at random, `per_client` to each.

    McMahan et al. 2017, arXiv:1602.05629. Raises ConfigError if there are fewer rows than pieces.
    """
    pieces, rows = clients * per_client, len(labels)
    if pieces > rows:
        what = f"{clients} clients need {pieces} pieces of one row at least, and there are {rows} training rows"
        raise ConfigError(f"clients.partition.per_client is {per_client}; {what}; lower it, or clients.count")
    assigned = np.empty(pieces, np.int64)
    assigned[_permutations(streams, pieces, np.zeros(1, np.int64))[0]] = np.arange(pieces) // per_client
    owners = np.empty(rows, np.int64)
    owners[np.argsort(labels, kind="stable")] = assigned[_piece_of(rows, pieces)]
    return ShardTable.from_owners(owners, clients)


def pathological(
    labels: Integers, clients: int, streams: Streams, classes: int, assignment: Assignment = "random"
) -> ShardTable:
    """Give each client `classes` classes, and divide the rows of each class, in order, evenly among its clients.

    `random`: each client draws its classes; `deterministic`: client i has the classes i, i + 1, … mod their number;
    `first-deterministic`: class i mod their number, and others that it draws. A class that no client has is left out.
    Raises ConfigError if there are fewer classes, or if a class has more clients than rows.
    """
    known = np.unique(labels)
    key = f"clients.partition.classes is {classes}"
    if classes > len(known):
        raise ConfigError(f"{key}; the training rows have {len(known)} classes: lower it")
    if clients * classes > len(labels):  # some class has more clients than rows, however they are drawn
        what = f"{clients:,} clients with as many classes need {clients * classes:,} rows at least"
        raise ConfigError(f"{key}; {what}, and there are {len(labels):,} training rows: lower it, or clients.count")
    ids = np.arange(clients)
    first = ids[:, None] % len(known)
    if assignment == "deterministic":
        chosen = (first + np.arange(classes)) % len(known)
    else:
        chosen = _permutations(streams, len(known), ids)
        if assignment == "first-deterministic":  # client i's first class moves to the front of its permutation
            chosen = np.take_along_axis(chosen, np.argsort(chosen != first, axis=1, kind="stable"), axis=1)
        chosen = chosen[:, :classes]
    owners = np.full(len(labels), -1, np.int64)
    for number, label in enumerate(known):
        rows, its = np.flatnonzero(labels == label), np.flatnonzero((chosen == number).any(axis=1))
        if len(its) > len(rows):
            what = f"{len(its)} clients have class {label}, which has {len(rows)} training rows"
            raise ConfigError(f"{key}; {what}: lower it or clients.count, or give assignment: deterministic")
        if len(its):
            owners[rows] = its[_piece_of(len(rows), len(its))]
    return ShardTable.from_owners(owners, clients)
