"""Counts the labels in the clients' shards of a recorded run, by making the shards again from its config and data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fredsim.config.clients import Clients
from fredsim.config.data import DataChoice
from fredsim.config.document import problems_at, read_document
from fredsim.config.experiment import config_digest
from fredsim.config.partition import make_shards
from fredsim.data.datasets import data_root
from fredsim.data.targets import Targets
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, explain
from fredsim.plugins.modules import look_as_recorded
from fredsim.runs.folder.results import Result

__all__ = ["LabelCounts", "label_counts"]

MOST_CLIENTS = 10_000  # the most clients whose labels are counted
MOST_COUNTS = 2**22  # the most counts, one for each label and client


@dataclass(frozen=True)
class LabelCounts:
    """How many samples of each label some of the clients have: `counts`, int64 (clients, labels).

    `clients` and `labels` name the rows and the columns; `total` is λ, the number of all clients.
    """

    clients: NDArray[np.int64]
    labels: NDArray[np.int64]
    counts: NDArray[np.int64]
    total: int


class _Parts(HyperParameters):
    data: DataChoice
    clients: Clients


def _parts_of(result: Result) -> _Parts:
    """Return what a run's data and clients were. Raises ConfigError, with file and line, for words that no run has.

    Other readers only show them, and take any (`check_config`).
    """
    config = result.config
    try:
        return _Parts.model_validate({key: config[key] for key in _Parts.model_fields})
    except ValidationError as error:
        raise problems_at(explain(error, _Parts), read_document(result.folder / "config.yaml").place) from None


def label_counts(result: Result, root: str | os.PathLike[str] | None = None) -> LabelCounts:
    """Return the label counts of a run's clients; if there are very many, of some of them, evenly spaced by id.

    Raises DataError if the data set cannot be read, or if a file has changed since the run; ConfigError if it has no
    labels.
    """
    if "problem" in result.config:
        raise ConfigError(f"{result.folder}: is of a problem, which has no rows that clients could hold")
    parts = _parts_of(result)
    # They change no label.
    data: Any = parts.data
    data = data.model_copy(update={key: None for key in ("augment", "normalize") if getattr(data, key, None)})
    if data.user_code:  # it may be somebody else's
        look_as_recorded(result.folder, config_digest(read_document(result.folder / "config.yaml").data))
    of, seed = parts.clients, result.config["seed"]
    count = of.count
    targets = Targets(ignored=(result.config.get("loss") or {}).get("ignore_index"))
    found = data.load(data_root(root), seed, targets).train.y
    if found.dtype.kind not in "biu" or found.ndim > 1:  # labels may be any integers: the loss decides what they mean
        raise ConfigError(f"{result.folder}: its data, {data.name}, have no labels that clients could hold")
    of_rows = np.asarray(found).astype(np.int64)
    shards = make_shards(of.partition, of_rows, count, seed)
    labels, which = np.unique(of_rows, return_inverse=True)
    few = min(count, MOST_CLIENTS, max(1, MOST_COUNTS // len(labels)))
    clients = np.arange(few) * count // few
    if shards is None:
        return LabelCounts(clients, labels, np.tile(np.bincount(which), (few, 1)), count)
    counts = np.empty((few, len(labels)), np.int64)
    for place in range(few):
        client = clients[place : place + 1]
        rows = shards.rows(client, np.arange(int(shards.sizes(client)[0])))
        counts[place] = np.bincount(which[rows], minlength=len(labels))
    return LabelCounts(clients, labels, counts, count)
