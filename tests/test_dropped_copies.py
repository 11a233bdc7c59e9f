"""Copies that the gates drop: a whole simulation, row by row, against the plain loop."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fredsim.config.choices import DroppedPush
from fredsim.numerics.operations import NumpyOperations
from fredsim.runs.folder.results import Result
from fredsim.simulation.clients.outbox import Outbox

Simulate = Callable[..., Result]

GATES = """
class Pattern:
    def __init__(self, of, plus=0):
        self.of, self.plus = of, plus

    def init(self, clients, tensors, streams, stream):
        self.tensors = len(tensors)

    def passes(self, step, client, statistics):
        return (7 * step + 3 * client + self.plus) % self.of == 0


class Parts(Pattern):
    def passes(self, step, client, statistics):
        return [(step * (i + 2) + client + self.plus) % self.of == 0 for i in range(self.tensors)]
"""
EACH = {"evaluation": {"every": 1}}
WINDOWS: list[dict[str, Any]] = [{"window": 1}, {"window": 5}]  # test_bfasgd.py has the backends
POLICIES = ["reapply", "skip", "accumulate", "average"]


def whole(of: int, plus: int = 0) -> Callable[..., bool]:
    return lambda step, client, server: (7 * step + 3 * client + plus) % of == 0


def parts(of: int, plus: int = 0) -> Callable[..., list[bool]]:
    return lambda step, client, server: [(step * (i + 2) + client + plus) % of == 0 for i in range(4)]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """A user's gate as YAML gives it."""
    (tmp_path / "pattern_gates.py").write_text(GATES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, **hyper: {f"pattern_gates:{name}": hyper}


@pytest.mark.parametrize("fred_timestamps", [False, True])
def test_a_dropped_fetch(simulate: Simulate, plain: ModuleType, own: Any, fred_timestamps: bool) -> None:
    """The client computes on from what it holds, with its true timestamp, unless FRED's mistake is asked for."""
    world = plain.World()
    rows = world.run(80, plain.PlainSASGD(world.start, 0.3), fetch=whole(3), fred_timestamps=fred_timestamps)
    dispatcher = {"fetch": own("Pattern", of=3), "fred_timestamps": fred_timestamps}
    for window in WINDOWS:
        sasgd = {"server": {"name": "sasgd", "lr": 0.3}, "dispatcher": dispatcher}
        plain.check(simulate({"iterations": 80, **sasgd, **window, **EACH}), rows)
    assert rows["fetches"].iloc[-1] < 40
    assert rows["bytes_fetched"].iloc[-1] == 4840 * rows["fetches"].iloc[-1]


def test_freds_timestamps_report_less_staleness(simulate: Simulate) -> None:
    means = {}
    for fred in (False, True):
        dispatcher = {"fetch": {"every": 4}, "fred_timestamps": fred}
        counts = simulate({"iterations": 400, "dispatcher": dispatcher}).staleness
        means[fred] = (counts["staleness"] * counts["count"]).sum() / counts["count"].sum()
    assert means[True] == pytest.approx(7, abs=1)  # λ − 1, as if every fetch had passed
    assert means[False] > 2 * means[True]


@pytest.mark.parametrize("dropped", POLICIES)
def test_a_dropped_push(simulate: Simulate, plain: ModuleType, own: Any, dropped: str) -> None:
    world = plain.World()
    rows = world.run(80, plain.PlainSASGD(world.start, 0.3), push=whole(3), fetch=whole(2, 1), dropped=dropped)
    gates = {"push": own("Pattern", of=3), "fetch": own("Pattern", of=2, plus=1), "dropped_push": dropped}
    for window in WINDOWS:
        sasgd = {"server": {"name": "sasgd", "lr": 0.3}, "dispatcher": gates}
        plain.check(simulate({"iterations": 80, **sasgd, **window, **EACH}), rows)
    last = rows.iloc[-1]
    assert last["timestamp"] == (80 if dropped == "reapply" else last["pushes"])
    assert last["pushes"] < 50
    assert last["bytes_pushed"] == 4840 * last["pushes"]


def test_a_gate_derived_from_always_is_asked_itself(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes every third push, as `every` does if one client is asked."""
    text = """
from fredsim.dispatchers.gates.always import Always


class Third(Always):
    def passes(self, step, client, statistics):
        return step % 3 == 2
"""
    (tmp_path / "derived_of_always.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = {"iterations": 9, "clients": {"count": 1, "batch_size": 3}} | EACH
    found, wanted = (
        simulate(run | {"dispatcher": {"push": {name: hyper}, "dropped_push": "skip"}})
        for name, hyper in (("derived_of_always:Third", {}), ("every", {"k": 3}))
    )
    assert found.metrics["digest"].tolist() == wanted.metrics["digest"].tolist()
    assert found.summary["pushes"] == 3


def test_a_client_without_a_cached_gradient_always_pushes(simulate: Simulate, own: Any) -> None:
    """The gate lets nothing pass, so that each client's first gradient is all that is ever sent."""
    never = {"push": own("Pattern", of=10**9, plus=1)}
    result = simulate({"iterations": 60, "dispatcher": {"name": "round_robin", **never}, **EACH})
    rows = result.metrics
    assert rows["pushes"].tolist() == [*range(9), *[8] * 52]
    assert rows["bytes_pushed"].iloc[-1] == 8 * 4840
    assert rows["timestamp"].tolist() == list(range(61))
    assert rows["staleness_mean"].tolist()[1:] == list(range(60))  # all were computed from the initial parameters


@pytest.mark.parametrize("dropped", POLICIES)
def test_tensor_by_tensor(simulate: Simulate, plain: ModuleType, own: Any, dropped: str) -> None:
    world = plain.World()
    rows = world.run(60, plain.PlainSASGD(world.start, 0.3), push=parts(3), fetch=parts(2, 1), dropped=dropped)
    gates = {"push": own("Parts", of=3), "fetch": own("Parts", of=2, plus=1), "dropped_push": dropped}
    for window in WINDOWS:
        sasgd = {"server": {"name": "sasgd", "lr": 0.3}, "dispatcher": gates}
        plain.check(simulate({"iterations": 60, **sasgd, **window, **EACH}), rows)
    assert (rows["bytes_pushed"] % 4840 != 0).any()
    assert (rows["bytes_fetched"] % 4840 != 0).any()


def test_a_replica_steps_by_its_whole_gradient(simulate: Simulate, plain: ModuleType, own: Any) -> None:
    """Whatever parts of it were pushed."""
    world = plain.World()
    server = plain.PlainServer(world.start, 0.05)
    rows = world.run(60, server, push=parts(3), fetch=whole(2, 1), dropped="skip", replica=True)
    gates = {"push": own("Parts", of=3), "fetch": own("Pattern", of=2, plus=1)}
    asgd = {"server": {"name": "asgd", "lr": 0.05}, "dispatcher": {**gates, "dropped_push": "skip", "replica": True}}
    plain.check(simulate({"iterations": 60, **asgd, **EACH}), rows)


PERSONAL = """
    def fetch(self, client_id):
        return self.params + np.float32(0.125)
"""


def test_what_one_client_is_handed_is_no_version_of_all(
    simulate: Simulate,
    plain: ModuleType,
    own_server: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the timestamp is that of the initial parameters still, which all clients were handed."""
    (tmp_path / "own_personal.py").write_text(own_server() + PERSONAL, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    world = plain.World(clients=1)
    theta = world.start - np.float32(0.5) * world.gradient(world.start + np.float32(0.125), 1, 0, 1)
    one = {"clients": {"count": 1, "batch_size": 3}, "server": {"name": "own_personal:Plain", "lr": 0.5}}
    gate = {"push": {"every": 2}, "dropped_push": "skip"}
    assert simulate({"iterations": 2, **one, "dispatcher": gate}).summary["digest"] == world.digest(theta)


def test_what_was_sent_takes_no_memory() -> None:
    outbox, push = Outbox("accumulate", [slice(0, 10_000)], NumpyOperations()), np.ones(10_000, np.float32)
    tracemalloc.start()
    try:
        for passes in (False, True):
            for client in range(50):
                outbox.offer(client, push, 0, passes, lambda push: (push, push.nbytes))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 10 * push.nbytes


def test_a_sum_that_overflows_is_for_the_server_to_notice() -> None:
    outbox, push = Outbox("accumulate", [slice(0, 2)], NumpyOperations()), np.array([3e38, 1], np.float32)
    assert outbox.offer(0, push, 0, False, lambda push: (push, 8)) is None
    message = outbox.offer(0, push, 0, True, lambda push: (push, 8))
    assert message is not None
    assert message.push.tolist() == [np.inf, 2]


def test_a_version_that_nobody_holds_is_not_handed_out(simulate: Simulate, plain: ModuleType, own: Any) -> None:
    """While pushes are dropped the timestamp stays; clients mix what they fetched with their own and let go of it."""
    world = plain.World(clients=3)
    rows = world.run(120, plain.PlainSASGD(world.start, 0.3), push=whole(5), fetch=parts(3), dropped="skip")
    gates = {"push": own("Pattern", of=5), "fetch": own("Parts", of=3), "dropped_push": "skip"}
    few = {"clients": {"count": 3, "batch_size": 3}, "server": {"name": "sasgd", "lr": 0.3}, "dispatcher": gates}
    plain.check(simulate({"iterations": 120, **few, **EACH}), rows)


def test_freds_timestamps_tensor_by_tensor(simulate: Simulate, plain: ModuleType, own: Any) -> None:
    """A fetch that drops every tensor refreshes the timestamps of all of them."""
    world = plain.World()
    rows = world.run(80, plain.PlainSASGD(world.start, 0.3), fetch=parts(5), fred_timestamps=True)
    gates = {"fetch": own("Parts", of=5), "fred_timestamps": True}
    sasgd = {"server": {"name": "sasgd", "lr": 0.3}, "dispatcher": gates}
    plain.check(simulate({"iterations": 80, **sasgd, **EACH}), rows)


@pytest.mark.parametrize("per", ["model", "tensor"])
@pytest.mark.parametrize("dropped", ["reapply", "average"])
def test_bandwidth_aware(simulate: Simulate, plain: ModuleType, per: str, dropped: str) -> None:
    """Eq 9 with the contract's draws; a re-applied gradient updates v too."""
    world = plain.World(seed=3)
    tensor = per == "tensor"
    push, fetch = (world.bandwidth_aware(stream, c, per_tensor=tensor) for stream, c in ((4, 0.5), (5, 0.2)))
    rows = world.run(80, plain.PlainFASGD(world.start, 0.01), push=push, fetch=fetch, dropped=dropped)
    gates = {key: {"bandwidth_aware": {"c": c, "per": per}} for key, c in (("push", 0.5), ("fetch", 0.2))}
    for window in WINDOWS:
        fasgd = {"server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {**gates, "dropped_push": dropped}}
        plain.check(simulate({"iterations": 80, "seed": 3, **fasgd, **window, **EACH}), rows)
    assert 0 < rows["bytes_pushed"].iloc[-1] < 70 * 4840
    assert 0 < rows["bytes_fetched"].iloc[-1] < 70 * 4840


@pytest.mark.parametrize("dropped", ["skip", "accumulate", "average"])
@pytest.mark.parametrize("name", ["sync", "soft_sync"])
def test_a_server_that_holds(simulate: Simulate, plain: ModuleType, own: Any, name: str, dropped: str) -> None:
    """A client whose push was dropped goes on, and takes part in the round with a later push."""
    world = plain.World()
    choice = {"name": name, "lr": 0.3} | ({"n": 2} if name == "soft_sync" else {})
    server = plain.PlainBatches(world.start, 0.3, needed=8 if name == "sync" else 8 // 2)
    rows = world.run(100, server, push=whole(3), dropped=dropped)
    gates = {"push": own("Pattern", of=3), "dropped_push": dropped}
    for window in WINDOWS:
        plain.check(simulate({"iterations": 100, "server": choice, "dispatcher": gates, **window, **EACH}), rows)
    assert rows["timestamp"].iloc[-1] >= 2


@pytest.mark.parametrize("dropped", ["skip", "average"])
@pytest.mark.parametrize("needed", [4, 8])
def test_a_server_that_holds_and_drops_fetches(
    simulate: Simulate, plain: ModuleType, own: Any, needed: int, dropped: str
) -> None:
    """It takes what stale clients push, also for a round of all; nothing is computed together that a fetch changes."""
    world = plain.World()
    batches = plain.PlainBatches(world.start, 0.3, needed=needed)
    rows = world.run(120, batches, push=whole(2), fetch=whole(3, 1), dropped=dropped)
    gates = {"push": own("Pattern", of=2), "fetch": own("Pattern", of=3, plus=1), "dropped_push": dropped}
    choice = {"name": "sync", "lr": 0.3} if needed == 8 else {"name": "soft_sync", "lr": 0.3, "n": 2}
    for window in WINDOWS:
        plain.check(simulate({"iterations": 120, "server": choice, "dispatcher": gates, **window, **EACH}), rows)
    assert rows["staleness_mean"].max() > 2


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (3, 1), (1, 3), (3, 5)])
def test_downpour(simulate: Simulate, plain: ModuleType, n_push: int, n_fetch: int) -> None:
    """Clients accrue what they do not push, and step their replica where they do not fetch."""

    def every(k: int) -> Callable[..., bool]:
        asked = [0] * 8

        def passes(*asks: Any) -> bool:
            client = int(asks[1])
            asked[client] += 1
            return asked[client] % k == 0

        return passes

    world = plain.World()
    server = plain.PlainServer(world.start, 0.05)
    rows = world.run(100, server, push=every(n_push), fetch=every(n_fetch), dropped="accumulate", replica=True)
    choice = {"name": "downpour", "lr": 0.05, "n_push": n_push, "n_fetch": n_fetch}
    for window in WINDOWS:
        plain.check(simulate({"iterations": 100, "server": choice, **window, **EACH}), rows)
    if n_push == n_fetch == 1:
        asgd = simulate({"iterations": 100, "server": {"name": "asgd", "lr": 0.05}})
        assert asgd.summary["digest"] == rows["digest"].iloc[-1]
    assert np.isfinite(server.theta).all()


@pytest.mark.parametrize("policy", ["reapply", "skip", "accumulate", "average"])
def test_a_gate_may_decide_on_the_whole_or_on_each_tensor(policy: DroppedPush) -> None:
    """Once this and once that: all tensors pass, or none, where it says so of the whole."""
    rng, parts = np.random.default_rng(5), [slice(0, 2), slice(2, 5), slice(5, 6)]
    one, other = (Outbox(policy, parts, NumpyOperations()) for _ in range(2))
    for timestamp in range(200):
        client, push = int(rng.integers(2)), rng.normal(size=6).astype(np.float32)
        mask = [bool(passed) for passed in rng.integers(0, 2, 3)]
        whole = all(mask) if all(mask) or not any(mask) else None
        found, expected = (
            box.offer(client, push.copy(), timestamp, passes, lambda push: (push, 24))
            for box, passes in ((one, mask if whole is None else whole), (other, mask))
        )
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert (found.timestamp, found.size) == (expected.timestamp, expected.size)
            assert found.push.tobytes() == expected.push.tobytes()
