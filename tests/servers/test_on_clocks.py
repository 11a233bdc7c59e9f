"""Servers on clocks: who is applied, dropped and restarted at which nanosecond, by a plain simulation; closed forms."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from fredsim.dispatchers import Clock
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from tests.servers import spies

Simulate = Callable[..., Result]
Rows = list[spies.Row]
CLIENTS = 6


@pytest.fixture
def watch(simulate: Simulate) -> Iterator[Callable[..., Rows]]:
    """Run a spied server and return its pushes."""

    def run(server: Mapping[str, Any], dispatcher: Mapping[str, Any], pushes: int = 300, **others: Any) -> Rows:
        spies.PUSHES.clear()
        spies.TASKS.clear()
        spied = {**server, "name": f"tests.servers.spies:{server['name']}"}
        changes = {"server": spied, "dispatcher": dispatcher, "iterations": pushes, "model": {"hidden": []}}
        simulate({"clients": {"count": CLIENTS, "batch_size": 1}, "evaluation": {"every": 10**6}, **changes, **others})
        return spies.PUSHES.copy()

    yield run
    spies.PUSHES.clear()
    spies.TASKS.clear()


class Plain:
    """Clients, the way to the server and back, and one of four rules, with nothing of fredsim's."""

    def __init__(self, rule: str, number: int, latency: int, each: int) -> None:
        self.rule, self.number, self.latency, self.each = rule, number, latency, each
        self.timestamp = self.fresh = self.free = 0
        self.waiting: list[int] = []
        self.stamps, self.tasks = [0] * CLIENTS, [-1] * CLIENTS
        self.due: dict[int, tuple[int, int]] = {}  # by client: when, and of which stage, something ends
        self.begun: list[tuple[int, int]] = []
        for client in range(CLIENTS):
            self.begin(client, 0)

    def begin(self, client: int, time: int) -> None:
        self.tasks[client] += 1
        self.begun.append((client, self.tasks[client]))
        self.due.pop(client, None)
        if (seconds := spies.seconds(client, self.tasks[client])) < np.inf:
            self.due[client] = time + round(seconds * 1e9), 0

    def next(self) -> spies.Row:
        while True:
            client = min(self.due, key=lambda one: (self.due[one][0], one))
            time, stage = self.due.pop(client)
            if stage == 2:
                break
            if stage == 1:
                time = self.free = max(self.free, time) + self.each
            self.due[client] = time if stage else time + self.latency, stage + 1
        staleness = self.timestamp - self.stamps[client]
        goes_on, anew = getattr(self, self.rule)(client, staleness)
        for other in (*goes_on, *anew):
            self.stamps[other] = self.timestamp
            self.begin(other, time + self.latency)
        return time, client, staleness, self.timestamp, tuple(anew)

    def ringmaster(self, client: int, staleness: int) -> tuple[list[int], list[int]]:
        self.timestamp += staleness < self.number
        return [client], []

    def stop(self, client: int, staleness: int) -> tuple[list[int], list[int]]:
        assert staleness < self.number
        self.timestamp += 1
        late = [one for one, stamp in enumerate(self.stamps) if self.timestamp - stamp >= self.number]
        return [client], [one for one in late if one != client]

    def rennala(self, client: int, staleness: int) -> tuple[list[int], list[int]]:
        self.fresh += staleness == 0
        if self.fresh == self.number:
            self.fresh, self.timestamp = 0, self.timestamp + 1
        return [client], []

    def sync(self, client: int, staleness: int) -> tuple[list[int], list[int]]:
        if staleness:
            return [client], []
        self.waiting.append(client)
        if len(self.waiting) < self.number:
            return [], []
        released, self.waiting, self.timestamp = self.waiting, [], self.timestamp + 1
        return released, []

    def restart(self, client: int, staleness: int) -> tuple[list[int], list[int]]:
        assert staleness == 0
        released, _ = self.sync(client, staleness)
        return released, [one for one in range(CLIENTS) if released and one not in released]

    def throttle(self, client: int, staleness: int) -> tuple[list[int], list[int]]:
        self.timestamp += 1
        self.waiting.append(client)
        if {*self.waiting} != {*range(CLIENTS)}:
            return [client], []
        self.waiting = []
        return [client], [one for one in range(CLIENTS) if one != client]

    def malenia(self, client: int, staleness: int) -> tuple[list[int], list[int]]:
        assert staleness == 0
        _, anew = self.throttle(client, staleness)
        self.timestamp -= not anew
        return [client], anew


SERVERS: dict[str, tuple[int, dict[str, Any]]] = {
    "ringmaster": (4, {"name": "ringmaster", "threshold": 4}),
    "stop": (4, {"name": "ringmaster", "threshold": 4, "stop": True}),
    "rennala": (3, {"name": "rennala", "batch": 3}),
    "sync": (4, {"name": "sync", "aggregate": 4}),
    "restart": (4, {"name": "sync", "aggregate": 4, "restart": True}),
}
#: All begin anew when all have sent a gradient.
IN_ROUNDS: dict[str, tuple[int, dict[str, Any]]] = {
    "malenia": (1, {"name": "malenia"}),
    "throttle": (1, {"name": "throttle", "q": 1.5}),
}


@pytest.mark.parametrize("network", [(0.0, 0.0), (0.125, 0.0), (0.25, 0.2)])
@pytest.mark.parametrize("rule", [*SERVERS, *IN_ROUNDS])
def test_what_happens_is_what_happens_in_a_plain_simulation(
    rule: str, network: tuple[float, float], watch: Callable[..., Rows]
) -> None:
    number, server = (SERVERS | IN_ROUNDS)[rule]
    latency, each = network
    found = watch({"lr": 0.01, **server}, {"name": "tests.servers.spies:Table", "latency": latency, "each": each})
    plain = Plain(rule, number, round(latency * 1e9), round(each * 1e9))
    assert found == [plain.next() for _ in range(300)]
    assert set(spies.TASKS) <= set(plain.begun)
    assert len({*spies.TASKS}) == len(spies.TASKS) >= len(plain.begun) - CLIENTS  # those begun last may not be asked
    assert any(row[4] for row in found) == (rule in {"stop", "restart", *IN_ROUNDS})
    if rule in {"ringmaster", "rennala", "sync"}:
        dropped = [row[2] for row in found if row[2] >= (number if rule == "ringmaster" else 1)]
        assert len(dropped) > 10


@pytest.mark.parametrize("rule", SERVERS)
def test_what_is_applied_is_fresh_enough(rule: str, watch: Callable[..., Rows]) -> None:
    number, server = SERVERS[rule]
    noisy = {"name": "clock", "compute": {"seconds": {"name": "power"}, "noise": {"name": "gamma", "cv": 2.0}}}
    found = watch({"lr": 0.01, **server}, noisy, 600)
    moved = [row[2] for row, before in zip(found, [0, *(row[3] for row in found)], strict=False) if row[3] > before]
    assert len(moved) == found[-1][3] > 20
    assert max(moved) == (number - 1 if rule in {"ringmaster", "stop"} else 0)
    if rule not in {"ringmaster", "stop"}:  # a step by the mean of `number` gradients, all of them fresh
        assert sum(row[2] == 0 for row in found) // number == found[-1][3]
    if rule in {"stop", "restart"}:
        assert max(row[2] for row in found) == max(moved)


TIMES = [0.7, 0.3, 1.1, 2.000000001, 0.9, 0.123456789]


@pytest.mark.parametrize("needed", [None, 1, 2, 4, 6])
def test_a_round_takes_as_long_as_its_last_client(needed: int | None, watch: Callable[..., Rows]) -> None:
    """Synchronous: max t_i; the first m with restart: the m-th smallest t_i. Exactly, round for round."""
    server = {"name": "sync", "lr": 0.01, "aggregate": needed, "restart": True}
    found = watch(server, {"name": "clock", "compute": {"seconds": TIMES}}, 240)
    each = round(sorted(TIMES)[(needed or CLIENTS) - 1] * 1e9)
    rounds = 240 // (needed or CLIENTS)
    assert [row[0] for row in found[(needed or CLIENTS) - 1 :: needed or CLIENTS]] == [
        each * (1 + number) for number in range(rounds)
    ]
    assert found[-1][3] == rounds


@pytest.mark.parametrize("rounds", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("needed", [4, 2])
def test_the_mean_round_of_exponential_times(needed: int, rounds: int) -> None:
    """H_λ, and H_λ − H_(λ−m) of the first m of λ, within 1 %; a round's standard deviation is 0.6 and 0.7 of that."""
    clients = 4
    clock = Clock(compute={"noise": {"name": "exponential"}})
    clock.init(clients, Streams(0))
    clock.configure(reacts=True)
    for _ in range(rounds):
        done = []
        for _ in range(needed):
            done.append(int(clock.draw(1).client[0]))
            clock.hold(done[-1])
        for client in range(clients):
            if client in done:
                clock.release(client)
            else:
                clock.restart(client)
    expected = sum(1 / k for k in range(clients - needed + 1, clients + 1))
    assert clock.time / 1e9 / rounds == pytest.approx(expected, rel=0.01)


def test_a_server_that_is_always_busy_takes_a_push_every_so_many_seconds() -> None:
    clock = Clock(compute={"noise": {"name": "gamma", "cv": 0.5}}, server={"seconds": 0.2})
    clock.init(40, Streams(0))
    clock.configure(reacts=False, size=100)
    order = clock.draw(2000)
    assert order.time is not None
    between = np.diff(order.time)
    assert (between >= 200_000_000).all()
    assert (between[40:] == 200_000_000).all()  # 40 clients could send 40 a second; 5 a second are served


@pytest.mark.parametrize("noise", ["none", {"name": "gamma", "cv": 0.5}, {"name": "half_normal", "add": True}])
@pytest.mark.parametrize("reacts", [False, True])
def test_a_task_of_so_many_local_steps_takes_so_many_times_as_long(noise: Any, *, reacts: bool) -> None:
    """By one draw a task: the same order, each time four times as long, but for rounding."""
    orders = []
    for steps in (1, 4):
        clock = Clock(compute={"seconds": {"name": "power"}, "noise": noise})
        clock.init(5, Streams(0))
        clock.configure(reacts=reacts, steps=steps)
        orders.append(clock.draw(400).first(400))
        added = np.sqrt(2 / np.pi) if noise != "none" and noise.get("add") else 0.0  # the mean of what is added
        arrivals = int(sum(80 / (np.sqrt(i + 1) + added) for i in range(5)) / steps)
        assert clock.expected_arrivals(80_000_000_000) == arrivals
    equal = Clock(compute={"seconds": 2.0})
    equal.init(5, Streams(0))
    equal.configure(reacts=reacts, steps=4)
    assert equal.expected_arrivals(80_000_000_000) == 50
    one, four = orders
    np.testing.assert_array_equal(one.client, four.client)
    assert one.time is not None
    assert one.number is not None
    assert four.time is not None
    assert (np.abs(four.time - 4 * one.time) <= 3 * (one.number + 1)).all()


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, 1),
        ({"clients": {"count": 3, "batch_size": 1, "local_steps": 5}}, 5),
        ({"server": {"name": "easgd", "lr": 0.01, "period": 4}}, 4),
        ({"server": {"name": "downpour", "lr": 0.01, "n_push": 3}}, 1),
    ],
)
def test_seconds_are_of_one_gradient(changes: dict[str, Any], each: int, simulate: Simulate) -> None:
    """A client that does not push at every step has an event at each; one of local steps only when they are done."""
    base = {
        "iterations": 30,
        "clients": {"count": 3, "batch_size": 1},
        "dispatcher": {"name": "clock", "compute": {"seconds": 0.3}},
        "server": {"name": "asgd", "lr": 0.01},
        "evaluation": {"every": 3},
    }
    times = simulate({**base, **changes}).metrics["time"]
    assert (times * 1e9).round().tolist() == [k * each * 300_000_000 for k in range(11)]


def test_steps_that_exceed_the_clock_are_refused(refused: Callable[..., None], small_yaml: Any) -> None:
    changes = ["dispatcher={name: clock, compute: {seconds: 3e9}}", "clients.local_steps=2"]
    refused("run", small_yaml, *changes, says=["dispatcher.compute.seconds of a task of 2 local steps is 6e+09"])


def test_a_rule_whose_server_is_told_the_time_is_told_it(simulate: Simulate) -> None:
    spies.TIMES.clear()
    dispatcher = {"name": "clock", "compute": {"seconds": TIMES}}
    base = {"iterations": 30, "clients": {"count": CLIENTS, "batch_size": 1}, "evaluation": {"every": 1}}
    base["server"] = {"name": "tests.servers.spies:TimedASGD", "lr": 0.1}
    result = simulate({**base, "dispatcher": dispatcher})
    assert result.summary["path"] == "snapshots"
    assert result.metrics["time"].tolist()[1:] == spies.TIMES
    simulate(base)
    assert len(spies.TIMES) == 30  # without a clock there is no time
