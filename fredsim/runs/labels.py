"""Counts which labels the clients of a recorded run hold, by making their shards again from its config and data."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fredsim.config.partition import make_shards
from fredsim.config.resolution import resolve
from fredsim.data.datasets import data_root
from fredsim.errors import ConfigError
from fredsim.runs.results import Result

__all__ = ["Holdings", "holdings"]

MOST = 10_000  # the most clients that are counted
COUNTS = 2**22  # the most counts, one for each label and client


@dataclass(frozen=True)
class Holdings:
    """How many samples of each label some of the clients hold: `counts` int64 (clients, labels); λ is `of`."""

    clients: NDArray[np.int64]
    labels: NDArray[np.int64]
    counts: NDArray[np.int64]
    of: int


def holdings(result: Result, root: str | os.PathLike[str] | None = None) -> Holdings:
    """Return which labels the clients of a run hold; if there are very many clients, of some at equal distances.

    Raises DataError if the data set cannot be read, or if a file has changed since the run.
    """
    experiment = resolve(result.config)
    data, count = experiment.data, experiment.clients.count
    train = data.load(data_root(root), experiment.seed).train
    if train.y.dtype.kind == "f":
        raise ConfigError(f"{result.folder}: its data, {data.name}, have no labels that clients could hold")
    shards = make_shards(experiment.clients.partition, train.y, count, experiment.seed)
    labels, which = np.unique(train.y, return_inverse=True)
    few = min(count, MOST, max(1, COUNTS // len(labels)))
    clients = np.arange(few) * count // few
    if shards is None:
        return Holdings(clients, labels, np.tile(np.bincount(which), (few, 1)), count)
    counts = np.empty((few, len(labels)), np.int64)
    for place in range(few):
        client = clients[place : place + 1]
        rows = shards.rows(client, np.arange(int(shards.sizes(client)[0])))
        counts[place] = np.bincount(which[rows], minlength=len(labels))
    return Holdings(clients, labels, counts, count)
