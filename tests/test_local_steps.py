"""Clients that take several steps before they push, servers that restart clients, against loops written out here."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.numerics.oracle import tree_sum
from fredsim.runs.folder.results import Result
from fredsim.simulation.schedule.length import Interval

Simulate = Callable[..., Result]
Refused = Callable[..., None]
Array = NDArray[np.float32]
STEPS, COUNT = 40, 8


class Local:
    """Clients that take k local steps, from what they hold, by the rate at the timestamp of what they hold."""

    def __init__(
        self, plain: ModuleType, sampling: str, k: int, lr: float, schedule: Callable[[int], float] | None = None
    ) -> None:
        self.world = plain.World(sampling=sampling, batch_size=2)
        self.k, self.lr, self.schedule = k, np.float32(lr), schedule
        self.held = [self.world.start.copy() for _ in range(COUNT)]
        self.stamps, self.numbers = [0] * COUNT, [0] * COUNT

    def work(self, client: int, iteration: int) -> tuple[Array, Array, Array]:
        """The summed gradients, the summed steps −(α·g), and where they lead."""
        x, grads, delta = self.held[client].copy(), np.zeros_like(self.held[client]), np.zeros_like(self.held[client])
        lr = self.lr if self.schedule is None else np.float32(self.schedule(self.stamps[client]))
        for j in range(self.k):
            sub, own = iteration * self.k + j, self.numbers[client] * self.k + j
            g = self.world.gradient(x, sub, client, own)
            grads, delta, x = grads + g, delta - lr * g, x - lr * g
        self.numbers[client] += 1
        return grads, delta, x

    def fetch(self, client: int, params: Array, timestamp: int) -> None:
        self.held[client], self.stamps[client] = params.copy(), timestamp


def compare(simulate: Simulate, local: Local, sampling: str, digests: list[str], **changes: Any) -> Result:
    clients = {"count": COUNT, "batch_size": 2, "sampling": sampling, "local_steps": local.k}
    clients |= changes.pop("clients", {})
    run = {"iterations": STEPS, "clients": clients, "evaluation": {"every": 1}, **changes}
    for window in (1, 5):  # test_bfasgd.py has the backends
        result = simulate({**run, "window": window})
        assert result.metrics["digest"].tolist()[1:] == digests
    return result


SAMPLING = pytest.mark.parametrize("sampling", ["sequential", "iid", "shuffled"])


@SAMPLING
@pytest.mark.parametrize("k", [1, 3])
def test_summed_gradients(simulate: Simulate, plain: ModuleType, sampling: str, k: int) -> None:
    """ASGD applies what the local steps' gradients sum to."""
    local = Local(plain, sampling, k, 0.05)
    theta, digests = local.world.start.copy(), []
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        theta = theta - local.lr * local.work(client, t)[0]
        local.fetch(client, theta, t + 1)
        digests.append(local.world.digest(theta))
    result = compare(simulate, local, sampling, digests, server={"name": "asgd", "lr": 0.05})
    assert result.summary["bytes_pushed"] == STEPS * 4840  # one vector, however many steps


def test_steps_of_a_rate_that_the_server_lowers(simulate: Simulate, plain: ModuleType) -> None:
    """Clients step by η at the timestamp of their fetch: averaged SGD in mode torch has a schedule of its own."""
    local = Local(plain, "iid", 3, 0.0, lambda t: 0.05 / (1 + 0.5 * 0.05 * t) ** 0.75)
    assert local.schedule is not None
    theta, digests = local.world.start.copy(), []
    for t in range(STEPS):
        eta, client = np.float32(local.schedule(t)), local.world.choose(t, range(COUNT))
        push = local.work(client, t)[0]
        theta = theta * np.float32(1 - 0.5 * np.float64(eta)) - eta * push
        local.fetch(client, theta, t + 1)
        digests.append(local.world.digest(theta))
    server = {"name": "averaged", "mode": "torch", "lr": 0.05, "lambd": 0.5}
    compare(simulate, local, "iid", digests, server=server)


FALLING = {"name": "step", "base": 0.25, "every": 5, "factor": 0.5}


def falling(t: int) -> float:
    return float(0.25 * 0.5 ** (t // 5))


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("server", "k"), [("asgd", 3), ("fedasync", 1), ("fedasync", 3), ("fedbuff", 3)])
def test_a_schedule_is_read_at_the_fetch(
    simulate: Simulate, plain: ModuleType, server: str, k: int, every: int, wait: bool
) -> None:
    """A client cannot know the rate of its arrival: it steps by that of the timestamp that it fetched last."""
    local = Local(plain, "iid", k, 0.0, falling)
    theta, digests = local.world.start.copy(), []
    fetched = [(theta, 0) for _ in range(COUNT)]
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        grads, delta, x = local.work(client, t)
        if server == "asgd":
            theta = theta - np.float32(falling(t)) * grads
        elif server == "fedasync":
            theta = np.float32(1 - 0.6) * theta + np.float32(0.6) * x
        else:
            theta = theta + np.float32(0.7) * delta
        if not wait:
            local.fetch(client, *fetched[client])
        if local.numbers[client] % every == 0:  # the client's own every-th fetch
            fetched[client] = theta, t + 1
            if wait:
                local.fetch(client, *fetched[client])
        digests.append(local.world.digest(theta))
    more: dict[str, Any] = {
        "asgd": {},
        "fedasync": {"mixing": 0.6, "rule": "constant"},
        "fedbuff": {"server_lr": 0.7, "buffer": 1, "weight": "constant"},
    }[server]
    dispatcher = {"name": "uniform", "wait": wait, "fetch": {"every": every}}
    compare(simulate, local, "iid", digests, server={"name": server, "lr": FALLING, **more}, dispatcher=dispatcher)


def test_restarted_clients_take_the_rate_of_their_new_start(simulate: Simulate, plain: ModuleType) -> None:
    local, threshold = Local(plain, "iid", 2, 0.0, falling), 4
    theta, timestamp, digests = local.world.start.copy(), 0, []
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        theta, timestamp = theta - np.float32(falling(timestamp)) * local.work(client, t)[0], timestamp + 1
        local.fetch(client, theta, timestamp)
        for other in range(COUNT):
            if timestamp - local.stamps[other] >= threshold:
                local.fetch(other, theta, timestamp)
                local.numbers[other] += 1
        digests.append(local.world.digest(theta))
    server = {"name": "ringmaster", "lr": FALLING, "threshold": threshold, "stop": True}
    compare(simulate, local, "iid", digests, server=server)


@pytest.mark.parametrize("fred", [True, False])
def test_a_replica_steps_by_the_rate_of_its_timestamp(simulate: Simulate, plain: ModuleType, fred: bool) -> None:
    """A client whose fetch is dropped knows the rate of its timestamp alone; `fred_timestamps` refreshes both."""
    local, fetches = Local(plain, "iid", 1, 0.0, falling), 3
    theta, digests = local.world.start.copy(), []
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        g = local.work(client, t)[0]
        theta = theta - np.float32(falling(t)) * g
        if local.numbers[client] % fetches == 0:
            local.fetch(client, theta, t + 1)
        else:
            local.stamps[client] = t + 1 if fred else local.stamps[client]
            local.held[client] = local.held[client] - np.float32(falling(local.stamps[client])) * g
        digests.append(local.world.digest(theta))
    dispatcher = {"name": "uniform", "fetch": {"every": fetches}, "replica": True, "fred_timestamps": fred}
    compare(simulate, local, "iid", digests, server={"name": "asgd", "lr": FALLING}, dispatcher=dispatcher)


OWN_RATE = """
import numpy as np


class Plain:
    pushes = "delta"

    def init(self, params, clients):
        self.params, self.timestamp, self.seen = params.copy(), 0, 0

    def rate(self):
        return 0.1 / (1 + self.seen)

    def apply_update(self, grad, client_id, timestamp):
        self.seen += 1
        if self.seen % 2 == 0:
            self.params += grad
            self.timestamp += 1
"""


def test_a_rate_that_is_no_schedule(
    simulate: Simulate, plain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's own `rate` may change between two updates: the client takes the one that its fetch found."""
    (tmp_path / "rate_of_pushes.py").write_text(OWN_RATE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    local = Local(plain, "iid", 2, 0.0)
    theta, digests, rates = local.world.start.copy(), [], [0.1] * COUNT
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        local.lr = np.float32(rates[client])
        delta = local.work(client, t)[1]
        theta = theta + delta if t % 2 else theta
        local.fetch(client, theta, (t + 1) // 2)
        rates[client] = 0.1 / (2 + t)
        digests.append(local.world.digest(theta))
    compare(simulate, local, "iid", digests, server={"name": "rate_of_pushes:Plain"})


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        ({"rule": "constant"}, lambda tau: 1.0),
        ({"rule": "polynomial", "a": 0.5}, lambda tau: (tau + 1) ** -0.5),
        ({"rule": "polynomial", "a": 2.0}, lambda tau: (tau + 1.0) ** -2.0),
        ({"rule": "hinge", "a": 10.0, "b": 4.0}, lambda tau: 1.0 if tau <= 4 else 1 / (10 * (tau - 4) + 1)),
    ],
    ids=["constant", "polynomial 0.5", "polynomial 2", "hinge"],
)
@pytest.mark.parametrize(("sampling", "k"), [("sequential", 3), ("iid", 3), ("iid", 1)])
def test_fedasync(
    simulate: Simulate, plain: ModuleType, sampling: str, k: int, rule: dict[str, Any], share: Callable[[int], float]
) -> None:
    """θ ← (1 − a)θ + a·x, a = mixing·s(τ) rounded once."""
    local = Local(plain, sampling, k, 0.1)
    theta, digests = local.world.start.copy(), []
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        x, a = local.work(client, t)[2], 0.6 * share(t - local.stamps[client])
        theta = np.float32(1 - a) * theta + np.float32(a) * x
        local.fetch(client, theta, t + 1)
        digests.append(local.world.digest(theta))
    compare(simulate, local, sampling, digests, server={"name": "fedasync", "lr": 0.1, "mixing": 0.6, **rule})


@pytest.mark.parametrize(("sampling", "k"), [("sequential", 3), ("iid", 3), ("iid", 1)])
@pytest.mark.parametrize("buffer", [1, 3, 5])
def test_fedbuff(simulate: Simulate, plain: ModuleType, sampling: str, k: int, buffer: int) -> None:
    """θ ← θ + η (Σ Δ/√(1+τ))/K, by the contract's tree; clients go on without waiting for the buffer."""
    local = Local(plain, sampling, k, 0.1)
    theta, timestamp, digests, waiting = local.world.start.copy(), 0, [], list[Array]()
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        tau = timestamp - local.stamps[client]
        waiting.append(np.float32(1 / np.sqrt(1.0 + tau)) * local.work(client, t)[1])
        if len(waiting) == buffer:
            theta = theta + np.float32(0.7) * (tree_sum(np.stack(waiting)) / np.float32(buffer))
            timestamp, waiting = timestamp + 1, []
        local.fetch(client, theta, timestamp)
        digests.append(local.world.digest(theta))
    server = {"name": "fedbuff", "lr": 0.1, "server_lr": 0.7, "buffer": buffer}
    result = compare(simulate, local, sampling, digests, server=server)
    assert result.summary["updates"] == STEPS // buffer


@pytest.mark.parametrize(("sampling", "period"), [("sequential", 3), ("iid", 4), ("shuffled", 1)])
def test_easgd(simulate: Simulate, plain: ModuleType, sampling: str, period: int) -> None:
    """d = a(x − x̃); x ← x − d, x̃ ← x̃ + d; the period alone sets the clients' local steps."""
    local = Local(plain, sampling, period, 0.1)
    centre, digests = local.world.start.copy(), []
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        x = local.work(client, t)[2]
        d = np.float32(0.2) * (x - centre)
        local.held[client], centre = x - d, centre + d
        digests.append(local.world.digest(centre))
    server = {"name": "easgd", "lr": 0.1, "alpha": 0.2, "period": period}
    for steps in (1, period):
        compare(simulate, local, sampling, digests, server=server, clients={"local_steps": steps})


@pytest.mark.parametrize("sampling", ["sequential", "iid"])
@pytest.mark.parametrize(("threshold", "k"), [(1, 1), (4, 1), (6, 2), (1000, 1)])
def test_ringmaster_restarts_clients(
    simulate: Simulate, plain: ModuleType, sampling: str, threshold: int, k: int
) -> None:
    """Whoever falls `threshold` updates behind begins anew at the current parameters; its work takes a number."""
    local = Local(plain, sampling, k, 0.05)
    theta, timestamp, digests, fetches = local.world.start.copy(), 0, [], 0
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        assert timestamp - local.stamps[client] < threshold
        theta, timestamp = theta - local.lr * local.work(client, t)[0], timestamp + 1
        local.fetch(client, theta, timestamp)
        fetches += 1
        for other in range(COUNT):
            if timestamp - local.stamps[other] >= threshold:
                local.fetch(other, theta, timestamp)
                local.numbers[other] += 1
                fetches += 1
        digests.append(local.world.digest(theta))
    server = {"name": "ringmaster", "lr": 0.05, "threshold": threshold, "stop": True}
    result = compare(simulate, local, sampling, digests, server=server)
    assert result.summary["fetches"] == fetches
    assert result.summary["bytes_fetched"] == 4840 * fetches
    assert result.staleness["staleness"].max() < threshold


def test_restarted_clients_that_do_not_wait(simulate: Simulate, plain: ModuleType) -> None:
    """They begin anew from what they fetch with the restart; the others compute on from what they fetched before.

    Who falls behind is told by what each computes from, not by what it fetched last.
    """
    local, threshold = Local(plain, "iid", 1, 0.05), 4
    theta, timestamp, digests = local.world.start.copy(), 0, []
    fetched = [(local.world.start.copy(), 0) for _ in range(COUNT)]
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        g, begun = local.work(client, t)[0], local.stamps[client]
        local.fetch(client, *fetched[client])
        if timestamp - begun < threshold:
            theta, timestamp = theta - local.lr * g, timestamp + 1
            behind = [i for i in range(COUNT) if timestamp - local.stamps[i] >= threshold and i != client]
        else:
            behind = []
        for other in (client, *behind):
            fetched[other] = theta.copy(), timestamp
        for other in behind:
            local.fetch(other, theta, timestamp)
            local.numbers[other] += 1
        digests.append(local.world.digest(theta))
    server = {"name": "ringmaster", "lr": 0.05, "threshold": threshold, "stop": True}
    result = compare(simulate, local, "iid", digests, server=server, dispatcher={"wait": False})
    assert STEPS // 2 < result.summary["updates"] == timestamp < STEPS


def test_ringmaster_without_stop(simulate: Simulate, plain: ModuleType) -> None:
    """What is too stale is thrown away, and its client goes on."""
    local = Local(plain, "iid", 1, 0.05)
    theta, timestamp, digests = local.world.start.copy(), 0, []
    for t in range(STEPS):
        client = local.world.choose(t, range(COUNT))
        g = local.work(client, t)[0]
        if timestamp - local.stamps[client] < 4:
            theta, timestamp = theta - local.lr * g, timestamp + 1
        local.fetch(client, theta, timestamp)
        digests.append(local.world.digest(theta))
    server = {"name": "ringmaster", "lr": 0.05, "threshold": 4}
    result = compare(simulate, local, "iid", digests, server=server)
    assert result.summary["updates"] == timestamp < STEPS


def test_the_loss_is_of_every_local_step(simulate: Simulate) -> None:
    """Steps too small to matter: k local steps see the k·µ samples that k times the clients see without them."""
    clients = {"count": 1, "batch_size": 4}
    one = simulate({"iterations": 10, "clients": clients | {"local_steps": 2}, "server": {"name": "asgd", "lr": 1e-30}})
    two = simulate({"iterations": 20, "clients": clients, "server": {"name": "asgd", "lr": 1e-30}})
    assert one.metrics["train_loss"].iloc[-1] == pytest.approx(two.metrics["train_loss"].iloc[-1], rel=1e-12)


OWN_STEPS = """
class Plain:
    local_steps = 4

    def init(self, params, clients):
        self.params = params.copy()

    def rate(self):
        return 0.01

    def apply_update(self, grad, client_id, timestamp):
        self.params -= 0.01 * grad
"""
#: How many steps clients take, and what says so.
STEPPING = {
    "the clients": (3, {"clients": {"count": 4, "batch_size": 3, "local_steps": 3}}),
    "more than a pass": (50, {"clients": {"count": 4, "batch_size": 3, "local_steps": 50}}),
    "easgd": (7, {"server": {"name": "easgd", "lr": 0.1, "period": 7}}),
    "a server of one's own": (4, {"server": {"name": "steps_of_its_own:Plain"}}),
    "none": (1, {}),
}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(("k", "changes"), STEPPING.values(), ids=STEPPING)
def test_epochs_count_what_clients_process(
    k: int, changes: dict[str, Any], every: int, simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70 rows are 23 minibatches of 3; a row is due, and the run ends, at the push that completes a pass."""
    (tmp_path / "steps_of_its_own.py").write_text(OWN_STEPS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    epochs, batches, pushes, rows = 5, 0, 0, [0]
    while batches < epochs * 23:
        before, batches, pushes = batches, batches + k, pushes + 1
        if batches // (23 * every) > before // (23 * every) or batches >= epochs * 23:
            rows.append(pushes)
    base = {"data": {"name": "digits", "train": 70}, "clients": {"count": 4, "batch_size": 3}}
    evaluation = {"every": every, "unit": "epochs"}
    result = simulate(base | changes | {"epochs": epochs, "evaluation": evaluation})
    assert result.metrics["iteration"].tolist() == rows
    assert result.summary["iterations"] == pushes
    same = simulate(base | changes | {"iterations": pushes, "evaluation": evaluation, "path": "snapshots"})
    assert same.metrics["iteration"].tolist() == rows
    assert same.summary["digest"] == result.summary["digest"]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("every", [1, 5, 23, 46])
def test_how_many_rows_are_due(steps: int, every: int) -> None:
    """Counted one by one: how many rows a run has, and how far off the next one is."""
    interval = Interval(every, "iterations", steps)
    due = [n for n in range(1, 200) if n * steps // every > (n - 1) * steps // every]
    for n in range(1, 150):
        assert interval.due(n, 0, 0) == (n in due)
        assert interval.events_until_due(n, 0) == next(after for after in due if after > n) - n
        assert interval.rows(n, 0) == 1 + len({d for d in due if d <= n} | {n})


CONFLICTS = {
    "clients.local_steps is 3; the server easgd sets 10": ("server={name: easgd, lr: 0.1}", "clients.local_steps=3"),
    "dispatcher.replica is true; it goes with clients that push single gradients only": (
        "dispatcher.replica=true",
        "clients.local_steps=2",
    ),
    "push single gradients only: leave out it, or clients.clip and clients.noise": (
        "dispatcher.replica=true",
        "clients.clip=1.0",
        "clients.noise=0.1",
    ),
    "push single gradients only: leave out it, or clients.optimizer": (
        "dispatcher.replica=true",
        "clients.optimizer=adamw",
    ),
    "clients.local_steps is given; the server's clients are replicas, which push single gradients only: leave this": (
        "server={name: downpour, lr: 0.1}",
        "clients.local_steps=2",
    ),
    "stages is given; the server's clients are replicas, and a stage has parameters of several ages": (
        "server={name: downpour, lr: 0.1}",
        "stages={cuts: [W2], delay: pipedream}",
    ),
    "clients.control_variates is true; the server's gate for pushes may drop a copy": (
        "server={name: bfasgd, lr: 0.1}",
        "clients.control_variates=true",
    ),
    "clients.fraction is 0.5; a client that was drawn must fetch, and dispatcher.fetch may drop it": (
        "dispatcher.fetch={every: 2}",
        "clients.fraction=0.5",
    ),
    "server.inner.n is 2; it must not exceed clients.count, 1; an inner server has one client": (
        "server={name: sync, inner: {name: soft_sync, n: 2, lr: 0.1}}",
    ),
    "dispatcher.wait is false; the server holds its clients": ("dispatcher.wait=false", "server.name=sync"),
    "clients.local_steps: is 0": ("clients.local_steps=0",),
    "clients.local_steps: is 1.5": ("clients.local_steps=1.5",),
    "server.period: is 0": ("server={name: easgd, lr: 0.1, period: 0}",),
    "server.mixing: is 0": ("server={name: fedasync, lr: 0.1, mixing: 0}",),
    "server.threshold: is required": ("server={name: ringmaster, lr: 0.1}",),
}


@pytest.mark.parametrize(("says", "overrides"), CONFLICTS.items(), ids=CONFLICTS)
def test_conflicts(says: str, overrides: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, *overrides, says=(says,))


def test_a_replica_of_clients_that_push_parameters(small_yaml: Path, refused: Refused) -> None:
    says = ("dispatcher.replica is true; it goes with clients that push single gradients only",)
    for server in ("fedasync", "fedbuff", "easgd"):
        refused("show", small_yaml, f"server.name={server}", "dispatcher.replica=true", says=says)


def test_a_user_server_for_local_steps_needs_a_rate(small_yaml: Path, refused: Refused) -> None:
    small_yaml.with_name("rateless.py").write_text(
        "class Plain:\n"
        "    def init(self, params, clients):\n"
        "        self.params = params\n"
        "    def apply_update(self, grad, client_id, timestamp):\n"
        "        pass\n",
        encoding="utf-8",
    )
    overrides = ("server={name: 'rateless:Plain'}", "clients.local_steps=2")
    refused("run", small_yaml, *overrides, "--quiet", "--out", "results", says=(", rate: the clients step by",))
