"""What a clock draws: the times of tasks and machines, and the order and staleness that follow."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.dispatchers import Clock
from fredsim.dispatchers.base import Order
from fredsim.dispatchers.durations import TaskDurations
from fredsim.dispatchers.local_steps import VariedSteps
from fredsim.errors import ConfigError
from fredsim.numerics.streams import Streams
from fredsim.simulation.schedule.schedule import whole_schedule
from tests.dispatchers.test_clock import durations, order, staleness, started

NEVER = 2**62
KOLMOGOROV = 1.95  # √n times the largest distance, exceeded with probability 0.001
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def uniform_of(counts: Integers) -> bool:
    """Whether counts are as of equal probabilities: χ² below its 0.999 quantile, by Wilson and Hilferty."""
    return chi_square(counts, np.full(len(counts), counts.sum() / len(counts)))


def chi_square(counts: Integers, expected: Floats) -> bool:
    free = len(counts) - 1
    return (
        float(((counts - expected) ** 2 / expected).sum())
        < free * (1 - 2 / (9 * free) + 3.09 * math.sqrt(2 / (9 * free))) ** 3
    )


def test_exponential_times_make_the_next_client_uniform_and_staleness_geometric() -> None:
    clients, count = 12, 400_000
    found = order(count, clients, compute={"noise": {"name": "exponential"}})
    assert uniform_of(np.bincount(found.client, minlength=clients))
    pairs = found.client[:-1:2] * clients + found.client[1::2]
    assert uniform_of(np.bincount(pairs, minlength=clients**2))
    behind, most = staleness(found), 60
    counts = np.bincount(np.minimum(behind, most), minlength=most + 1)
    others = 1 - 1 / clients
    probabilities = np.append(others ** np.arange(most) / clients, others**most)
    assert chi_square(counts, probabilities * len(behind))
    assert behind.mean() == pytest.approx(clients - 1, rel=0.01)


@pytest.mark.parametrize(
    ("count", "compute"),
    [
        (200_000, {"seconds": {"name": "gamma", "cv": 0.6}, "noise": {"name": "gamma", "cv": 0.1}}),
        (200_000, {"seconds": {"name": "power", "exponent": 1.0}, "noise": {"name": "pareto", "alpha": 1.5}}),
        (10**6, {"seconds": {"name": "two_class", "share": 0.25, "factor": 10.0}, "noise": {"name": "exponential"}}),
        (200_000, {"seconds": 0.5, "noise": {"name": "half_normal", "sd": "sqrt", "add": True}}),
    ],
)
def test_closed_queue(count: int, compute: dict[str, Any]) -> None:
    """Σ p_i E[τ_i] = λ − 1, whatever the times (arXiv:2405.00017)."""
    clients = 20
    found = order(count, clients, 3, compute=compute)
    assert len(found) == count
    begun = whole_schedule(found, wait=True).begun
    behind = np.where(begun >= 0, np.arange(count) - begun - 1, 0)
    arrivals = np.bincount(found.client, minlength=clients)
    means = np.bincount(found.client, behind, minlength=clients) / arrivals
    assert float(arrivals / count @ means) == pytest.approx(clients - 1, rel=0.01)


def erlang(shape: int) -> Callable[[Floats], Floats]:
    """Return the distribution function of a gamma of an integer shape and mean 1."""

    def cdf(x: Floats) -> Floats:
        terms = np.ones_like(x)
        total = np.ones_like(x)
        for k in range(1, shape):
            terms = terms * (shape * x / k)
            total += terms
        return 1 - np.exp(-shape * x) * total

    return cdf


erf = np.vectorize(math.erf, otypes=[np.float64])

DISTRIBUTIONS: list[tuple[dict[str, Any], Callable[[Floats], Floats]]] = [
    ({"name": "gamma", "cv": 0.5}, erlang(4)),
    ({"name": "gamma", "cv": 0.1}, erlang(100)),
    ({"name": "gamma", "cv": math.sqrt(2)}, lambda x: erf(np.sqrt(x / 2))),
    ({"name": "exponential"}, lambda x: 1 - np.exp(-x)),
    ({"name": "exponential", "mean": 3.0}, lambda x: 1 - np.exp(-x / 3)),
    ({"name": "shifted_exponential", "shift": 0.3}, lambda x: np.where(x < 0.3, 0, 1 - np.exp(-(x - 0.3) / 0.7))),
    ({"name": "lognormal", "sigma": 0.7}, lambda x: (1 + erf((np.log(x) / 0.7 + 0.35) / math.sqrt(2))) / 2),
    ({"name": "pareto", "alpha": 2.5}, lambda x: np.where(x < 0.6, 0, 1 - (0.6 / np.maximum(x, 0.6)) ** 2.5)),
    ({"name": "uniform", "spread": 0.4}, lambda x: np.clip((x - 0.6) / 0.8, 0, 1)),
    ({"name": "half_normal", "sd": 2.0}, lambda x: erf(x / 2 / math.sqrt(2))),
]


def assert_of(seconds: Floats, cdf: Callable[[Floats], Floats]) -> None:
    """Kolmogorov and Smirnov's test."""
    found = cdf(np.sort(seconds))
    n = len(found)
    distance = max(float((np.arange(1, n + 1) / n - found).max()), float((found - np.arange(n) / n).max()))
    assert distance * math.sqrt(n) < KOLMOGOROV


@pytest.mark.parametrize(
    ("noise", "cdf"), DISTRIBUTIONS, ids=lambda value: value["name"] if isinstance(value, dict) else ""
)
def test_tasks_and_machines_are_of_their_distributions(noise: dict[str, Any], cdf: Callable[[Floats], Floats]) -> None:
    """Tasks multiply and add; of 1,000 clients the first 100 tasks each, in stretches as a run draws them."""
    clients, each = 1000, 100
    for add in (False, True):
        clock = started(clients, compute={"seconds": 2.0, "noise": {**noise, "add": add}})
        found = clock.draw(each * clients)
        while np.bincount(found.client, minlength=clients).min() < each:
            found = Order.joined([found, clock.draw(each * clients)])
        taken = durations(found)
        seconds = np.array([taken[client, number] for client in range(clients) for number in range(each)]) / 1e9
        assert_of(seconds - 2.0 if add else seconds / 2.0, cdf)
    machines = started(100_000, 1, reacts=True, compute={"seconds": noise})
    first = machines._durations(np.arange(100_000), np.zeros(100_000, np.int64))
    assert_of(first / 1e9, cdf)
    assert (machines._durations(np.arange(100_000), np.ones(100_000, np.int64)) == first).all()


def test_machines_and_tasks_are_drawn_apart() -> None:
    machines, tasks = (
        started(1000, reacts=True, compute=compute)._durations(np.arange(1000), np.zeros(1000, np.int64))
        for compute in ({"seconds": {"name": "exponential"}}, {"noise": {"name": "exponential"}})
    )
    assert abs(np.corrcoef(machines, tasks)[0, 1]) < 0.13


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        ("none", 750),
        ({"name": "gamma", "cv": 0.5, "mean": 0.01}, 75_000),
        ({"name": "half_normal", "sd": math.sqrt(math.pi / 2) / 2}, 1500),
        ({"name": "bernoulli", "p": 0.5, "factor": 7.0}, 187),
        ({"name": "bernoulli", "p": 0.1, "factor": math.inf}, 750),
        ({"name": "exponential", "mean": 0.5, "add": True}, 340),
    ],
)
def test_about_how_many_arrive(noise: Any, expected: int) -> None:
    """Also the first stretch that is drawn is about as long as was asked for."""
    clock = started(4, compute={"seconds": [1.0, 2.0, 0.5, 0.25], "noise": noise})
    about = clock.expected_arrivals(100 * 10**9)
    assert about == pytest.approx(expected, abs=1)
    if expected != 750:
        assert 0.8 * expected < len(clock.draw(expected)) < 1.25 * expected


HEAVY = [
    {"name": "lognormal", "sigma": 10.0},  # 1 in 3·10⁷ tasks takes as long as 1000 arrivals would by the mean
    {"name": "pareto", "alpha": 1.0000001},
    {"name": "bernoulli", "p": 1e-6, "factor": 1e12},
]


@pytest.mark.parametrize("noise", HEAVY)
@pytest.mark.parametrize("clients", [1, 16])
def test_of_heavy_tails_few_more_tasks_are_drawn_than_arrive(
    clients: int, noise: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, takes = 0, TaskDurations.__call__

    def counted(durations: TaskDurations, ids: Integers, numbers: Integers) -> Integers:
        nonlocal drawn
        drawn += len(ids)
        assert drawn < 50_000
        return takes(durations, ids, numbers)

    one_by_one = started(clients, reacts=True, compute={"noise": noise}).draw(1000)
    monkeypatch.setattr(TaskDurations, "__call__", counted)
    clock, parts, count = started(clients, compute={"noise": noise}), [], 0
    while count < 1000:
        parts.append(clock.draw(1000 - count))
        count += len(parts[-1])
    found = Order.joined(parts).first(1000)
    for name in ("client", "number", "time"):
        assert getattr(found, name).tolist() == getattr(one_by_one, name).tolist()


@pytest.mark.parametrize("factor", [0.125, 6.0, math.inf])
def test_bernoulli(factor: float) -> None:
    clients, p = 200_000, 0.3
    noise = {"name": "bernoulli", "p": p, "factor": factor}
    taken = started(clients, reacts=True, compute={"seconds": 2.0, "noise": noise})._durations(
        np.arange(clients), np.full(clients, 3)
    )
    other = taken == (NEVER if factor == math.inf else round(2e9 * factor))
    assert abs(int(other.sum()) - p * clients) < 4 * math.sqrt(clients * p * (1 - p))
    assert set(taken[~other].tolist()) == {2 * 10**9}


# What draws depend on


def test_a_task_takes_as_long_whatever_else_happens() -> None:
    """It hangs on the seed, the client and its number: not on who else there is, who is held, and how time is drawn."""
    compute = {"seconds": {"name": "gamma", "cv": 0.6}, "noise": {"name": "gamma", "cv": 0.7}}
    whole = durations(order(12_000, 8, compute=compute))
    many = durations(order(20_000, 30, compute=compute))
    common = whole.keys() & many.keys()
    assert len(common) > 3_000
    assert all(whole[key] == many[key] for key in common)
    other = durations(order(6_000, 8, 1, compute=compute))
    assert not [key for key in whole.keys() & other.keys() if whole[key] == other[key]]
    rng = np.random.default_rng(0)
    networks: list[dict[str, Any]] = [
        {},
        {"link": {"latency": 0.3, "up": 50.0}, "server": {"seconds": 0.05, "down": 90.0}},
    ]
    for more in networks:
        clock, held, restarts = started(8, reacts=True, compute=compute, **more), set[int](), 0
        for _ in range(1200):
            found = clock.draw(1)
            (client,), (number,), ((began, done, _),) = found.client, found.columns["number"], found.columns["stages"]
            assert done - began == whole[int(client), int(number)]
            clock.hold(int(client))
            held.add(int(client))
            if len(held) > 5 or rng.random() < 0.4:
                for one in sorted(held)[:4]:
                    clock.release(one, int(rng.integers(9)))
                    held.discard(one)
            if rng.random() < 0.1 and (under_way := set(range(8)) - held):
                clock.restart(min(under_way), 3)
                restarts += 1
        assert restarts > 80


@pytest.mark.parametrize("clients", [3, 2**17])
@pytest.mark.parametrize("more", [{}, {"limit": 1.0}, {"seconds": {"name": "gamma", "cv": 0.5}}], ids=str)
def test_times_that_are_drawn_together_are_those_of_each_task(clients: int, more: dict[str, Any]) -> None:
    """In whatever order they are asked for, and after the number of local steps is set anew."""
    tasks = started(clients, reacts=True, compute={"noise": {"name": "exponential"}, **more})._durations
    assert isinstance(tasks, TaskDurations)
    rng = np.random.default_rng(0)
    for steps in (1, 3):
        tasks.set_steps(steps)
        ids, numbers = rng.integers(0, min(clients, 5), 300), np.arange(300) // 3
        numbers[::7] = rng.integers(0, 200, len(numbers[::7]))
        one_by_one = [tasks.of(client, number) for client, number in zip(ids.tolist(), numbers.tolist(), strict=True)]
        assert one_by_one == tasks(ids, numbers).tolist()


@pytest.mark.parametrize(
    ("seconds", "times"),
    [
        ([1.0, 1e8], [50.0, 1e8]),
        ({"name": "two_class", "base": 2.0, "share": 0.5, "factor": 1e8}, [100.0, 2e8]),
        ({"name": "power", "base": 1e8, "exponent": -10}, [1e8, 1e8 / 2**10 * 50]),
    ],
)
def test_slow_clients_take_fewer_steps(seconds: Any, times: list[float]) -> None:
    """50 steps of the fastest client, one of a client so slow that 50 of its own would be beyond the clock's end."""
    clock = Clock(compute={"seconds": seconds})
    clock.init(2, Streams(0))
    clock.configure(reacts=True, steps=VariedSteps(fastest=50))
    first: dict[int, float] = {}
    while len(first) < 2:
        found = clock.draw(1)
        first.setdefault(int(found.client[0]), int(found.columns["time"][0]) / 1e9)
        clock.hold(int(found.client[0]))
    assert sorted(first.values()) == pytest.approx(sorted(times))
    with pytest.raises(ConfigError, match="of a task of 50 local steps is "):
        clock.configure(steps=50)
    with pytest.raises(ConfigError, match="of a task of 10000000000 local steps is "):
        clock.configure(steps=VariedSteps(fastest=10**10))


@pytest.mark.parametrize(
    "noise",
    [
        {"name": "uniform", "spread": 1e-17},
        {"name": "uniform", "spread": 5e-324},
        {"name": "lognormal", "sigma": 5e-324},
        {"name": "bernoulli", "p": 5e-324, "factor": 2.0},
    ],
)
def test_noise_that_is_lost_beside_1_is_none(noise: dict[str, Any]) -> None:
    """No task takes a nanosecond more or less."""
    found = order(40, 2, compute={"seconds": [0.75, 2.0], "noise": noise})
    assert set(durations(found).items()) == {
        ((client, number), time)
        for client, time in ((0, 750_000_000), (1, 2_000_000_000))
        for number in range(int(np.sum(found.client == client)))
    }
