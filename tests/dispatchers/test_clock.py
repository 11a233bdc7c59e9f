"""The clock against closed forms: exactly where they say exactly, else by tests of significance with fixed seeds."""

from fractions import Fraction
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.dispatchers import Clock
from fredsim.dispatchers.base import Order
from fredsim.numerics.distributions import Distribution, draw
from fredsim.numerics.streams import Stream, Streams
from fredsim.servers import ASGD
from fredsim.simulation.schedule.guarded_clock import GuardedClock
from fredsim.simulation.schedule.schedule import whole_schedule

NEVER = 2**62
KOLMOGOROV = 1.95  # √n times the largest distance, exceeded with probability 0.001
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def started(clients: int, seed: int = 0, *, reacts: bool = False, **hyper: Any) -> Clock:
    clock = Clock(**hyper)
    clock.init(clients, Streams(seed))
    clock.configure(reacts=reacts)
    return clock


def order(count: int, clients: int, seed: int = 0, **hyper: Any) -> Order:
    """Return the first arrivals, as a run draws them."""
    clock = GuardedClock(Clock(**hyper), clients)
    clock.clock.init(clients, Streams(seed))
    clock.configure(reacts=False, size=0, steps=1, until=None)
    return Order.joined(list(clock.orders(count, None)))


def durations(found: Order) -> dict[tuple[int, int], int]:
    """Return how long the tasks were that arrived, by client and number, where clients never wait."""
    ends: dict[int, int] = {}
    result = {}
    for client, number, time in zip(*(c.tolist() for c in (found.client, found.number, found.time)), strict=True):  # type: ignore[union-attr]
        result[client, number] = time - ends.get(client, 0)
        ends[client] = time
    return result


def staleness(found: Order) -> Integers:
    """Return the staleness of each arrival, where each is an update, without those begun before the first one."""
    begun = whole_schedule(found, wait=True).begun
    return (np.arange(len(begun)) - begun - 1)[begun >= 0]


# What is exact


@settings(max_examples=60)
@given(
    times=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    until=st.integers(1, 3000),
    scale=st.sampled_from([1, 1_000_003, 2**40]),
    reacts=st.booleans(),
)
def test_fixed_times(times: list[int], until: int, scale: int, reacts: bool) -> None:
    """By time T client i has arrived ⌊T/t_i⌋ times; at which times, with which task, and in the order of ties."""
    nanoseconds = [round(time * scale / 1e9 * 1e9) for time in times]
    clock = GuardedClock(Clock(compute={"seconds": [time * scale / 1e9 for time in times]}), len(times))
    clock.clock.init(len(times), Streams(0))
    clock.configure(reacts=reacts, size=0, steps=1, until=until * scale)
    found = Order.joined(list(clock.orders(None, until * scale)))
    expected = [
        (time * (task + 1), client, task)
        for client, time in enumerate(nanoseconds)
        for task in range(until * scale // time)
    ]
    columns = (found.columns["time"], found.client, found.columns["number"])
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == sorted(expected)


@pytest.mark.parametrize("reacts", [True, False])
def test_nothing_arrives_beyond_the_end_of_the_clock(reacts: bool) -> None:
    clock = started(5, reacts=reacts, compute={"seconds": [1e6, 1e8, 3e8, 4.6e9, 4e9]})
    found = Order.joined(list(takewhile(len, (clock.draw(1000) for _ in range(200)))))
    assert np.bincount(found.client).tolist() == [4611, 46, 15, 1, 1]
    assert found.columns["time"].max() < NEVER
    assert len(clock.draw(5)) == 0


@pytest.mark.parametrize("how", ["release", "restart"])
def test_a_fetch_has_the_size_of_the_parameters_unless_one_is_given(how: str) -> None:
    def arrivals(*size: int) -> list[tuple[int, int]]:
        clock, found = Clock(compute={"seconds": [1.0, 2.5, 4.0]}, link={"latency": 0.25, "down": 1000.0}), []
        clock.init(3, Streams(0))
        clock.configure(reacts=True, size=500)
        for step in range(20):
            client = int(clock.draw(1).client[0])
            found.append((client, clock.time))
            if how == "restart" and step % 4 == 0:
                clock.restart((client + 1) % 3, *size)
            clock.hold(client)
            clock.release(client, *size)
        return found

    assert arrivals() == arrivals(500)
    assert arrivals() != arrivals(1000)
    # Latency, task and latency for the first two arrivals; in between, a fetch of 500 bytes.
    if how == "release":
        assert arrivals()[:2] == [(0, 1_250_000_000), (1, 2_750_000_000)]
        assert arrivals()[2] == (0, 1_250_000_000 + 250_000_000 + 500_000_000 + 1_250_000_000)


@pytest.mark.parametrize("exponent", [0.5, 1.0, -1.5, 0.3])
def test_powers(exponent: float) -> None:
    clients = 50
    found = durations(order(20_000, clients, compute={"seconds": {"name": "power", "base": 0.7, "exponent": exponent}}))
    for client in range(clients):
        exact = 0.7 * (client + 1) ** exponent * 1e9
        assert abs(found[client, 0] - exact) <= max(1.0, 1e-6 * exact)
        if exponent == 1.0:
            assert found[client, 0] == round(Fraction(0.7) * (client + 1) * 10**9)


@pytest.mark.parametrize(
    ("share", "clients", "slow"), [(0.25, 16, 4), (0.5, 5, 3), (0.1, 4, 0), (1.0, 7, 7), (0.0, 3, 0)]
)
def test_two_classes(share: float, clients: int, slow: int) -> None:
    compute = {"seconds": {"name": "two_class", "base": 0.5, "share": share, "factor": 10.0}}
    who = []
    for seed in range(8):
        found = durations(order(40 * clients, clients, seed, compute=compute))
        assert (
            sorted(found[client, 0] for client in range(clients)) == [5 * 10**8] * (clients - slow) + [5 * 10**9] * slow
        )
        who.append(tuple(client for client in range(clients) if found[client, 0] == 5 * 10**9))
    assert len(set(who)) > 1 or slow in {0, clients}


def test_a_serial_server_saturates() -> None:
    """Every s seconds there is an update, as soon as the first push is there."""
    clock = started(9, compute={"seconds": 0.001, "noise": {"name": "exponential"}}, server={"seconds": 0.25})
    clock.configure(reacts=False, size=4)
    times = clock.draw(2000).columns["time"]
    assert set(np.diff(times).tolist()) == {250_000_000}


def test_synchronous_rounds() -> None:
    """A round of m out of λ is as long as the m-th smallest of its tasks; its mean is H_λ − H_{λ−m}."""
    clients, rounds = 5, 300
    compute = {"noise": {"name": "exponential"}}
    for m in (5, 2):
        clock, times = started(clients, reacts=True, compute=compute), [0]
        drawn = started(clients, reacts=True, compute=compute)._durations
        for number in range(rounds):
            came = []
            for _ in range(m):
                came += clock.draw(1).client.tolist()
                clock.hold(came[-1])
            times.append(clock.time)
            tasks = np.sort(drawn(np.arange(clients), np.full(clients, number)))
            assert times[-1] - times[-2] == tasks[m - 1]
            for client in range(clients):
                (clock.release if client in came else clock.restart)(client)
        numbers = np.arange(100_000)
        every = np.sort([drawn(np.full(len(numbers), client), numbers) for client in range(clients)], axis=0)
        exact = sum(1 / k for k in range(clients - m + 1, clients + 1))
        assert every[m - 1].mean() / 1e9 == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("clients", [1, 20, 100])
def test_a_task_that_pauses_often_takes_its_time(clients: int) -> None:
    """Three hours of work, five seconds up and five down: up 2,160 times, down 2,159, for any number of clients."""
    clock = started(clients, compute={"seconds": 10_800}, outages={"up": 5, "down": 5, "task": "paused"})
    assert clock.draw(clients).columns["time"].tolist() == [21_595 * 10**9] * clients


def test_drawn_pauses_are_added_up() -> None:
    """Against sums over single draws, for tasks that are paused a few hundred times each."""
    up, down = {"name": "exponential", "mean": 0.125}, {"name": "gamma", "cv": 2.0, "mean": 0.5}
    clock = started(2, compute={"seconds": [30.0, 47.5]}, outages={"up": up, "down": down, "task": "paused"})
    found = clock.draw(6)
    families = Distribution("exponential"), Distribution("gamma", (0.25, 4.0))
    for client, seconds in enumerate((30.0, 47.5)):
        numbers = np.arange(4000)
        ups, downs = (
            np.maximum(1, np.rint(draw(family, Streams(0), Stream.TIME, numbers, client, element) * mean * 1e9))
            for family, element, mean in zip(families, (16, 24), (0.125, 0.5), strict=True)
        )
        worked, passed = np.cumsum(ups), np.cumsum(ups + downs)
        times = []
        for task in range(int(np.sum(found.client == client))):
            due = seconds * 1e9 * (task + 1)
            period = int(np.searchsorted(worked, due))  # the time up in which so much work is done
            times.append(due - worked[period] + passed[period] - downs[period])
        assert found.columns["time"][found.client == client].tolist() == times
        assert len(times) > 1


def test_a_client_may_wait_for_long() -> None:
    """Held for 60,000 periods, while the other client's task pauses as often, it begins when it is up again."""
    times = {"up": 0.5, "down": 0.5, "task": "paused"}
    clock = started(2, reacts=True, compute={"seconds": [30_000, 0.25]}, outages=times)
    for client, time in ((1, 250_000_000), (0, 59_999_500_000_000)):
        found = clock.draw(1)
        assert (found.client.tolist(), found.columns["time"].tolist()) == ([client], [time])
        clock.hold(client)
    clock.release(1)
    assert clock.draw(1).columns["time"].tolist() == [60_000_250_000_000]


def test_a_pause_beyond_the_end_of_the_run_is_not_looked_for() -> None:
    """A task of centuries on machines that fail each microsecond: the run ends before."""
    clock = Clock(compute={"seconds": 3e9}, outages={"up": 1e-6, "down": 1e-6, "task": "paused"})
    clock.init(2, Streams(0))
    clock.configure(until=1_000_000)
    assert not len(clock.draw(2))


@pytest.mark.parametrize(
    "hyper",
    [
        {"server": {"seconds": 0.75, "up": 8.0}, "link": {"latency": 0.5}},
        {"compute": {"noise": {"name": "exponential"}}, "outages": {"up": 3.0, "down": 1.0}},
    ],
)
def test_a_clock_that_is_configured_again_starts_over(hyper: dict[str, Any]) -> None:
    """Queues are empty again, and machines are in their first time up."""
    clock, rows = Clock(**hyper), []
    clock.init(4, Streams(0))
    for _ in range(2):
        clock.configure(size=4)
        found = clock.draw(60)
        rows.append([found.client.tolist(), *(found.columns[name].tolist() for name in ("number", "sent", "time"))])
    assert rows[0] == rows[1]


def test_outages_are_too_many_only_where_nothing_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose tasks are all lost keeps no other from going on."""
    monkeypatch.setattr("fredsim.dispatchers.clock.MOST_LOST", 50)
    clock = started(2, compute={"seconds": [1.0, 5.0]}, outages={"up": 2.5, "down": 0.25})
    found = clock.draw(500)
    assert set(found.client.tolist()) == {0}
    assert found.columns["number"].tolist() == [number for number in range(750) if number % 3 < 2]


# What is known of distributions


@pytest.mark.parametrize(("share", "stable"), [(0.97, True), (1.03, False)])
def test_least_squares_are_stable_below_the_bound_alone(share: float, stable: bool) -> None:
    """θ ← θ − α·θ of τ updates before: for 40 clients in turn if and only if α < 2 sin(π/(2(2τ + 1))), τ = 39."""
    clients, updates = 40, 40_000
    clock = Clock(compute={"seconds": 0.2})
    clock.init(clients, Streams(0))
    clock.configure(reacts=False, size=4)
    server = ASGD(lr=share * 2 * np.sin(np.pi / 158))
    server.init(np.ones(1, np.float32), clients)
    held = [(np.ones(1, np.float32), 0)] * clients
    delays = []
    for client in clock.draw(updates).first(updates).client.tolist():
        params, timestamp = held[client]
        delays.append(server.timestamp - timestamp)
        server.apply_update(params, client, timestamp)  # the gradient of θ²/2
        held[client] = server.params.copy(), server.timestamp
    assert delays[clients:] == [clients - 1] * (updates - clients)
    assert (abs(server.params[0]) < 1e-6) == stable
    assert (abs(server.params[0]) > 1e3) == (not stable)
