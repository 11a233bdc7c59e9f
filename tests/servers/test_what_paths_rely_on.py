"""A class that breaks what the faster paths rely on is refused on every path, or takes the one that gives its bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.errors import FredsimError
from fredsim.runs.folder.results import Result
from tests.servers.paths import BASE, check_same

OWN = """
import sys
import threading

from fredsim.dispatchers.uniform import Uniform
from fredsim.servers import ASGD, Reply, Server


# More than a rule, each time in another place.

class Compiles(Base):
    def _compile(self, rule):
        update = super()._compile(rule)
        return lambda theta, *rest: update(theta, *rest) and bool((theta[:3] == theta[:3]).all()) and self.half(theta)

    def half(self, theta):
        theta[:3] *= np.float32(0.5)
        return True


class ReplacesTheKernel(Base):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        update = self.update

        def twice(theta, mean, g, begin, end, alpha):
            update(theta, mean, g, begin, end, alpha)
            return update(theta, mean, g, begin, end, alpha)

        self.update = twice


class ReplacesTheRule(Base):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        self.rule = Rule(other, state=("mean",))


def other(theta, mean, g, alpha):
    return theta - 2.0 * (alpha * g), mean


class OnTheInstance(Base):
    def __init__(self, **hyper):
        super().__init__(**hyper)
        usual = self.apply_update

        def every_other(grad, client_id, timestamp):
            usual(grad * np.float32(self.timestamp % 2), client_id, timestamp)

        self.apply_update = every_other


class HandsOutOnTheInstance(Base):
    def __init__(self, **hyper):
        super().__init__(**hyper)
        self.fetch = lambda client_id: self.params * np.float32(0.5)


class Property(Base):
    @property
    def params(self):
        return self._params

    @params.setter
    def params(self, values):
        self._params = values


class StopsEarly(Base):
    @property
    def finite(self):
        return self.timestamp < 30

    @finite.setter
    def finite(self, value):
        pass


class DeniesIt(Base):
    whole_gradients = ""

    def apply_update(self, grad, client_id, timestamp):
        super().apply_update(grad * np.float32(0.5), client_id, timestamp)


class Descends(ASGD):
    def state_of(self, client_id):
        return super().state_of(client_id)


# A server of its own update, which says nothing of finiteness.

class SaysNothing(Server):
    Hyper = Rated

    def apply_update(self, grad, client_id, timestamp):
        with np.errstate(all="ignore"):
            self.params -= np.float32(self.hyper.lr) * grad
        self.timestamp += 1


# Servers that break their word.

class ReleasesEarly:
    holds = True

    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params, self.waiting = params.copy(), []

    def pushes_until_release(self):
        return 4 - len(self.waiting)

    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(self.lr) * grad
        self.waiting.append(client_id)
        if len(self.waiting) < 3:
            return Reply()
        released, self.waiting = self.waiting, []
        return Reply(released)


class ReleasesOthers(ReleasesEarly):
    holds = False

    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(self.lr) * grad
        return Reply((client_id, (client_id + 1) % 3))


class Asgd(ASGD):
    pass


class Moves:
    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params, self.timestamp, self.pushes_seen = params.copy(), 0, 0

    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(self.lr) * grad
        self.pushes_seen += 1
        self.timestamp += self.pushes_seen % 2


class Keeps:
    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params, self.before = params.copy(), np.zeros_like(params)

    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(self.lr) * self.before
        self.before = grad


class KeepsAView(Keeps):
    def apply_update(self, grad, client_id, timestamp):
        super().apply_update(grad[:], client_id, timestamp)


class KeepsACopy(Keeps):
    def apply_update(self, grad, client_id, timestamp):
        super().apply_update(grad.copy(), client_id, timestamp)


class WritesIntoIt(Keeps):
    def apply_update(self, grad, client_id, timestamp):
        grad *= np.float32(self.lr)
        self.params -= grad


class WritesIntoItToo(ASGD):
    def apply_update(self, grad, client_id, timestamp):
        grad *= np.float32(self.hyper.lr)
        self.params -= grad
        self.timestamp += 1


class Parts:
    def init(self, clients, tensors, streams, stream):
        self.tensors = len(tensors)

    def passes(self, step, client, statistics):
        return [(step + client + tensor) % 3 == 0 for tensor in range(self.tensors)]


class Sampled(Keeps):
    def apply_update(self, grad, client_id, timestamp):
        # As a profiler in another thread does: hold this frame for a moment after its return.
        frames = [sys._getframe()]
        threading.Timer(0.02, frames.clear).start()
        self.params -= np.float32(self.lr) * grad


class Backwards(Uniform):
    def choose(self, step):
        client = super().choose(step)
        return client if step % 2 else self._clients - 1 - client
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_word.py").write_text(BASE + OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


Simulate = Callable[..., Result]
WAYS: list[dict[str, Any]] = [
    {"path": "snapshots"},
    {"path": "snapshots", "window": 1},
    {},
    {"path": "hand"},
    {"path": "fused"},
    {"backend": "numpy"},
]


def run_of(server: str) -> dict[str, Any]:
    return {"server": {"name": f"own_word:{server}", "lr": 0.05}, "iterations": 60, "evaluation": {"every": 7}}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    "server",
    [
        "Compiles", "ReplacesTheKernel", "ReplacesTheRule", "OnTheInstance", "HandsOutOnTheInstance", "Property",
        "StopsEarly", "DeniesIt", "Descends",
    ],
)  # fmt: skip
def test_gets_whole_gradients(server: str, simulate: Simulate) -> None:
    result = simulate(run_of(server))
    assert result.summary["path"] == ("snapshots" if server == "HandsOutOnTheInstance" else "hand")
    check_same(result, simulate(run_of(server) | {"path": "snapshots"}))
    if server not in {"StopsEarly", "Descends", "Property", "ReplacesTheRule"}:
        assert result.summary["digest"] != simulate(run_of("Base")).summary["digest"]
    if server == "HandsOutOnTheInstance":
        with pytest.raises(FredsimError, match="path is hand; the server says what a client fetches"):
            simulate(run_of(server) | {"path": "hand"})
    with pytest.raises(FredsimError, match=f"path is fused; {server} "):
        simulate(run_of(server) | {"path": "fused"})


def test_finiteness_is_measured_where_a_class_may_not_say_it(simulate: Simulate) -> None:
    changes = run_of("SaysNothing") | {"server": {"name": "own_word:SaysNothing", "lr": 1e30}}
    one, other = (simulate(changes | way) for way in ({"backend": "numba"}, {"backend": "numpy"}))
    check_same(one, other)
    assert one.summary["status"] == "diverged"


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("ReleasesEarly", "reply: releases clients 1 pushes before the one that pushes_until_release named"),
        ("ReleasesOthers", "which computes; to have it begin anew, name it in restarted"),
        ("Moves", "params: changed while timestamp stayed at"),
        ("Keeps", "apply_update: keeps grad, or a view of it, which is overwritten; keep grad.copy()"),
        ("KeepsAView", "apply_update: keeps grad, or a view of it, which is overwritten; keep grad.copy()"),
    ],
)
def test_a_broken_word_is_an_error_whatever_the_window(
    server: str, says: str, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fredsim.plugins.guarded.PAUSES", (0,))  # no profiler runs beside
    for window in (None, 1, 3):
        for backend in ("numba", "numpy"):
            with pytest.raises(FredsimError) as caught:
                simulate(run_of(server) | {"window": window, "backend": backend})
            assert says in str(caught.value)


EXCHANGES: dict[str, dict[str, Any]] = {
    "applied again": {"push": {"every": 3}},
    "in parts": {"push": {"own_word:Parts": {}}},
    "steps by itself": {"fetch": {"every": 2}, "replica": True},
}


@pytest.mark.parametrize(
    ("server", "exchange"),
    [
        *(
            (server, exchange)
            for server in ("KeepsACopy", "WritesIntoIt")
            for exchange in ("applied again", "in parts")
        ),
        *(("WritesIntoItToo", exchange) for exchange in EXCHANGES),  # of these servers the one that has a rate
    ],
)
def test_what_may_be_done_with_a_gradient(server: str, exchange: str, simulate: Simulate) -> None:
    """A push that is applied again is the one that the client sent, too; so is the one that it steps by itself."""
    changes = run_of(server) | {"dispatcher": EXCHANGES[exchange]}
    reference = simulate(changes)
    for way in ({"window": 1}, {"backend": "numpy"}):
        check_same(reference, simulate(changes | way))
    if server != "KeepsACopy":
        assert reference.summary["digest"] == simulate(changes | run_of("Asgd")).summary["digest"]


def test_what_a_profiler_holds_is_not_kept(simulate: Simulate) -> None:
    changes = {"iterations": 5, "evaluation": {"every": 5}}
    sampled, reference = (simulate(run_of(server) | changes) for server in ("Sampled", "Asgd"))
    check_same(sampled, reference)


def test_a_dispatcher_derived_from_one_of_ours_chooses_itself(simulate: Simulate) -> None:
    changes = {"dispatcher": {"name": "own_word:Backwards"}, "server": {"name": "asgd", "lr": 0.05}}
    reference = simulate(changes | {"path": "snapshots"})
    check_same(reference, simulate(changes | {"path": "hand"}))
    usual = simulate({"server": {"name": "asgd", "lr": 0.05}, "path": "snapshots"})
    assert usual.summary["digest"] != reference.summary["digest"]


def test_a_statistic_that_overflowed_and_vanished(simulate: Simulate, tmp_path: Path) -> None:
    """`printed` FASGD: n = ∞ takes v to 0, and then a gradient of 0 gives 0/0."""
    rng = np.random.default_rng(0)
    x = rng.random((400, 6)).astype(np.float32)
    x[:, 0] = np.where(rng.random(400) < 0.02, 1e20, 0)
    y = rng.integers(0, 3, 400)
    np.savez(tmp_path / "huge.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    changes = {
        "data": {"name": f"npz:{tmp_path / 'huge.npz'}"},
        "model": {"hidden": [], "init": "zeros"},
        "clients": {"count": 3, "batch_size": 1},
        "iterations": 200,
        "evaluation": {"every": 50},
    }
    for server in (
        {"name": "fasgd", "variant": "printed", "beta": 0.01, "lr": 1e-3},
        {"name": "fasgd", "gamma": 0.0, "lr": 1e-30},
        {"name": "fasgd", "beta": 0.0, "lr": 1e-30},
        {"name": "rmsprop", "decay": 0.0, "lr": 1e-30},
    ):
        reference = simulate(changes | {"server": server, "path": "snapshots"})
        for way in WAYS[2:]:
            check_same(reference, simulate(changes | {"server": server} | way))
