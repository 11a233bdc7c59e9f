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


@pytest.mark.parametrize("server", [{"name": "fedasync", "lr": 0.1}, {"name": "easgd", "lr": 0.1}])
def test_parameters_are_neither_summed_nor_compressed(simulate: Simulate, server: dict[str, Any]) -> None:
    for dropped in ("accumulate", "average"):
        with pytest.raises(ConfigError, match=f"dispatcher.dropped_push is {dropped}; the server's clients push param"):
            simulate({"server": server, "dispatcher": {"push": {"every": 2}, "dropped_push": dropped}})
    with pytest.raises(ConfigError, match="compress is given; the server's clients push parameters"):
        simulate({"server": server, "compress": {"name": "qsgd"}})
    assert simulate({"server": server, "dispatcher": {"push": {"every": 2}}}).summary["status"] == "finished"


@pytest.mark.parametrize(("inner", "instead"), [("bfasgd", "fasgd"), ("downpour", "asgd")])
def test_an_inner_server_brings_no_gates(simulate: Simulate, inner: str, instead: str) -> None:
    with pytest.raises(
        ConfigError, match=f"inner.name is '{inner}', whose gates .*; use {instead}, and give the gates"
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
