"""Servers that become plain asynchronous SGD for some hyper-parameters do so to the bit, alone and in whole runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

ASGD = {"name": "asgd", "lr": 0.1}
SAME: dict[str, dict[str, Any]] = {
    "fedbuff": {"name": "fedbuff", "buffer": 1, "weight": "constant", "server_lr": 1.0},
    "ringmaster": {"name": "ringmaster", "threshold": 10_000},
    "ringmaster stop": {"name": "ringmaster", "threshold": 10_000, "stop": True},
    "delay_adaptive": {"name": "delay_adaptive", "n": 10_000},
    "gap_aware": {"name": "gap_aware", "c": float("inf")},
    "dana": {"name": "dana", "gamma": 0.0},
    "dcasgd constant": {"name": "dcasgd", "lambda0": 0.0, "adaptive": False},
    "dcasgd adaptive": {"name": "dcasgd", "lambda0": 0.0, "backup": "push", "initial_backup": "zero"},
    "momentum": {"name": "momentum", "momentum": 0.0},
    "momentum nesterov": {"name": "momentum", "momentum": 0.0, "nesterov": True},
    "async_nesterov": {"name": "async_nesterov", "momentum": 0.0},
    "soft_sync": {"name": "soft_sync", "n": 8},
    "delayed_nesterov": {"name": "delayed_nesterov", "every": 1, "momentum": 0.0, "server_lr": 1.0},
    "averaged": {"name": "averaged"},
    "downpour": {"name": "downpour"},
    "exponential": {"name": "exponential", "kappa": 0.0},
    "average_staleness": {"name": "average_staleness", "staleness": 1.0},
    "rennala": {"name": "rennala", "batch": 1},
    "ia2sgd": {"name": "ia2sgd"},
    "ia2sgd delay": {"name": "ia2sgd", "max_delay": 1},
    "malenia": {"name": "malenia"},
    "ringleader": {"name": "ringleader"},
    "throttle": {"name": "throttle", "q": 1.5},
    "schedule": {"name": "asgd", "lr": {"name": "constant", "base": 0.1}},
}
ALONE = {"rennala", "ia2sgd", "ia2sgd delay", "malenia", "ringleader", "throttle"}  # with one client: none is stale


@pytest.mark.parametrize("name", SAME)
def test_pushes_give_the_bits_of_asgd(name: str, exchange: Callable[..., Any]) -> None:
    clients = 1 if name in ALONE else 8
    one, two = (exchange(spec, clients, drops=0.2 * (clients > 1)) for spec in ({"lr": 0.1, **SAME[name]}, ASGD))
    rng = np.random.default_rng(2)
    for _ in range(300):
        client, g = int(rng.integers(clients)), (rng.standard_normal(300) * 10 ** rng.uniform(-6, 1)).astype(np.float32)
        for ex in (one, two):
            ex.push(client, [g, np.zeros_like(g)][: 1 if ex.server.pushes == "gradient" else 2])
        assert one.server.params.tobytes() == two.server.params.tobytes()
        assert one.held[client].tobytes() == two.held[client].tobytes()
    assert one.stamps == two.stamps


@pytest.mark.parametrize("sampling", ["sequential", "iid"])
@pytest.mark.parametrize("name", SAME)
def test_runs_give_the_digest_of_asgd(name: str, sampling: str, simulate: Callable[..., Any]) -> None:
    count = 1 if name in ALONE else 8
    clients = {"count": count, "batch_size": 3, "sampling": sampling}
    one, two = (
        simulate({"iterations": 150, "clients": clients, "server": spec, "seed": 4})
        for spec in ({"lr": 0.1, **SAME[name]}, ASGD)
    )
    assert one.summary["digest"] == two.summary["digest"]
    assert one.staleness.equals(two.staleness)
    raw = one.folder / "params_raw.safetensors"
    assert raw.exists() == (name == "averaged")
    params = load_file(raw) if raw.exists() else one.params
    assert params.keys() == two.params.keys()
    for tensor, value in two.params.items():
        assert params[tensor].tobytes() == value.tobytes()
        assert name != "averaged" or one.params[tensor].tobytes() != value.tobytes()


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "fedbuff", "buffer": 1},
        {"name": "fedbuff", "buffer": 2, "weight": "constant"},
        {"name": "ringmaster", "threshold": 3},
        {"name": "delay_adaptive", "n": 3},
        {"name": "gap_aware", "c": 1.0},
        {"name": "dana", "gamma": 0.1},
        {"name": "dcasgd", "lambda0": 0.1},
        {"name": "momentum", "momentum": 0.1},
        {"name": "delayed_nesterov", "every": 1, "momentum": 0.1, "server_lr": 1.0},
        {"name": "averaged", "l2": 0.1},
        {"name": "soft_sync", "n": 4},
    ],
)
def test_otherwise_they_differ(changed: dict[str, Any], simulate: Callable[..., Any]) -> None:
    assert simulate({"server": {"lr": 0.1, **changed}}).summary["digest"] != simulate({}).summary["digest"]


@pytest.mark.parametrize(
    "server",
    [
        {"name": "asgd", "lr": 0.1},
        {"name": "dcasgd", "lr": 0.1},
        {"name": "gap_aware", "lr": 0.1},
        {"name": "ringmaster", "lr": 0.1, "threshold": 50, "stop": True},
        {"name": "soft_sync", "lr": 0.1, "n": 5000},
    ],
)
def test_ten_thousand_clients_run(server: dict[str, Any], simulate: Callable[..., Any]) -> None:
    result = simulate({"iterations": 120, "clients": {"count": 10_000, "batch_size": 2}, "server": server})
    assert result.summary["status"] == "finished"
    assert result.summary["iterations"] == 120
    assert result.summary["updates"] >= 50


def test_hard_sync_counts_gradients_of_clients_that_could_not_fetch(simulate: Callable[..., Any]) -> None:
    """Only backup workers drop late gradients: without them a round takes one of every client, however old."""
    dispatcher = {"name": "round_robin", "fetch": {"every": 3}}
    result = simulate({"iterations": 80, "server": {"name": "sync", "lr": 0.1}, "dispatcher": dispatcher})
    assert result.summary["updates"] == 10
    assert result.metrics["staleness_max"].max() == 2
