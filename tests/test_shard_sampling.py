"""Minibatches from a client's own shard, beside a plain loop; and whole runs with shards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fredsim.config.partition import PARTITIONS, make_shards
from fredsim.data import sampling
from fredsim.data.datasets import data_root, load_dataset
from fredsim.data.partitions.shards import Shards, ShardTable
from fredsim.data.sampling import make_sampler
from fredsim.numerics.streams import Stream, Streams
from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]

SIZES = [5, 1, 12, 2]
LISTS = [(100 * client + np.arange(size) ** 2).tolist() for client, size in enumerate(SIZES)]
STREAMS = Streams(3)


def place(kind: str, position: int, j: int, number: int, client: int) -> int:
    """The place in the client's shard of its position, which is the j-th of its gradient of this number."""
    size = SIZES[client]
    if kind == "sequential":
        return position % size
    if kind == "iid":
        return int(STREAMS.below(size, Stream.IID, j, number, client))
    own_pass = position // size
    words = [int(STREAMS.words(Stream.SHUFFLE, i, own_pass, client)) for i in range(2 * size)]
    return sorted(range(size), key=lambda i: (words[2 * i], words[2 * i + 1], i))[position % size]


@pytest.mark.parametrize("mu", [1, 3, 7])
@pytest.mark.parametrize("kind", ["sequential", "iid", "shuffled"])
def test_minibatches(kind: str, mu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a client and its number alone: neither the company nor what was asked before, nor what is kept, matters."""
    monkeypatch.setattr(sampling, "BLOCK_ROWS", 3)
    monkeypatch.setattr(sampling, "MOST_KEPT", 20)
    monkeypatch.setattr(sampling, "MOST_KEPT_AHEAD", 2 * 16 * mu)  # of two clients
    rng = np.random.default_rng(mu)
    sampler = make_sampler(kind, 1200, mu, STREAMS, ShardTable.from_lists([np.array(one) for one in LISTS]))
    for count in (0, 1, 2, 17, 40, *(30 * [1])):
        clients, numbers = rng.integers(0, 4, count), rng.integers(0, 12, count)
        expected = [
            [LISTS[c][place(kind, n * mu + j, j, n, c)] for j in range(mu)]
            for c, n in zip(clients.tolist(), numbers.tolist(), strict=True)
        ]
        found = sampler.rows(rng.integers(0, 99, count), clients, numbers)
        assert found.shape == (count, mu)
        assert found.tolist() == expected


def test_independent_draws_are_those_of_the_streams() -> None:
    """One at a time or together, forwards, over again and with gaps."""
    sampler = make_sampler("iid", 1200, 5, STREAMS)
    for number in (0, 1, 15, 16, 17, 16, 3, 50, 49):
        for client in (0, 7):
            expected = [int(STREAMS.below(1200, Stream.IID, j, number, client)) for j in range(5)]
            assert sampler.rows(np.array([9]), np.array([client]), np.array([number])).tolist() == [expected]
    together = sampler.rows(np.array([9, 9]), np.array([7, 0]), np.array([49, 4]))
    assert together.tolist() == [
        [int(STREAMS.below(1200, Stream.IID, j, n, c)) for j in range(5)] for c, n in ((7, 49), (0, 4))
    ]


def test_a_pass_of_a_client_has_each_of_its_samples_once() -> None:
    sampler = make_sampler("shuffled", 1200, 3, STREAMS, ShardTable.from_lists([np.array(one) for one in LISTS]))
    for client, rows in enumerate(LISTS):
        drawn = sampler.rows(np.zeros(len(rows), int), np.full(len(rows), client), np.arange(len(rows))).reshape(-1)
        passes = drawn.reshape(3, len(rows))
        assert [sorted(one) for one in passes.tolist()] == [rows] * 3


def test_iid_draws_are_uniform_within_a_shard() -> None:
    sampler = make_sampler("iid", 1200, 10, STREAMS, ShardTable.from_lists([np.array(one) for one in LISTS]))
    drawn = sampler.rows(np.zeros(1000, int), np.full(1000, 2), np.arange(1000))
    assert stats.chisquare(np.unique(drawn, return_counts=True)[1]).pvalue > 0.001


DIRICHLET = {"name": "dirichlet", "alpha": 0.3}


def clients_with(partition: Any, **keys: Any) -> dict[str, Any]:
    return {"count": 8, "batch_size": 3, "partition": partition, **keys}


def test_all_share_as_before(simulate: Simulate) -> None:
    """Neither key, configuration nor digest are there where nothing is asked for."""
    plain = simulate({"clients": {"count": 8, "batch_size": 3}})
    for partition in ("iid", {"name": "iid"}, {"name": "iid", "shards": False}):
        same = simulate({"clients": clients_with(partition), "evaluation": {"per_client": False}})
        for key in ("digest", "experiment", "config"):
            assert same.summary[key] == plain.summary[key]
        assert (same.folder / "config.yaml").read_bytes() == (plain.folder / "config.yaml").read_bytes()
    assert "partition" not in plain.config["clients"]
    assert simulate({"clients": clients_with(DIRICHLET)}).config["clients"]["partition"]["min_size"] == 1


@pytest.mark.parametrize("sampling", ["sequential", "iid", "shuffled"])
@pytest.mark.parametrize("steps", [1, 3])
def test_one_client_with_all_rows_is_the_run_without_shards(simulate: Simulate, sampling: str, steps: int) -> None:
    """Where its passes are whole minibatches."""
    base = {"count": 1, "batch_size": 3, "sampling": sampling, "local_steps": steps}
    one = simulate({"clients": base})
    other = simulate({"clients": base | {"partition": {"name": "shards", "per_client": 1}}})
    assert one.summary["digest"] == other.summary["digest"]


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_lists_of_ones_own(simulate: Simulate, tmp_path: Path, kind: str) -> None:
    """Lists of a dealt partition are that partition."""
    labels = load_dataset("digits", None, None, data_root()).train.y
    choice: Any = PARTITIONS["dirichlet"].model_validate(DIRICHLET)
    found = make_shards(choice, labels, 8, 0)
    assert isinstance(found, Shards)
    lists = [found.rows(np.array(c), np.arange(int(found.sizes(np.array(c))))) for c in range(8)]
    path = tmp_path / f"lists.{kind}"
    if kind == "npz":
        np.savez(path, *lists)
    else:
        path.write_text(json.dumps([one.tolist() for one in lists]), encoding="utf-8")
    from_lists = simulate({"clients": clients_with({"name": "lists", "file": str(path)})})
    assert from_lists.summary["digest"] == simulate({"clients": clients_with(DIRICHLET)}).summary["digest"]
    assert len(from_lists.config["clients"]["partition"]["sha256"]) == 64
    other = simulate({"clients": clients_with(DIRICHLET, sampling="iid")})
    assert other.summary["digest"] != from_lists.summary["digest"]


WAYS: list[dict[str, Any]] = [
    {"backend": "numpy"},
    {"path": "fused"},
    {"path": "snapshots"},
    {"path": "snapshots", "window": 1},
    {"threads": 2, "window": 3},
    {"evaluation": {"every": 7, "per_client": True}},
]


@pytest.mark.parametrize("sampling", ["sequential", "iid", "shuffled"])
@pytest.mark.parametrize("partition", [DIRICHLET, DIRICHLET | {"equal_sizes": True, "size": 4}], ids=str)
def test_every_way_gives_the_same_bytes(simulate: Simulate, partition: Any, sampling: str) -> None:
    base = {"clients": clients_with(partition, sampling=sampling), "evaluation": {"every": 1000, "per_client": True}}
    one = simulate(base)
    assert one.summary["path"] == "hand"
    for way in WAYS:
        other = simulate(base | way)
        assert (other.summary["digest"], other.summary["updates"]) == (one.summary["digest"], one.summary["updates"])
        assert (other.folder / "clients.csv").read_bytes() == (one.folder / "clients.csv").read_bytes(), way
    assert simulate({"clients": clients_with(partition, sampling=sampling)}).summary["digest"] == one.summary["digest"]
