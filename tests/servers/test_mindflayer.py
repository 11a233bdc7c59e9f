"""MindFlayer: trials that are given up, by its formula and on clocks; what a limit does to any other server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.dispatchers import Clock
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.servers import MindFlayer, WindowAverage

Simulate = Callable[..., Result]
TRIALS = [3, 1, 0, 5, 2, 1]
SHARES = [0.3, 0.9, 0.5, 0.6, 1.0, 0.2]
CLIENTS = {"count": 6, "batch_size": 3, "sampling": "iid"}
STRAGGLING = {"seconds": {"name": "power"}, "noise": {"name": "bernoulli", "p": 0.3, "factor": float("inf")}}
#: It does not count its updates itself.
TOLD = """
class Told:
    metrics = {"told": "sum"}

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        self.params -= 0.1 * grad

    def given_up(self, client_id, timestamp):
        self.record("told", 1)
"""


@pytest.mark.parametrize("probability", ["measured", 0.6, SHARES])
def test_a_thousand_trials_follow_the_formula(probability: Any) -> None:
    """θ − α Σ g / Σ p B: 600 or so gradients among 1,000 trials, of clients that come in random order."""
    server, rng = MindFlayer(lr=0.05, trials=TRIALS, probability=probability), np.random.default_rng(0)
    server.init(np.ones(40, np.float32), 6)
    theta, came, used = np.ones(40), list[Any](), [0] * 6
    tried, arrived, held, rounds = np.zeros(6), np.zeros(6), set[int](), 0
    for _ in range(1000):
        client = int(rng.choice([other for other in range(6) if other not in held]))
        g, fails = rng.standard_normal(40).astype(np.float32), rng.random() > SHARES[client]
        reply = server.given_up(client, rounds) if fails else server.apply_update(g.copy(), client, rounds)
        tried[client] += 1
        used[client] += 1
        if not fails and TRIALS[client]:
            arrived[client] += 1
            came.append(g.astype(np.float64))
        released = {client}
        if used[client] >= TRIALS[client]:
            held.add(client)
            released = set()
        if all(u >= b for u, b in zip(used, TRIALS, strict=True)):
            if came:
                p = arrived / np.maximum(tried, 1) if probability == "measured" else np.broadcast_to(probability, 6)
                theta = theta - 0.05 * sum(came) / sum(p * TRIALS)
                rounds += 1
            came, used, released = [], [0] * 6, {0, 1, 3, 4, 5}
            held -= released
        assert set(reply.released) == released
        assert server.timestamp == rounds
        assert np.abs(server.params - theta).max() <= 1e-5 * np.abs(theta).max()
    assert rounds > 60


@pytest.mark.parametrize("dispatcher", [{"name": "uniform"}, {"name": "clock", "compute": {"seconds": 0.7}}])
def test_one_trial_without_a_limit_is_sync(simulate: Simulate, dispatcher: dict[str, Any]) -> None:
    servers = [{"name": name, "lr": 0.2} for name in ("sync", "mindflayer")]
    one, two = (simulate({"server": server, "dispatcher": dispatcher, "events": True}) for server in servers)
    assert one.summary["digest"] == two.summary["digest"]
    assert one.events.equals(two.events)


def test_rounds_on_a_clock(simulate: Simulate) -> None:
    """A round takes as long as its slowest client is at all its trials, of min(X, t) each."""
    limits, trials = [1.5, 1.2, 2.0, 3.0, 2.5, 4.0], [4, 2, 1, 3, 2, 1]
    clock = {"name": "clock", "compute": STRAGGLING | {"limit": limits}}
    server = {"name": "mindflayer", "lr": 0.1, "trials": trials}
    changes = {"clients": CLIENTS, "server": server, "iterations": 13 * 20, "events": True}
    found = simulate(changes | {"dispatcher": clock})
    events = found.events
    without = Clock(compute=STRAGGLING)
    without.init(6, Streams(0))
    time, expected, number = 0, [], [0] * 6
    for _ in range(20):
        ends = []
        for client in range(6):
            now = time
            for _ in range(trials[client]):
                takes = int(without._durations(np.array([client]), np.array([number[client]]))[0])
                now += min(takes, round(limits[client] * 1e9))
                expected.append((now, client, number[client], takes > limits[client] * 1e9))
                number[client] += 1
            ends.append(now)
        time = max(ends)
        assert events["time_ns"][len(expected) - 1] == time
    columns = (events[name] for name in ("time_ns", "client", "number", "given_up"))
    assert list(zip(*columns, strict=True)) == sorted(expected)
    assert (events["pushed"] != events["given_up"]).all()
    assert (events["bytes_pushed"] == np.where(events["given_up"], 0, 4840)).all()
    assert 0.2 < events["given_up"].mean() < 0.4
    assert events["timestamp"].iloc[-1] == 19
    users = {
        "dispatcher": clock,
        "server": server | {"name": "tests.servers.spies:mindflayer"},
    }  # whose replies are checked
    assert simulate(changes | users).summary["digest"] == found.summary["digest"]


@pytest.mark.parametrize("dropped", ["reapply", "accumulate"])
def test_nothing_comes_of_a_task_that_is_given_up(simulate: Simulate, dropped: str) -> None:
    """Under any server, and whatever becomes of pushes that a gate drops, which is asked of the others alone."""
    clock = {"name": "clock", "compute": {"noise": {"name": "bernoulli", "p": 0.4, "factor": 50.0}, "limit": 1.5}}
    gates = {"push": {"every": 2}, "dropped_push": dropped}
    found = simulate({"clients": CLIENTS, "dispatcher": clock | gates, "events": True, "evaluation": {"every": 1}})
    events, rows = found.events, found.metrics
    given_up = events["given_up"].to_numpy()
    assert 10 < given_up.sum() < 30
    same = rows["digest"].to_numpy()[1:] == rows["digest"].to_numpy()[:-1]
    np.testing.assert_array_equal(same, given_up | (~events["pushed"] & (dropped == "accumulate")))
    np.testing.assert_array_equal(rows["train_loss"].isna().to_numpy()[1:], given_up)
    asked = events[~given_up].groupby("client").cumcount()
    passes = (asked % 2 == 1) | ((asked == 0) & (dropped == "reapply"))  # there is nothing to apply again at first
    np.testing.assert_array_equal(events["pushed"][~given_up], passes)
    assert simulate({"dispatcher": clock}).summary["path_why"] == "a task may be given up"


def test_a_server_of_ones_own_is_told_and_has_no_update(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told_of_tasks.py").write_text(TOLD)
    monkeypatch.syspath_prepend(tmp_path)
    clock = {"name": "clock", "compute": {"noise": {"name": "bernoulli", "p": 0.4, "factor": 50.0}, "limit": 1.5}}
    own = {"server": {"name": "told_of_tasks:Told"}, "clients": CLIENTS, "events": True}
    found = simulate(own | {"dispatcher": clock})
    given_up = found.events["given_up"].to_numpy()
    assert 10 < given_up.sum() < 30
    np.testing.assert_array_equal(found.events["timestamp"], np.cumsum(~given_up) - ~given_up)
    assert found.metrics["told"].sum() == given_up.sum()


def test_what_a_task_that_is_given_up_would_have_computed_does_not_count(simulate: Simulate) -> None:
    """Local steps that overflow, and those of a client whose fetches are dropped: λ = 1 stays with the server."""
    model = {"hidden": [7], "init": {"name": "normal", "std": 1e30}}
    clock = {"name": "clock", "compute": {"seconds": 2.0, "limit": 1.9}}
    clients = CLIENTS | {"local_steps": 2}
    summary = simulate({"model": model, "clients": clients, "dispatcher": clock, "iterations": 20}).summary
    assert (summary["status"], summary["updates"], summary["pushes"]) == ("finished", 0, 0)
    noisy = {"name": "clock", "compute": STRAGGLING | {"limit": 1.0}}  # its tasks take 1 second, or for ever
    changes = {"clients": CLIENTS | {"count": 1}, "server": {"name": "asgd", "lr": 0.1}, "iterations": 60}
    alone, fetches = (
        simulate(changes | {"dispatcher": noisy | more}).summary
        for more in ({"fetch": {"every": 1000}, "replica": True}, {})
    )
    assert 30 < alone["pushes"] < 60
    assert (alone["fetches"], fetches["fetches"]) == (0, 60)
    assert alone["digest"] == fetches["digest"]


def test_a_round_of_nothing_but_tasks_given_up() -> None:
    server = MindFlayer(lr=0.1, trials=2, probability=0.5)
    server.init(np.ones(3, np.float32), 2)
    assert [tuple(server.given_up(client, 0).released) for client in (0, 1, 0, 1)] == [(0,), (1,), (), (0, 1)]
    assert server.timestamp == 0
    server.apply_update(np.ones(3, np.float32), 0, 0)
    for client in (1, 1, 0):
        server.given_up(client, 0)
    np.testing.assert_allclose(server.params, 1 - 0.1 / (0.5 * 4), rtol=1e-6)


def test_a_step_at_a_task_that_is_given_up_is_averaged() -> None:
    server = WindowAverage(MindFlayer(lr=0.5, trials=2, probability=1.0), min_window=5, max_window=9)
    server.init(np.zeros(1, np.float32), 1)
    for _ in range(3):  # each step is of -¼
        server.apply_update(np.ones(1, np.float32), 0, server.timestamp)
        server.given_up(0, server.timestamp)
    assert (server.params.tolist(), server.averaged_params.tolist()) == ([-0.75], [-0.5])


def test_a_recorded_run_with_a_limit_is_replayed(simulate: Simulate) -> None:
    """To the byte; where the run need not be the recorded one, every task has its gradient."""
    clock = {"name": "clock", "compute": STRAGGLING | {"limit": 3.0}}
    for server in ({"name": "mindflayer", "lr": 0.1, "trials": 2}, {"name": "asgd", "lr": 0.1}):
        changes = {"clients": CLIENTS, "server": server, "iterations": 60, "events": True}
        recorded = simulate(changes | {"dispatcher": clock})
        trace = {"name": "trace", "file": str(recorded.folder / "events.parquet")}
        again = simulate(changes | {"dispatcher": trace})
        for file in ("events.parquet", "metrics.csv", "params.safetensors"):
            assert (again.folder / file).read_bytes() == (recorded.folder / file).read_bytes()
    assert recorded.summary["pushes"] < 50
    unchecked = simulate(changes | {"dispatcher": trace | {"check": False}})
    assert unchecked.summary["pushes"] == 60
    assert "given_up" not in unchecked.events


def test_a_limit_lets_sync_go_on_where_tasks_never_end(simulate: Simulate) -> None:
    """Each client tries until it is in time, as is a task of as long as the limit; who is waits for the rest."""
    clock = {"name": "clock", "compute": STRAGGLING | {"limit": [1.0, 1.5, 1.8, 5.0]}}
    clients = CLIENTS | {"count": 4}  # which take 1, √2, √3 and 2 seconds
    server = {"name": "sync", "lr": 0.1}
    found = simulate({"clients": clients, "server": server, "dispatcher": clock, "events": True, "iterations": 80})
    without = Clock(compute=STRAGGLING)
    without.init(4, Streams(0))
    limits, time, expected, number = [10**9, 15 * 10**8, 18 * 10**8, 5 * 10**9], 0, list[Any](), [0] * 4
    while len(expected) < 120:
        ends = []
        for client in range(4):
            now, takes = time, 2**62
            while takes > limits[client]:
                takes = int(without._durations(np.array([client]), np.array([number[client]]))[0])
                now += min(takes, limits[client])
                expected.append((now, client, number[client], takes > limits[client]))
                number[client] += 1
            ends.append(now)
        time = max(ends)
    columns = (found.events[name] for name in ("time_ns", "client", "number", "given_up"))
    assert list(zip(*columns, strict=True)) == sorted(expected)[:80]
    assert found.summary["updates"] == found.events["pushed"].sum() // 4
