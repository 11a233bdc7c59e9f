"""Servers that collect pushes or take more than gradients, against float64 formulas written from the papers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.numerics.streams import Stream, Streams

Wide = NDArray[np.float64]
Spec = dict[str, Any]
State = dict[str, Any]
Push = SimpleNamespace
Formula = Callable[[Wide, State, Push], Wide | None]


def full(s: State, item: Any, size: int) -> list[Any] | None:
    """Add to the batch; return it when it is full."""
    s.setdefault("batch", []).append(item)
    return s.pop("batch") if len(s["batch"]) == size else None


def sync(spec: Spec) -> Formula:
    inner = spec.get("inner", {})

    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        s["restarted"] = []
        if "aggregate" in spec and p.tau > 0:
            assert not spec.get("restart")  # who is late was restarted
            return None
        s.setdefault("pushed", []).append(p.client)
        batch = full(s, p.g, spec.get("aggregate", p.clients))
        if batch is None:
            return None
        pushed = s.pop("pushed")
        if spec.get("restart"):
            s["restarted"] = [client for client in range(p.clients) if client not in pushed]
        g = np.mean(batch, axis=0)
        if inner.get("name") == "dcasgd" and inner.get("initial_backup") == "zero" and p.t == 0:
            # One client that always fetches: its backup is θ, but for the first push, where it is zero.
            ms = 0.05 * g**2
            g = g + 2 / np.sqrt(ms + 1e-7) * g**2 * theta
        if inner.get("name") == "fasgd":
            s["n"] = 0.9 * s.get("n", 0.0) + 0.1 * g**2
            s["b"] = 0.9 * s.get("b", 0.0) + 0.1 * g
            s["v"] = 0.9 * s.get("v", 1.0) + 0.1 * np.sqrt(np.maximum(s["n"] - s["b"] ** 2, 0) + 1e-4)
            g = g / s["v"]
        new = np.asarray(theta - p.alpha * g)
        if inner.get("name") == "averaged":
            s["sum"] = s.get("sum", 0.0) + new
            s["average"] = s["sum"] / (p.t + 1)
        return new

    return step


def soft_sync(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        d = 1
        if spec.get("aware"):
            d = p.tau + 1 if spec.get("divisor") == "plus1" else max(p.tau, 1)
        batch = full(s, p.g / d, p.clients // spec["n"])
        return None if batch is None else np.asarray(theta - p.alpha * np.mean(batch, axis=0))

    return step


def ternary_sync(spec: Spec) -> Formula:
    """E[g̃] = g only on the average: which values survive is decided by the run's own draws."""
    sigmas, shared = spec.get("clip_sigma"), spec.get("share_scaler", True)

    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        batch = full(s, (p.client, p.g), p.clients)
        if batch is None:
            return None
        mean = np.zeros_like(theta)
        for at in p.tensors:
            parts = {}
            for client, g in batch:
                bound = np.inf if sigmas is None else float(np.float32(sigmas * g[at].std()))
                parts[client] = np.clip(g[at], -bound, bound)
            top = max(np.abs(part).max() for part in parts.values())
            for client, part in parts.items():
                scaler = top if shared else np.abs(part).max()
                r = Streams(0).uniform(Stream.SERVER, np.arange(at.start, at.stop), p.t, client)
                mean[at] += scaler * np.sign(part) * (r < np.abs(part) / scaler)
        return np.asarray(theta - p.alpha * mean / p.clients)

    return step


def sign_majority() -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        batch = full(s, np.sign(p.g), p.clients)
        return None if batch is None else np.asarray(theta - p.alpha * np.sign(np.sum(batch, axis=0)))

    return step


def fedbuff(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        delta = -p.alpha * p.total / (np.sqrt(1 + p.tau) if spec.get("weight", "sqrt") == "sqrt" else 1)
        batch = full(s, delta, spec["buffer"])
        return None if batch is None else np.asarray(theta + spec.get("server_lr", 1.0) * np.mean(batch, axis=0))

    return step


def fedasync(spec: Spec) -> Formula:
    a, b = spec.get("a", 0.5), spec.get("b", 4.0)

    def step(theta: Wide, s: State, p: Push) -> Wide:
        del s
        share = {
            "constant": 1.0,
            "polynomial": (p.tau + 1) ** -a,
            "hinge": 1.0 if p.tau <= b else 1 / (a * (p.tau - b) + 1),
        }[spec.get("rule", "polynomial")]
        mixed = spec.get("mixing", 0.6) * share
        return np.asarray((1 - mixed) * theta + mixed * (p.held - p.alpha * p.total))

    return step


def easgd(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide:
        x = p.held - p.alpha * p.total
        d = spec["alpha"] * (x - theta)
        s["answer"] = x - d
        return np.asarray(theta + d)

    return step


def rennala(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        batch = full(s, p.g, spec["batch"]) if p.tau == 0 else None
        return None if batch is None else np.asarray(theta - p.alpha * np.mean(batch, axis=0))

    return step


FORMULAS: dict[str, Callable[[Spec], Formula]] = {
    "sync": sync,
    "soft_sync": soft_sync,
    "ternary_sync": ternary_sync,
    "sign_majority": lambda spec: sign_majority(),
    "fedbuff": fedbuff,
    "fedasync": fedasync,
    "easgd": easgd,
    "rennala": rennala,
}
HAND_OUT: dict[str, Callable[[Wide, State, Push], Wide]] = {
    "easgd": lambda theta, s, p: np.asarray(s["answer"] if p.other == p.client else theta)
}


def test_a_thousand_pushes_follow_the_formula(spec: Spec, follow: Callable[..., Any]) -> None:
    server = follow(spec, FORMULAS[spec["name"]](spec), HAND_OUT.get(spec["name"])).server
    assert server.timestamp >= 1000 // 10
    assert server.finite


def test_a_hundred_pushes_of_one_client_follow_the_formula(
    spec: Spec, follow: Callable[..., Any], one_client: Callable[[Spec], Spec]
) -> None:
    spec = one_client(spec)
    server = follow(spec, FORMULAS[spec["name"]](spec), HAND_OUT.get(spec["name"]), pushes=100, clients=1).server
    assert server.timestamp >= 100 // 4


@pytest.mark.parametrize("inner", ["dana", "gap_aware", "momentum"])
def test_sync_hands_out_what_its_inner_server_hands_out(inner: str, exchange: Callable[..., Any]) -> None:
    """The round's mean is one push of one client: that client alone, with the mean, goes the same way to the bit."""
    wrapped = exchange({"name": "sync", "inner": {"name": inner, "lr": 0.05}}, clients=1)
    alone = exchange({"name": inner, "lr": 0.05}, clients=1)
    for _ in range(20):
        wrapped.push_any()
        alone.push_any()
        np.testing.assert_array_equal(wrapped.held[0], alone.held[0])
        np.testing.assert_array_equal(wrapped.server.params, alone.server.params)


def test_the_inner_servers_one_client_fetches_after_every_round(make: Callable[[Spec], Any]) -> None:
    """Whoever of the round fetches: a backup made at pull is of this round, so that nothing is compensated."""
    servers = [make({"name": "sync", "inner": {"name": "dcasgd", "lr": 0.1}}), make({"name": "sync", "lr": 0.1})]
    rng = np.random.default_rng(0)
    for server in servers:
        server.init(np.ones(20, np.float32), 2)
    for push in range(20):
        g = rng.standard_normal(20).astype(np.float32)
        for server in servers:
            server.apply_update(g, push % 2, server.timestamp)
        assert servers[0].params.tobytes() == servers[1].params.tobytes()
    assert servers[0].timestamp == 10


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_a_sum_of_zeros_is_plus_zero(clients: int, make: Callable[[Spec], Any]) -> None:
    """−0 − α (+0) is −0 still; by a sum of −0 it would be +0, which no digest forgives."""
    server = make({"name": "sync", "lr": 1.0})
    server.init(np.array([-0.0, 0.0], np.float32), clients)
    for client in range(clients):
        server.apply_update(np.array([-0.0, -0.0], np.float32), client, 0)
    assert server.timestamp == 1
    assert np.signbit(server.params).tolist() == [True, False]
