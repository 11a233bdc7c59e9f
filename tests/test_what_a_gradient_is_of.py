"""Servers that correct a gradient by what it was computed from know just that, whatever a client fetched meanwhile."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fredsim.errors import ConfigError
from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]
STEPS = 40
SERVERS: dict[str, dict[str, Any]] = {
    "PlainDCASGD": {"name": "dcasgd", "lr": 0.3, "adaptive": False, "lambda0": 0.5},
    "PlainGapAware": {"name": "gap_aware", "lr": 0.3, "c": 0.01},
}

GATE = """
class Parts:
    def init(self, clients, tensors, streams, stream):
        self.tensors = len(tensors)

    def passes(self, step, client, statistics):
        return [(step * (i + 2) + client) % 3 == 0 for i in range(self.tensors)]
"""


@pytest.mark.parametrize("kind", SERVERS)
def test_clients_that_do_not_wait(simulate: Simulate, plain: ModuleType, kind: str) -> None:
    """One client alone: its gradients are one update old, and of the parameters of the update before."""
    world = plain.World(clients=1)
    server, held, digests = getattr(plain, kind)(world.start, 0.3), [world.start, world.start], []
    for step in range(STEPS):
        server.origin = held[0]
        server.apply(world.gradient(held[0], step, 0, step), 0, min(step, 1))
        held = [held[1], server.theta.copy()]
        digests.append(world.digest(server.theta))
    run = {
        "iterations": STEPS,
        "clients": {"count": 1, "batch_size": 3},
        "dispatcher": {"wait": False},
        "evaluation": {"every": 1},
    }
    found = simulate(run | {"server": SERVERS[kind]})
    assert found.metrics["digest"].tolist()[1:] == digests
    asgd = simulate(run | {"server": {"name": "asgd", "lr": 0.3}})
    assert asgd.summary["digest"] != found.summary["digest"]


@pytest.mark.parametrize("kind", SERVERS)
def test_tensors_of_different_age(
    simulate: Simulate, plain: ModuleType, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_gate.py").write_text(GATE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    world = plain.World()

    def parts(step: int, client: int, server: Any) -> list[bool]:
        del server
        return [(step * (i + 2) + client) % 3 == 0 for i in range(4)]

    rows = world.run(STEPS, getattr(plain, kind)(world.start, 0.3), fetch=parts)
    run = {"iterations": STEPS, "dispatcher": {"fetch": {"parts_gate:Parts": {}}}, "evaluation": {"every": 1}}
    plain.check(simulate(run | {"server": SERVERS[kind]}), rows)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_dropped_push_is_skipped_or_refused(simulate: Simulate, plain: ModuleType, kind: str) -> None:
    """One that is applied again, or summed with others, is of no parameters that the server knows."""
    run = {"iterations": STEPS, "server": SERVERS[kind], "evaluation": {"every": 1}}
    for dropped in ("reapply", "accumulate", "average"):
        with pytest.raises(ConfigError, match=f"dispatcher.dropped_push is {dropped}; the server corrects"):
            simulate(run | {"dispatcher": {"push": {"every": 2}, "dropped_push": dropped}})
    world, counts = plain.World(), dict.fromkeys(range(8), 0)

    def every_other(step: int, client: int, server: Any) -> bool:
        del step, server
        counts[client] += 1
        return counts[client] % 2 == 0

    rows = world.run(STEPS, getattr(plain, kind)(world.start, 0.3), push=every_other, dropped="skip")
    plain.check(simulate(run | {"dispatcher": {"push": {"every": 2}, "dropped_push": "skip"}}), rows)


OF_SEVERAL: dict[str, dict[str, Any]] = {
    "local steps": {"clients": {"count": 4, "batch_size": 3, "local_steps": 5}},
    "an optimizer": {"clients": {"count": 4, "batch_size": 3, "optimizer": {"name": "adamw", "lr": 0.001}}},
    "control variates": {"clients": {"count": 4, "batch_size": 3, "control_variates": True}},
    "top_k": {"compress": {"name": "top_k", "k": 0.1}},
    "error feedback": {"compress": {"name": "error_feedback_sign"}},
    "ef21": {"compress": {"name": "ef21", "inner": {"name": "top_k", "k": 0.1}}},
}


@pytest.mark.parametrize("changes", OF_SEVERAL)
@pytest.mark.parametrize("kind", [*SERVERS, "inner"])
def test_a_push_of_no_single_parameters_is_refused(simulate: Simulate, kind: str, changes: str) -> None:
    """A server that corrects a gradient by what it was computed from can do nothing with it; others can."""
    server = SERVERS.get(kind, {"name": "sync", "inner": SERVERS["PlainDCASGD"]})
    run = {"iterations": STEPS, "evaluation": {"every": STEPS}} | OF_SEVERAL[changes]
    what = "compress adds what earlier pushes left" if "compress" in run else "clients take steps of their own .*"
    with pytest.raises(ConfigError, match=f"{what}; the server corrects a gradient by the parameters"):
        simulate(run | {"server": server})
    after_push = {"name": "dcasgd", "lr": 0.001, "backup": "push"}
    assert simulate(run | {"server": after_push}).summary["status"] == "finished"


@pytest.mark.parametrize("kind", SERVERS)
def test_a_compressor_without_memory_is_allowed(simulate: Simulate, kind: str) -> None:
    run = {"iterations": STEPS, "server": SERVERS[kind], "compress": {"name": "qsgd"}}
    assert simulate(run).summary["status"] == "finished"


@pytest.mark.parametrize("inner", SERVERS)
def test_the_rounds_of_a_server_that_corrects_are_of_the_same_parameters(simulate: Simulate, inner: str) -> None:
    run = {"iterations": STEPS, "server": {"name": "sync", "inner": SERVERS[inner]}}
    with pytest.raises(ConfigError, match=r"dispatcher.fetch is given; clients of the server sync must fetch every"):
        simulate(run | {"dispatcher": {"fetch": {"every": 2}}})
    with pytest.raises(ConfigError, match=r"dispatcher.dropped_push is reapply; the server corrects"):
        simulate(run | {"dispatcher": {"push": {"every": 2}}})
    assert simulate(run | {"dispatcher": {"push": {"every": 2}, "dropped_push": "skip"}}).summary["updates"] > 0


@pytest.mark.parametrize("key", ["fetch", "push"])
def test_a_rounds_mean_is_as_stale_as_its_stalest_gradient(simulate: Simulate, plain: ModuleType, key: str) -> None:
    """An inner server that goes by staleness: its step is α·mean/(τ + 1), τ that of the round's oldest gradient."""
    world, counts, stalest = plain.World(), dict.fromkeys(range(8), 0), list[int]()

    class Rounds(plain.PlainBatches):  # type: ignore[misc, name-defined]
        theta: Any

        def apply(self, g: Any, client: int, tau: int) -> Any:
            stalest.append(max(tau, stalest[-1]) if self.batch else tau)
            batch, before, released = [*self.batch, g.copy()], self.theta, super().apply(g, client, tau)
            if released:
                mean = plain.tree_sum(np.stack(batch)) / np.float32(8)
                self.theta = before - self.lr * (mean / np.float32(stalest[-1] + 1))
            return released

    def every_third(step: int, client: int, server: Any) -> bool:
        del step, server
        counts[client] += 1
        return counts[client] % 3 == 0

    rows = world.run(STEPS * 4, Rounds(world.start, 0.3, 8), **{key: every_third})
    assert max(stalest) > 1
    inner = {"name": "sasgd", "lr": 0.3, "divisor": "plus1"}
    run = {"iterations": STEPS * 4, "server": {"name": "sync", "inner": inner}, "evaluation": {"every": 1}}
    plain.check(simulate(run | {"dispatcher": {key: {"every": 3}}}), rows)


HANDS_OUT = """
import numpy as np

class HandsOut:
    def __init__(self, lr):
        self.lr, self.timestamp, self.pushed, self.handed, self.wrong = lr, 0, 0, {}, 0

    def init(self, params, clients):
        self.params, self.sum = params.copy(), np.zeros_like(params)

    def apply_update(self, grad, client_id, timestamp):
        self.sum += grad
        self.pushed += 1
        if self.pushed % 3 == 0:
            self.params -= np.float32(self.lr) * self.sum
            self.timestamp += 1

    def fetch(self, client_id):
        self.handed[client_id] = self.params if self.pushed % 2 else self.params + np.float32(0.01 * client_id)
        return self.handed[client_id]

    def begins(self, client_id, params, timestamp):
        assert (params == self.handed[client_id]).all() and timestamp == self.timestamp
"""


def test_a_server_that_hands_out_its_parameters_now_and_others_then(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one timestamp some clients get the parameters, which they share, and others get their own."""
    (tmp_path / "hands_out.py").write_text(HANDS_OUT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    run = simulate({"server": {"name": "hands_out:HandsOut", "lr": 0.1}, "iterations": 30})
    assert run.summary["status"] == "finished"


@pytest.mark.parametrize(("name", "kept"), [("fedasync", "reapply"), ("fedasync", "skip"), ("easgd", "skip")])
def test_parameters_are_neither_summed_nor_compressed(simulate: Simulate, name: str, kept: str) -> None:
    server = {"name": name, "lr": 0.1}
    for dropped in ("accumulate", "average"):
        with pytest.raises(ConfigError, match=f"dispatcher.dropped_push is {dropped}; the server's clients push param"):
            simulate({"server": server, "dispatcher": {"push": {"every": 2}, "dropped_push": dropped}})
    with pytest.raises(ConfigError, match="compress is given; the server's clients push parameters"):
        simulate({"server": server, "compress": {"name": "qsgd"}})
    drops = {"push": {"every": 2}, "dropped_push": kept}
    assert simulate({"server": server, "dispatcher": drops}).summary["status"] == "finished"


def test_a_client_that_goes_on_from_its_own_parameters_does_not_go_back(simulate: Simulate) -> None:
    """By `reapply`, the default, the centre is pulled again towards an old x_i, and its client gets that old x_i."""
    for drops in ({"push": {"every": 2}}, {"push": {"every": 2}, "dropped_push": "reapply"}):
        says = r"dropped_push is reapply; .* own parameters and, since it has a fetch of its own, may go on from them, "
        with pytest.raises(ConfigError, match=says):
            simulate({"server": {"name": "easgd", "lr": 0.1}, "dispatcher": drops})


WEIGHS = """
class Halves:
    def init(self, params, clients):
        self.params, self.v = params.copy(), abs(params)

    def apply_update(self, grad, client_id, timestamp):
        self.params -= 0.1 * grad

    def bytes_{copy}ed(self):
        return 2 * len(self.params)
"""


@pytest.mark.parametrize("copy", ["push", "fetch"])
@pytest.mark.parametrize("gate", [{"budget": 1500.0}, {"parts_gate:Parts": {}}])
def test_the_bytes_of_a_part_are_not_known_where_a_server_counts_those_of_the_whole(
    simulate: Simulate, copy: str, gate: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_gate.py").write_text(GATE, encoding="utf-8")
    (tmp_path / f"weighs_{copy}.py").write_text(WEIGHS.replace("{copy}", copy), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    run: dict[str, Any] = {"iterations": STEPS, "server": {"name": f"weighs_{copy}:Halves"}}
    with pytest.raises(ConfigError, match=rf"dispatcher.{copy} passes tensor by tensor, .*\(bytes_{copy}ed\)"):
        simulate(run | {"dispatcher": {copy: gate}})
    whole = simulate(run | {"dispatcher": {copy: {"every": 2}}}).summary
    assert whole[f"bytes_{copy}ed"] == whole[f"{copy}es"] * 2 * (64 * 16 + 16 + 16 * 10 + 10)


def test_ternary_sync_refuses_a_gate_on_fetches(simulate: Simulate) -> None:
    """Else a client would get the parameters of ten rounds for the bytes of one round's mean."""
    server = {"name": "ternary_sync", "lr": 0.1}
    with pytest.raises(ConfigError, match=r"dispatcher.fetch is given; clients of the server ternary_sync must fetch"):
        simulate({"server": server, "dispatcher": {"fetch": {"every": 10}}})


@pytest.mark.parametrize(("inner", "instead"), [("bfasgd", "fasgd"), ("downpour", "asgd")])
def test_an_inner_server_brings_no_gates(simulate: Simulate, inner: str, instead: str) -> None:
    with pytest.raises(
        ConfigError, match=f"server.inner.name: is '{inner}', whose gates .*; use {instead}, and give the gates"
    ):
        simulate({"server": {"name": "sync", "inner": {"name": inner, "lr": 0.1}}})


def test_an_inner_server_draws_from_the_runs_streams() -> None:
    from fredsim.numerics.streams import Streams
    from fredsim.servers import Sync

    server = Sync(inner={"name": "asgd", "lr": 0.1})
    server.streams = Streams(17)
    server.init(np.zeros(3, np.float32), 2)
    assert server._inner is not None
    assert server._inner.streams.seed == 17
