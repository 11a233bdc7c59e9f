"""A seed reaches every draw, and nothing else does."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.data.sampling import Sampler, make_sampler
from fredsim.dispatchers import Uniform, Weighted
from fredsim.networks.mlp import Mlp
from fredsim.numerics.streams import Stream, Streams
from fredsim.runs.folder.results import Result
from fredsim.servers import TernarySync
from fredsim.simulation.paths.snapshots import Snapshots
from fredsim.simulation.schedule.length import Length

Simulate = Callable[..., Result]


def order(seed: int, clients: int = 9) -> list[int]:
    dispatcher = Uniform()
    dispatcher.init(clients, Streams(seed))
    return [dispatcher.choose(step) for step in range(100)]


def rows(kind: Any, seed: int) -> NDArray[np.int64]:
    iterations = np.arange(40)
    return make_sampler(kind, 100, 7, Streams(seed)).rows(iterations, iterations % 5, iterations // 5)


def test_the_seed_changes_the_initial_parameters() -> None:
    for init in ("he", "glorot", "torch", "normal"):
        one, same, other = (Mlp((20, 30, 5), init).initial(Streams(seed)) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, same)
        assert np.mean(one == other) < 0.1  # biases are 0 either way


def test_the_seed_changes_the_client_order() -> None:
    assert order(0) == order(0)
    assert order(0) != order(1)
    weighted = [Weighted(weights=[1.0, 2.0]) for _ in range(2)]
    for seed, dispatcher in enumerate(weighted):
        dispatcher.init(9, Streams(seed))
    assert [weighted[0].choose(step) for step in range(100)] != [weighted[1].choose(step) for step in range(100)]


@pytest.mark.parametrize("kind", ["iid", "shuffled"])
def test_the_seed_changes_the_minibatches(kind: str) -> None:
    np.testing.assert_array_equal(rows(kind, 0), rows(kind, 0))
    assert (rows(kind, 0) != rows(kind, 1)).any()


def test_sequential_minibatches_draw_nothing() -> None:
    np.testing.assert_array_equal(rows("sequential", 0), rows("sequential", 1))
    np.testing.assert_array_equal(rows("sequential", 0)[13], np.arange(91, 98))
    np.testing.assert_array_equal(rows("sequential", 0)[14], np.arange(7))  # 14 minibatches of 7; two rows are dropped


def test_shuffled_passes_are_permutations() -> None:
    drawn = rows("shuffled", 3)
    for number in range(2):
        one_pass = drawn[14 * number : 14 * number + 14].reshape(-1)
        assert len(set(one_pass.tolist())) == 98
    assert (drawn[:14] != drawn[14:28]).any()


def test_a_permutation_is_the_order_of_keys_of_two_words() -> None:
    """In pass 260 of 6,000 samples two keys have the same high word; their low words say which comes first."""
    words = Streams(0).words(Stream.SHUFFLE, np.arange(12_000), 260).tolist()
    assert words[2 * 823] == words[2 * 1254]
    assert words[2 * 823 + 1] > words[2 * 1254 + 1]
    order = sorted(range(6000), key=lambda sample: words[2 * sample] << 32 | words[2 * sample + 1])
    one_pass, none = 260 * 6000 + np.arange(6000), np.zeros(6000, np.int64)
    assert make_sampler("shuffled", 6000, 1, Streams(0)).rows(one_pass, none, none)[:, 0].tolist() == order


def test_passes_that_are_over_take_no_memory() -> None:
    sampler, none = make_sampler("shuffled", 10_000, 100, Streams(0)), np.zeros(100, np.int64)
    tracemalloc.start()
    try:
        for number in range(12):
            sampler.rows(number * 100 + np.arange(100), none, none)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 * 8 * 10_000  # this pass and the one before


def test_iid_depends_on_the_client_and_its_own_count_alone() -> None:
    sampler = make_sampler("iid", 100, 7, Streams(0))
    one = sampler.rows(np.array([5]), np.array([3]), np.array([2]))
    many = sampler.rows(np.arange(900, 904), np.array([1, 3, 3, 4]), np.array([2, 1, 2, 2]))
    np.testing.assert_array_equal(one[0], many[2])
    assert (one[0] != many[1]).any()
    assert (one[0] != many[0]).any()


class Watched:
    """Notes what each run on `snapshots` did: its initial parameters, the order of clients, the minibatches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clients: list[int] = []
        self.rows: list[list[int]] = []
        self.start: bytes = b""
        advance, run = Snapshots._advance, Snapshots.run

        def watched_run(simulation: Snapshots, *arguments: Any) -> Any:
            self.clients, self.rows = [], []
            self.start = simulation.server.params.tobytes()
            return run(simulation, *arguments)

        def watched_advance(simulation: Snapshots, length: Length) -> None:
            sampler = simulation._sampler
            if not isinstance(sampler, Noting):
                simulation._sampler = Noting(sampler, self)
            advance(simulation, length)

        monkeypatch.setattr(Snapshots, "run", watched_run)
        monkeypatch.setattr(Snapshots, "_advance", watched_advance)


class Noting(Sampler):
    def __init__(self, sampler: Any, watched: Watched) -> None:
        self._sampler, self._watched, self.batch_size = sampler, watched, sampler.batch_size

    def rows(self, iterations: Any, clients: Any, numbers: Any) -> Any:
        drawn = self._sampler.rows(iterations, clients, numbers)
        self._watched.clients += clients.tolist()
        self._watched.rows += drawn.tolist()
        return drawn


@pytest.mark.parametrize("sampling", ["iid", "shuffled", "sequential"])
def test_nothing_else_moves_a_draw(simulate: Simulate, monkeypatch: pytest.MonkeyPatch, sampling: str) -> None:
    watched = Watched(monkeypatch)

    def draws(**changes: Any) -> tuple[bytes, list[int], list[list[int]]]:
        clients = {"count": 8, "batch_size": 3, "sampling": sampling} | changes.pop("clients", {})
        simulate({"iterations": 60, "path": "snapshots", "clients": clients, **changes})
        return watched.start, watched.clients, watched.rows

    reference = draws()
    assert len(reference[1]) == len(reference[2]) == 60
    for change in (
        {"server": {"name": "asgd", "lr": 0.2}},
        {"server": {"name": "fasgd", "lr": 0.005}},
        {"server": {"name": "fasgd", "lr": 0.01, "gamma": 0.5, "variant": "printed"}},
        {"server": {"name": "soft_sync", "lr": 0.1, "n": 8}},
        {"evaluation": {"every": 1}},
        {"backend": "numpy"},
        {"threads": 1},
        {"window": 1},
    ):
        assert draws(**change) == reference, change
    other_model = draws(model={"hidden": [5, 5]})
    assert other_model[0] != reference[0]
    assert other_model[1:] == reference[1:]
    assert draws(clients={"count": 9})[0] == reference[0]
    other_seed = draws(seed=1)
    assert other_seed[0] != reference[0]
    assert other_seed[1] != reference[1]
    assert (other_seed[2] != reference[2]) == (sampling != "sequential")


def test_a_server_draws_from_the_seed_of_its_run(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    update = TernarySync.apply_update

    def apply_update(server: TernarySync, *arguments: Any) -> Any:
        seeds.append(server.streams.seed)
        return update(server, *arguments)

    monkeypatch.setattr(TernarySync, "apply_update", apply_update)
    for seed in (0, 7):
        simulate({"server": {"name": "ternary_sync", "lr": 0.1}, "iterations": 8, "seed": seed})
    assert seeds == [0] * 8 + [7] * 8
