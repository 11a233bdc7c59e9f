"""Fixtures for tests of all servers and their variants; an exchange with a server, also compared with float64."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.networks.layout import Layout
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.servers import SERVERS, WindowAverage
from tests.servers.paths import QUICK, check_same
from tests.servers.variants import VARIANTS

Wide = NDArray[np.float64]
CLIENTS = 6
LAYOUT = Layout((("W", (20, 10)), ("b", (100,))))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with an argument `variant` for every variant.

    In a module with FORMULAS, only for the servers named there; with a function `fits`, only for those that it accepts.
    """
    if "variant" in metafunc.fixturenames:
        wanted = getattr(metafunc.module, "FORMULAS", SERVERS)
        fits = getattr(metafunc.module, "fits", lambda server: True)
        named = {name: spec for name, spec in VARIANTS.items() if spec["name"] in wanted}
        metafunc.parametrize("variant", [name for name, spec in named.items() if fits(build(spec))])


@pytest.fixture
def variants() -> Mapping[str, dict[str, Any]]:
    return VARIANTS


@pytest.fixture
def spec(variant: str) -> dict[str, Any]:
    return dict(VARIANTS[variant])


def build(spec: Mapping[str, Any]) -> Any:
    hyper = {key: value for key, value in spec.items() if key not in {"name", "average"}}
    server = SERVERS[spec["name"]](**hyper)
    server.streams = Streams(0)
    return WindowAverage(server, **spec["average"]) if "average" in spec else server


@pytest.fixture
def make() -> Callable[[Mapping[str, Any]], Any]:
    """Return the server of a spec, not started."""
    return build


def for_one(spec: dict[str, Any]) -> dict[str, Any]:
    return spec | {key: 1 for key in ("n", "aggregate") if key in spec and spec["name"] != "delay_adaptive"}


@pytest.fixture
def one_client() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a spec changed to be valid for a single client."""
    return for_one


def rate(lr: Any, t: int) -> float:
    """Return the learning rate at timestamp t, by the schedule's closed form."""
    match lr:
        case {"name": "step"}:
            return float(lr["base"] * lr["factor"] ** (t // lr["every"]))
        case {"name": "inverse_power"}:
            return float(lr["base"] / (1 + lr["lambd"] * lr["base"] * t) ** lr["power"])
    return float(lr)


class Exchange:
    """Clients that push to a server and fetch from it, as in the loop, with random gradients and in random order."""

    def __init__(self, server: Any, start: NDArray[np.float32], clients: int, seed: int, drops: float = 0.0) -> None:
        self.server, self.clients = server, clients
        self.rng = np.random.default_rng(seed)
        self.drops = 0.0 if server.holds else drops
        self.held = [start.copy() for _ in range(clients)]
        self.stamps = [0] * clients
        self.fetched: set[int] = set()
        self.eligible = set(range(clients))
        self.released: list[int] = []

    def gradients(self) -> list[NDArray[np.float32]]:
        count = 1 if self.server.pushes == "gradient" else 2
        return [self.rng.standard_normal(len(self.held[0])).astype(np.float32) for _ in range(count)]

    def push(self, client: int, gradients: list[NDArray[np.float32]]) -> tuple[list[int], list[int]]:
        """Push what the client's local steps make of these gradients; return who fetched and who was restarted."""
        server = self.server
        pushed = gradients[0].copy()
        if server.pushes != "gradient":
            pushed = self.held[client].copy() if server.pushes == "params" else np.zeros_like(pushed)
            for g in gradients:
                pushed -= np.float32(server.rate()) * g
        reply = server.apply_update(pushed, client, self.stamps[client])
        pushed[...] = np.nan  # the server must not keep the array, which the caller may use again
        released, restarted = ([client], []) if reply is None else (list(reply.released), list(reply.restarted))
        self.released = released
        self.eligible.discard(client)
        self.eligible.update(released)
        passed = [other for other in released if self.rng.random() >= self.drops] + restarted
        for other in passed:
            self.fetch(other)
        return passed, restarted

    def fetch(self, client: int) -> int:
        self.held[client] = self.server.fetch(client).copy()
        self.stamps[client] = self.server.timestamp
        if hasattr(self.server, "begins"):
            self.server.begins(client, self.held[client], self.stamps[client])
        self.fetched.add(client)
        return client

    def push_any(self) -> int:
        client = int(self.rng.choice(sorted(self.eligible)))
        self.push(client, self.gradients())
        return client


@pytest.fixture
def exchange() -> Callable[..., Exchange]:
    """Return an exchange of a started server with its clients."""

    def begin(spec: Mapping[str, Any], clients: int = CLIENTS, size: int = 300, drops: float = 0.0) -> Exchange:
        server = build(spec)
        start = np.random.default_rng(7).standard_normal(size).astype(np.float32)
        server.init(start, clients, LAYOUT if size == LAYOUT.size else None)
        return Exchange(server, start, clients, seed=3, drops=drops)

    return begin


@pytest.fixture
def follow(exchange: Callable[..., Exchange]) -> Callable[..., Exchange]:
    """Compare a server with its formula: step(θ, state, push) returns the new θ in float64, None if nothing is applied.

    `hand_out(θ, state, push)` returns what client `push.other` fetches after that push; without it, that is θ.
    """

    def run(
        spec: Mapping[str, Any],
        step: Callable[[Wide, dict[str, Any], SimpleNamespace], Wide | None],
        hand_out: Callable[[Wide, dict[str, Any], SimpleNamespace], Wide] | None = None,
        pushes: int = 1000,
        clients: int = CLIENTS,
    ) -> Exchange:
        ex = exchange(spec, clients, drops=0.1)
        server = ex.server
        theta: Wide = server.params.astype(np.float64)
        held = [theta] * clients
        state: dict[str, Any] = {}
        t = 0
        for number in range(pushes):
            client = int(ex.rng.choice(sorted(ex.eligible)))
            grads = ex.gradients()
            wide = [g.astype(np.float64) for g in grads]
            push = SimpleNamespace(
                g=wide[0], total=sum(wide), client=client, clients=clients, t=t, tau=t - ex.stamps[client],
                alpha=rate(spec["lr"] if "lr" in spec else spec["inner"]["lr"], t), held=held[client],
                fetched=client in ex.fetched, signs=np.sign(server.params).astype(np.float64),
                tensors=[slice(0, 200), slice(200, 300)], stamps=list(ex.stamps),
            )  # fmt: skip
            decayed = theta - push.alpha * spec.get("weight_decay", 0.0) * theta
            new = step(decayed, state, push)
            passed, restarted = ex.push(client, grads)
            if new is not None:
                theta, t = new, t + 1
            push.t = t
            push.alpha = rate(spec["lr"] if "lr" in spec else spec["inner"]["lr"], t)
            if ex.rng.random() < ex.drops:  # a push of some client is dropped: it only fetches
                passed.append(ex.fetch(int(ex.rng.integers(clients))))
            for other in passed:
                push.other = other
                held[other] = theta if hand_out is None else hand_out(theta, state, push)
            bound = 1e-5 * np.abs(theta).max()
            assert server.timestamp == t, number
            assert np.abs(server.params - theta).max() <= bound, number
            for other in passed:
                assert np.abs(ex.held[other] - held[other]).max() <= bound, (number, other)
            assert sorted(restarted) == sorted(state.get("restarted", [])), number
            if "average" in state:
                assert np.abs(server.averaged_params - state["average"]).max() <= bound, number
        assert math.isfinite(float(np.abs(theta).max()))
        return ex

    return run


@pytest.fixture
def check(simulate: Callable[..., Result]) -> Callable[..., Result]:
    """Run an experiment on these paths and compare them with `snapshots`, whose result is returned."""

    def run(changes: Mapping[str, Any], paths: Sequence[str] = QUICK) -> Result:
        reference = simulate({**changes, "path": "snapshots"})
        for path in paths:
            result = simulate({**changes, "path": path})
            assert (reference.summary["path"], result.summary["path"]) == ("snapshots", path)
            check_same(result, reference)
        return reference

    return run
