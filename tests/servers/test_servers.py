"""Every server: the common battery, and its rule against a float64 formula written here from the papers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.errors import ConfigError
from fredsim.servers import ASGD, FASGD, SASGD, SERVERS, ExponentialASGD, Server, SoftSync, Sync

Wide = NDArray[np.float64]
CLIENTS = 6

# One line a server: how to make it. The battery below runs all of them.
BATTERY: dict[str, Callable[[], Server]] = {
    "sync": lambda: Sync(lr=0.05),
    "sync aggregate": lambda: Sync(lr=0.05, aggregate=4),
    "soft_sync": lambda: SoftSync(lr=0.05, n=2),
    "soft_sync aware": lambda: SoftSync(lr=0.05, n=3, aware=True, divisor="plus1"),
    "asgd": lambda: ASGD(lr=0.01),
    "sasgd": lambda: SASGD(lr=0.05),
    "sasgd plus1": lambda: SASGD(lr=0.05, divisor="plus1"),
    "exponential": lambda: ExponentialASGD(lr=0.05, kappa=0.3),
    "fasgd std": lambda: FASGD(lr=0.005),
    "fasgd std plus1": lambda: FASGD(lr=0.005, divisor="plus1"),
    "fasgd printed": lambda: FASGD(lr=0.1, variant="printed"),
    "fasgd released": lambda: FASGD(lr=0.005, variant="released"),
}


class Push:
    """A push as the formulas see it."""

    def __init__(self, g: Wide, tau: int, client: int) -> None:
        self.g, self.tau, self.client = g, tau, client


def formula(name: str) -> Callable[[Wide, dict[str, Any], Push], Wide]:
    """Return θ, state, push → θ in float64, from the papers' equations."""

    def by_batches(
        size: int, lr: float, divisor: Callable[[int], float]
    ) -> Callable[[Wide, dict[str, Any], Push], Wide]:
        def step(theta: Wide, state: dict[str, Any], push: Push) -> Wide:
            if name == "sync aggregate" and push.tau > 0:
                return theta
            batch = state.setdefault("batch", [])
            batch.append(push.g / divisor(push.tau))
            if len(batch) < size:
                return theta
            mean = np.mean(batch, axis=0)
            batch.clear()
            return np.asarray(theta - lr * mean)

        return step

    def fasgd(lr: float, variant: str, plus1: bool) -> Callable[[Wide, dict[str, Any], Push], Wide]:
        def step(theta: Wide, s: dict[str, Any], push: Push) -> Wide:
            g, d = push.g, push.tau + 1 if plus1 else max(push.tau, 1)
            if variant == "released":
                s["v"] = 0.9 * s.get("v", np.zeros_like(g)) + 0.1 * np.abs(g)
                return np.asarray(theta - lr * g / (d * (s["v"] + 0.001)))
            s["n"] = 0.9 * s.get("n", np.zeros_like(g)) + 0.1 * g**2
            s["b"] = 0.9 * s.get("b", np.zeros_like(g)) + 0.1 * g
            root = np.sqrt(np.maximum(s["n"] - s["b"] ** 2, 0) + 1e-4)
            s["v"] = 0.9 * s.get("v", np.ones_like(g)) + 0.1 * (root if variant == "std" else 1 / root)
            return np.asarray(theta - lr * g / (s["v"] * d))

        return step

    return {
        "sync": by_batches(6, 0.05, lambda tau: 1),
        "sync aggregate": by_batches(4, 0.05, lambda tau: 1),
        "soft_sync": by_batches(3, 0.05, lambda tau: 1),
        "soft_sync aware": by_batches(2, 0.05, lambda tau: tau + 1),
        "asgd": lambda theta, s, p: theta - 0.01 * p.g,
        "sasgd": lambda theta, s, p: theta - 0.05 / max(p.tau, 1) * p.g,
        "sasgd plus1": lambda theta, s, p: theta - 0.05 / (p.tau + 1) * p.g,
        "exponential": lambda theta, s, p: theta - 0.05 * np.exp(-0.3 * p.tau) * p.g,
        "fasgd std": fasgd(0.005, "std", plus1=False),
        "fasgd std plus1": fasgd(0.005, "std", plus1=True),
        "fasgd printed": fasgd(0.1, "printed", plus1=False),
        "fasgd released": fasgd(0.005, "released", plus1=True),
    }[name]


@pytest.mark.parametrize("name", BATTERY)
def test_a_thousand_pushes_follow_the_formula(name: str) -> None:
    rng = np.random.default_rng(3)
    start = rng.standard_normal(300).astype(np.float32)
    server, step = BATTERY[name](), formula(name)
    server.init(start, CLIENTS)
    theta: Wide = start.astype(np.float64)
    state: dict[str, Any] = {}
    held = np.zeros(CLIENTS, np.int64)  # the timestamp that each client holds
    eligible = set(range(CLIENTS))
    for _ in range(1000):
        client = int(rng.choice(sorted(eligible)))
        grad = rng.standard_normal(300).astype(np.float32)
        theta = step(theta, state, Push(grad.astype(np.float64), server.timestamp - int(held[client]), client))
        reply = server.apply_update(grad, client, int(held[client]))
        eligible.discard(client)
        for released in (client,) if reply is None else reply.released:
            eligible.add(released)
            held[released] = server.timestamp
    assert server.timestamp >= 1000 // CLIENTS
    assert np.abs(server.params - theta).max() <= 1e-5 * np.abs(theta).max()


@pytest.mark.parametrize("name", BATTERY)
def test_the_contract(name: str) -> None:
    start = np.linspace(-1, 1, 40, dtype=np.float32)
    server = BATTERY[name]()
    server.init(start, CLIENTS)
    assert server.params is not start
    assert server.params.dtype == np.float32
    assert server.timestamp == 0
    np.testing.assert_array_equal(server.fetch(3), start)
    released: list[int] = []
    for client in range(CLIENTS):
        grad = np.zeros(40, np.float32)
        reply = server.apply_update(grad, client, server.timestamp if not server.holds else 0)
        released += [client] if reply is None else list(reply.released)
        grad[:] = np.nan  # the caller may use its array again
    assert sorted(released) == list(range(CLIENTS))
    assert server.timestamp >= 1
    assert server.finite
    np.testing.assert_array_equal(server.params, start)  # gradients of zeros move nothing
    server.init(start + 1, CLIENTS)  # the same object can start over
    assert server.timestamp == 0
    np.testing.assert_array_equal(server.params, start + 1)


@pytest.mark.parametrize("name", [n for n in BATTERY if n not in {"sync aggregate", "soft_sync", "soft_sync aware"}])
def test_one_client(name: str) -> None:
    server = BATTERY[name]()
    server.init(np.ones(5, np.float32), 1)
    for push in range(3):
        reply = server.apply_update(np.ones(5, np.float32), 0, push)
        assert reply is None or list(reply.released) == [0]
    assert server.timestamp == 3


def test_not_finite_is_noticed() -> None:
    for name, make in BATTERY.items():
        server = make()
        server.init(np.ones(5, np.float32), 6)
        for client in range(6):
            server.apply_update(np.full(5, np.nan, np.float32), client, 0)
        assert not server.finite, name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ASGD(), ["lr", "required"]),
        (lambda: ASGD(lr=0), ["lr", "0", "greater than 0"]),
        (lambda: ASGD(lr="fast"), ["lr", "'fast'", "number"]),
        (lambda: FASGD(lr=0.1, gama=0.9), ["gama", "gamma"]),
        (lambda: FASGD(lr=0.1, eps=0.0), ["eps", "0.0"]),
        (lambda: FASGD(lr=0.1, variant="writen"), ["variant", "'writen'", "'std', 'released' or 'printed'"]),
        (lambda: SASGD(lr=0.1, divisor="tau"), ["divisor", "'tau'", "'max1' or 'plus1'"]),
        (lambda: ExponentialASGD(lr=0.1, kappa=-1.0), ["kappa", "-1.0"]),
    ],
)
def test_wrong_hyper_parameters_name_value_and_remedy(make: Callable[[], Server], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_every_server_is_in_the_battery_and_cites_its_source() -> None:
    assert {name.split()[0] for name in BATTERY} == set(SERVERS)
    for server in SERVERS.values():
        assert server.idea
        assert any(character.isdigit() for character in server.citation)
