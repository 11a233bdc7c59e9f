"""Every dispatcher: its order, its likelihoods, and how it passes over clients that are held."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.dispatchers import DISPATCHERS, Dispatcher, RoundRobin, Scripted, Uniform, Weighted
from fredsim.dispatchers.clock import Clock
from fredsim.dispatchers.fenwick import Fenwick
from fredsim.errors import SimulationError
from fredsim.numerics.streams import Stream, Streams


def started(dispatcher: Dispatcher, clients: int, seed: int = 0) -> Any:
    dispatcher.init(clients, Streams(seed))
    return dispatcher


class ChoosingClock(Clock):
    """A clock of which one arrival is drawn at a time."""

    def choose(self, step: int) -> int:
        order = self.draw(1)
        if not len(order):
            raise self.ended_error(step, None)
        return int(order.client[0])


MAKE: dict[str, Callable[[], Dispatcher]] = {
    "uniform": lambda: Uniform(),
    "weighted": lambda: Weighted(weights=[1.0, 3.0], on_chosen={"factor": 0.5, "recover_after": 2}),
    "round_robin": lambda: RoundRobin(),
    "clock": lambda: ChoosingClock(compute={"noise": {"name": "exponential"}}),
    "scripted": lambda: Scripted(order=[0, 3, 1, 2, 3]),
}


def test_all_are_here() -> None:
    assert MAKE.keys() | {"trace"} == DISPATCHERS.keys()  # which chooses nobody: tests/test_trace.py


@pytest.mark.parametrize("name", MAKE)
def test_only_eligible_clients_are_chosen(name: str) -> None:
    dispatcher = started(MAKE[name](), 4)
    held: set[int] = set()
    rng = np.random.default_rng(0)
    for step in range(500):
        client = dispatcher.choose(step)
        assert client not in held
        assert 0 <= client < 4
        if len(held) < 3 and rng.random() < 0.5:
            dispatcher.hold(client)
            held.add(client)
        elif held:
            back = int(rng.choice(sorted(held)))
            dispatcher.release(back)
            held.discard(back)


@pytest.mark.parametrize(
    "make", [MAKE["uniform"], MAKE["round_robin"], MAKE["scripted"], lambda: Weighted(weights=[1.0, 3.0, 0.01])]
)
def test_an_order_drawn_at_once_is_what_is_chosen_one_by_one(make: Callable[[], Dispatcher]) -> None:
    whole, single = started(make(), 7, 3), started(make(), 7, 3)
    one_by_one = [single.choose(step) for step in range(5000)]
    assert whole.order(0, 5000).tolist() == one_by_one
    cuts = [0, 1, 1, 8, 1000, 1007, 5000]
    parts = [started(make(), 7, 3).order(begin, end - begin).tolist() for begin, end in itertools.pairwise(cuts)]
    assert list(itertools.chain(*parts)) == one_by_one


@pytest.mark.parametrize("name", MAKE)
def test_nobody_to_choose_is_an_error_with_a_remedy(name: str) -> None:
    dispatcher = started(MAKE[name](), 4)
    for client in range(4):
        dispatcher.hold(client)
    with pytest.raises(SimulationError, match=r"iteration 9: .* release clients"):
        dispatcher.choose(9)
    dispatcher.release(2)
    assert dispatcher.choose(10) == 2


@pytest.mark.parametrize("name", MAKE)
def test_a_dispatcher_that_starts_over_has_forgotten_everything(name: str) -> None:
    used, fresh = started(MAKE[name](), 4), started(MAKE[name](), 4, seed=1)
    used.hold(0)
    for step in range(7):
        used.choose(step)
    used.init(4, Streams(1))
    assert [used.choose(step) for step in range(60)] == [fresh.choose(step) for step in range(60)]


@pytest.mark.parametrize("name", MAKE)
def test_releasing_who_is_not_held_does_nothing(name: str) -> None:
    one, other = started(MAKE[name](), 4), started(MAKE[name](), 4)
    for step in range(60):
        assert one.choose(step) == other.choose(step)
        other.release(step % 4)


def test_uniform_draws_the_kth_eligible_id_by_the_contract() -> None:
    streams = Streams(5)
    dispatcher = started(Uniform(), 10, seed=5)
    expected = streams.below(10, Stream.DISPATCH, 0, np.arange(5000)).tolist()
    assert [dispatcher.choose(step) for step in range(5000)] == expected
    for client in (0, 4, 9):
        dispatcher.hold(client)
    eligible = [1, 2, 3, 5, 6, 7, 8]
    for step in range(5000, 5100):
        assert dispatcher.choose(step) == eligible[int(streams.below(7, Stream.DISPATCH, 0, step))]


def test_uniform_redraws_a_biased_word() -> None:
    """Of a thousand clients one word in 14 million is biased; this one was found by search."""
    streams, step = Streams(6), 978_623
    first, second = (int(streams.words(Stream.DISPATCH, 0, step, attempt=attempt)) * 1000 for attempt in (0, 1))
    assert first % 2**32 < 2**32 % 1000 <= second % 2**32
    assert (first >> 32, second >> 32) == (439, 612)
    dispatcher = started(Uniform(), 1000, seed=6)
    assert dispatcher.choose(step) == 612
    assert dispatcher.order(0, step + 1)[step] == dispatcher.order(step, 3)[0] == 612


def test_round_robin_takes_the_next_after_the_last_chosen() -> None:
    dispatcher = started(RoundRobin(), 4)
    assert [dispatcher.choose(step) for step in range(5)] == [0, 1, 2, 3, 0]
    dispatcher.hold(1)
    dispatcher.hold(2)
    assert [dispatcher.choose(step) for step in range(3)] == [3, 0, 3]
    dispatcher.release(1)
    assert [dispatcher.choose(step) for step in range(3)] == [0, 1, 3]
    dispatcher.hold(3)
    dispatcher.hold(0)
    assert [dispatcher.choose(step) for step in range(2)] == [1, 1]


def test_scripted_repeats_and_passes_over(tmp_path: Path) -> None:
    dispatcher = started(Scripted(order=[2, 0, 1]), 3)
    assert [dispatcher.choose(step) for step in range(5)] == [2, 0, 1, 2, 0]
    dispatcher.hold(1)
    assert [dispatcher.choose(step) for step in range(3)] == [2, 0, 2]
    table = tmp_path / "order.csv"
    table.write_text("time,who\n1,2\n2,0\n5,1\n")
    from_file = started(Scripted(order={"csv": str(table), "column": "who"}), 3)
    assert [from_file.choose(step) for step in range(4)] == [2, 0, 1, 2]
    table.write_text("\ufeffclient\n1\n2\n", encoding="utf-8")  # as spreadsheets write it
    assert Scripted(order={"csv": str(table)}).hyper.order == [1, 2]


def test_weighted_follows_its_weights() -> None:
    dispatcher = started(Weighted(weights=[1.0, 2.0, 5.0]), 3)
    counts = np.bincount([dispatcher.choose(step) for step in range(20_000)], minlength=3) / 20_000
    np.testing.assert_allclose(counts, [1 / 8, 2 / 8, 5 / 8], atol=0.01)
    many = started(Weighted(weights=[1.0, 3.0]), 4)  # repeated: 1, 3, 1, 3
    counts = np.bincount([many.choose(step) for step in range(20_000)], minlength=4) / 20_000
    np.testing.assert_allclose(counts, [1 / 8, 3 / 8, 1 / 8, 3 / 8], atol=0.012)


def test_weighted_changes_when_chosen_and_recovers() -> None:
    """factor 0 leaves a weight of 2⁻²⁰: with three clients that recover after 2 arrivals, they go in turn."""
    dispatcher = started(Weighted(weights=[1.0], on_chosen={"factor": 0.0, "recover_after": 2}), 3)
    order = [dispatcher.choose(step) for step in range(300)]
    assert all(len(set(order[i : i + 3])) == 3 for i in range(298))
    frequent = started(Weighted(weights=[1.0], on_chosen={"factor": 4.0, "recover_after": 1}), 2)
    order = [frequent.choose(step) for step in range(20_000)]
    again = np.mean(np.array(order[1:]) == np.array(order[:-1]))
    assert abs(again - 4 / 5) < 0.02


def test_weights_by_the_contract() -> None:
    """Integer weights max(1, ⌊w/largest·2²⁰ + ½⌋); a 64-bit integer below their sum, cumulated in ascending id."""
    streams = Streams(11)
    weights = [0.5, 1e-9, 2.0]
    dispatcher = started(Weighted(weights=weights), 3, seed=11)
    integers = [2**18, 1, 2**20]
    for step in range(500):
        drawn = streams.below64(sum(integers), Stream.DISPATCH, step)
        assert dispatcher.choose(step) == int(np.searchsorted(np.cumsum(integers), drawn, side="right"))


def test_small_weights_by_the_contract() -> None:
    """1.6·2⁻²⁰ of the largest is the integer 2, next to nothing is 1; so is what a factor of 0 leaves."""
    streams, dispatcher = Streams(11), started(Weighted(weights=[2.0, 3.2 / 2**20, 1e-12]), 3, seed=11)
    dispatcher.hold(0)
    expected = [1 if streams.below64(3, Stream.DISPATCH, step) < 2 else 2 for step in range(100)]
    assert [dispatcher.choose(step) for step in range(100)] == expected
    tired = started(Weighted(weights=[1.0], on_chosen={"factor": 0.0, "recover_after": 9}), 2)
    assert {tired.choose(step) for step in range(8)} == {0, 1}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100])
def test_fenwick(size: int) -> None:
    rng = np.random.default_rng(size)
    weights = rng.integers(0, 5, size)
    weights[0] = 1
    tree = Fenwick(weights)
    for _ in range(50):
        index = int(rng.integers(size))
        weights[index] = rng.integers(0, 5)
        tree[index] = int(weights[index])
        assert tree.total == weights.sum()
        assert tree.sum_below(index) == weights[:index].sum()
        cumulated = np.cumsum(weights)
        for target in range(int(tree.total)):
            assert tree.find(target) == int(np.searchsorted(cumulated, target, side="right"))
