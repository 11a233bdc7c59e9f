"""What clients do besides SGD: each key against a formula written out here; what does not fit is refused by name."""

import math
import tracemalloc
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from itertools import count, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fredsim
from fredsim.config.resolution import resolve
from fredsim.dispatchers.local_steps import TaskSteps, VariedSteps
from fredsim.errors import ConfigError, SimulationError
from fredsim.numerics.elementary import pow64
from fredsim.numerics.oracle import tree_sum
from fredsim.numerics.streams import Stream, Streams, normal_quantile
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.live.live import refuse_what_workers_cannot
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import open_experiment, with_changes
from fredsim.runs.single.prepared import prepare
from fredsim.runs.single.run import Run
from fredsim.runs.verify.verify import verify
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.plugins.local_work import mean_of_samples
from tests.test_random_experiments import asked_often

Simulate = Callable[..., Result]
Refused = Callable[..., None]
Array = NDArray[np.float32]
F = np.float32
EVERY = {"evaluation": {"every": 1}}


def clients(**more: Any) -> dict[str, Any]:
    return {"clients": {"count": 4, "batch_size": 3, "sampling": "iid", **more}} | EVERY


def length(g: Array) -> float:
    wide = g.astype(np.float64)
    return math.sqrt(float(tree_sum(wide * wide)))


def limited(g: Array, limit: float) -> Array:
    return g * F(limit / length(g)) if length(g) > limit else g


class Loop:
    """ASGD whose clients take k steps; a run of it is compared row by row."""

    def __init__(self, plain: ModuleType, steps: int = 1, batch: int = 3) -> None:
        self.world, self.steps, self.batch = plain.World(clients=4, batch_size=batch, sampling="iid"), steps, batch
        self.held, self.numbers = [self.world.start] * 4, [0] * 4

    def digests(self, events: int, push: Callable[[int, Array, Callable[[Array, int], Array]], Array]) -> list[str]:
        """Apply `push(client, start, gradient)` times −1 at each event; gradient(x, k) is that of the task's step k."""
        theta, found = self.world.start.copy(), []
        for t in range(events):
            client = self.world.choose(t, range(4))

            def gradient(x: Array, k: int, client: int = client) -> Array:
                found: Array = self.world.gradient(x, 0, client, self.numbers[client] * self.steps + k)
                return found

            theta = theta - push(client, self.held[client], gradient)
            self.numbers[client] += 1
            self.held[client] = theta
            found.append(self.world.digest(theta))
        return found


def same(result: Result, digests: list[str]) -> None:
    assert result.metrics["digest"].tolist()[1:] == digests


ASGD = {"iterations": 12, "server": {"name": "asgd", "lr": 1.0}}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(simulate: Simulate, plain: ModuleType, keep: bool, nesterov: bool) -> None:
    """Nobody's velocity is another's; with decay, x first loses (α·w)·x."""
    loop, velocities = Loop(plain, 3), [np.zeros(1210, F)] * 4
    alpha, decay = F(0.05), F(float(F(0.05)) * 0.1)

    def push(client: int, start: Array, gradient: Callable[[Array, int], Array]) -> Array:
        x, v = start, velocities[client] if keep else np.zeros(1210, F)
        for k in range(3):
            g = gradient(x, k)
            v, x = F(0.9) * v + g, x - decay * x
            x = x - alpha * (g + F(0.9) * v if nesterov else v)
            v = np.where(np.abs(v) < 2.0**-62, F(0), v)
        velocities[client] = v
        return start - x

    optimizer = {"name": "momentum", "lr": 0.05, "nesterov": nesterov, "weight_decay": 0.1, "keep_state": keep}
    result = simulate(ASGD | clients(local_steps=3, optimizer=optimizer))
    same(result, loop.digests(12, push))
    assert result.summary["path"] == "snapshots"


def test_the_rate_of_the_server_and_differences_over_it(simulate: Simulate, plain: ModuleType) -> None:
    """Without an lr of its own, AdamW steps by the server's; its push, times α, goes as far as the client did."""
    loop, alpha = Loop(plain, 2), F(0.01)

    def push(_: int, start: Array, gradient: Callable[[Array, int], Array]) -> Array:
        x, m, s = start, np.zeros(1210, F), np.zeros(1210, F)
        for k in range(2):
            g, x = gradient(x, k), x - F(float(alpha) * 0.01) * x
            m, s = F(0.9) * m + F(1 - 0.9) * g, F(0.999) * s + F(1 - 0.999) * (g * g)
            hat1, hat2 = (F(1 - pow64(beta, k + 1)) for beta in (0.9, 0.999))
            x = x - (alpha * (m / hat1)) / (np.sqrt(s / hat2) + F(1e-8))
            m, s = (np.where(np.abs(one) < 2.0**-62, F(0), one) for one in (m, s))
        moved: Array = alpha * ((start - x) / alpha)
        return moved

    run = {"iterations": 12, "server": {"name": "asgd", "lr": 0.01}}
    same(simulate(run | clients(local_steps=2, optimizer="adamw")), loop.digests(12, push))


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", {"name": "sgd", "weight_decay": 0.1}], ids=str)
def test_at_a_rate_of_0_nobody_moves(simulate: Simulate, optimizer: Any) -> None:
    """A difference of 0 over a rate of 0 is 0: the parameters stand still from then on, and the run finishes."""
    server = {"name": "asgd", "lr": {"name": "cosine", "base": 0.05, "steps": 10}}
    run = {"iterations": 40, "server": server} | clients(local_steps=2, optimizer=optimizer)
    result = simulate(run)
    digests = result.metrics["digest"].tolist()
    assert result.summary["status"] == "finished"
    assert len(set(digests[:10])) == 10
    assert len(set(digests[10:])) == 1


def test_clipped_noised_and_drawn_toward_the_start(simulate: Simulate, plain: ModuleType) -> None:
    """Clipping first, then the noise, which depends on the client and the number of its gradient, then prox."""
    loop = Loop(plain, 2)

    def push(client: int, start: Array, gradient: Callable[[Array, int], Array]) -> Array:
        x, total = start, np.zeros(1210, F)
        for k in range(2):
            words = Streams(0).words(Stream.CLIENT_NOISE, np.arange(1210), loop.numbers[client] * 2 + k, client)
            g = limited(gradient(x, k), 0.8) + (normal_quantile(words) * 0.02).astype(F)
            g = g + F(0.3) * (x - start)
            x, total = x - F(0.1) * g, total + g
        return F(0.1) * total

    run = {"iterations": 12, "server": {"name": "asgd", "lr": 0.1}}
    given = clients(local_steps=2, clip=0.8, noise=0.02, prox=0.3)
    same(simulate(run | given), loop.digests(12, push))


def test_each_sample_is_clipped(simulate: Simulate, plain: ModuleType) -> None:
    """With one step a push is the gradient itself."""
    loop = Loop(plain)
    rows = loop.world._sampler.rows

    def push(client: int, start: Array, _: Callable[[Array, int], Array]) -> Array:
        samples = rows(np.zeros(1, int), np.array([client]), np.array([loop.numbers[client]]))[0]
        each = [limited(loop.world.engine.gradients([start], samples[None, i : i + 1])[0][0], 0.5) for i in range(3)]
        mean: Array = tree_sum(np.stack(each)) / F(3)
        return F(0.1) * mean

    run = {"iterations": 12, "server": {"name": "asgd", "lr": 0.1}}
    same(simulate(run | clients(clip_each_sample=0.5)), loop.digests(12, push))


def test_as_many_steps_as_fit_into_seconds(simulate: Simulate) -> None:
    """Clients of 1, 2 and 5 seconds: 4, 2 and 1 steps in 4 seconds, which take 4, 4 and 5; bytes are those of tasks."""
    pytest.importorskip("pyarrow")
    given = {"count": 3, "batch_size": 2, "sampling": "iid", "local_steps": {"seconds": 4.0}}
    clock = {"name": "clock", "compute": {"seconds": [1.0, 2.0, 5.0]}}
    result = simulate({"seconds": 20.0, "clients": given, "dispatcher": clock, "events": True})
    events = result.events
    assert events["time"].tolist() == [4, 4, 5, 8, 8, 10, 12, 12, 15, 16, 16, 20, 20, 20]
    assert events["client"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2]
    assert result.summary["bytes_pushed"] == 14 * 4840
    again = simulate({"seconds": 20.0, "clients": {**given, "local_steps": 4}, "dispatcher": clock})
    assert again.summary["iterations"] == 5 + 2 + 1  # of clients that all take four


def test_no_step_is_lost_by_rounding(simulate: Simulate) -> None:
    """Times of two digits, whole or not: 100 steps in 29 seconds each are 29 in 100, which both take 2,900."""
    for shortest, fastest, unit in product((7, 29, 57, 99), (3, 10, 98, 100), (1, 100)):
        own = range(shortest, 101)
        means = np.array([one / unit for one in own], np.float64)
        found = TaskSteps(VariedSteps(fastest=fastest), means, lambda clients, _: clients)
        steps = found(np.arange(len(own)), np.zeros(len(own), int)).tolist()
        assert steps == [max(fastest * shortest // one, 1) for one in own]
    given = {"count": 2, "batch_size": 1, "sampling": "iid", "local_steps": {"fastest": 100}}
    clock = {"name": "clock", "compute": {"seconds": [29.0, 100.0]}}
    arrived = [
        simulate({"seconds": s, "clients": given, "dispatcher": clock}).summary["iterations"] for s in (2899.0, 2900.0)
    ]
    assert arrived == [0, 2]


@pytest.mark.parametrize(("seconds", "steps"), [("5000", "5,000,000,000,000"), ("1e9", "1,000,000,000,000,000,000")])
def test_far_too_many_steps_fit_into_seconds(seconds: str, steps: str, small_yaml: Path, refused: Refused) -> None:
    """Of gradients that take a nanosecond each: 96 bytes a step, with 3 samples, are more than any machine has."""
    words = (f"clients.local_steps={{seconds: {seconds}}}", "clients.sampling=iid", "window=1", "--out", "out")
    clock = "dispatcher={name: clock, compute: {seconds: 1.0e-9}}"
    says = (f"client 0 has {steps} local steps in its task 0, as many as fit;", "lower clients.local_steps, or give")
    refused("run", small_yaml, clock, *words, says=says)


def test_a_fraction_of_asynchronous_clients(simulate: Simulate, plain: ModuleType) -> None:
    """Two of four are at work: after each arrival one of the three that are idle then is drawn, and fetches."""
    world, streams, idle, drawn = plain.World(clients=4, sampling="iid"), Streams(0), {0, 1, 2, 3}, 0
    theta, held, numbers, digests = world.start.copy(), [world.start] * 4, [0] * 4, []
    stamps, staleness, working = [0] * 4, [], set[int]()

    def draw() -> int:
        found: int = sorted(idle)[int(streams.below(len(idle), Stream.PARTICIPATION, 0, drawn))]
        idle.remove(found)
        working.add(found)
        return found

    for _ in range(2):
        draw()
        drawn += 1
    for t in range(30):
        client = world.choose(t, working)
        theta = theta - F(0.1) * world.gradient(held[client], t, client, numbers[client])
        numbers[client] += 1
        staleness.append(t - stamps[client])
        working.remove(client)
        idle.add(client)
        next_one = draw()
        drawn += 1
        held[next_one], stamps[next_one] = theta, t + 1
        digests.append(world.digest(theta))
    result = simulate({"iterations": 30} | clients(fraction=0.5))
    same(result, digests)
    assert result.metrics["staleness_mean"].tolist()[1:] == staleness
    assert result.summary["fetches"] == 30


def test_all_clients_at_work_are_as_without_the_key(simulate: Simulate) -> None:
    """A fraction that rounds to all of them draws the only idle client."""
    for server in ({"name": "sync", "lr": 0.1}, {"name": "asgd", "lr": 0.1}):
        whole, drawn = (simulate({"server": server} | clients(fraction=f)) for f in (1.0, 0.9))
        assert whole.summary["digest"] == drawn.summary["digest"]


ALL = {"iterations": 40, "server": {"name": "fedbuff", "lr": 0.1, "buffer": 3}}
WAYS: dict[str, dict[str, Any]] = {
    "kept": ALL | clients(local_steps=2, optimizer={"name": "adamw", "keep_state": True}, clip=1.0, fraction=0.5),
    "scaffold": ALL | clients(local_steps=3, control_variates=True, noise=0.01),
    "given up": ALL
    | clients(local_steps=2, optimizer={"name": "momentum", "keep_state": True})
    | {"dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}, "limit": 3.0}}},
    "copies that take time": ALL
    | clients(local_steps={"fastest": 3}, control_variates=True)
    | {
        "dispatcher": {
            "name": "clock", "compute": {"seconds": [1.0, 1.5, 2.0, 9.0]}, "link": {"latency": 0.3, "up": 9000.0},
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_backends_windows_and_stops(simulate: Simulate, tmp_path: Path, name: str) -> None:
    """The same digests in every row: of NumPy, numba with windows, and a run that was stopped four times."""
    run = WAYS[name]
    wanted = simulate({**run, "backend": "numpy"}).metrics["digest"].tolist()
    for window in (1, 4):
        assert simulate({**run, "window": window}).metrics["digest"].tolist() == wanted
    base: dict[str, Any] = {"data": {"name": "digits"}, "model": {"hidden": [16]}, "window": 1}
    experiment, place = resolve(base | run), tmp_path / "stopped"
    for least in (3, 5, 8, 6, 10**9):
        execute(experiment, place, stop=partial(asked_often, count(), least), policy=CheckpointPolicy(1e9))
    assert Result(place).metrics["digest"].tolist() == wanted
    assert verify(Result(place)) is None


def test_a_task_that_is_given_up_leaves_the_state_as_it_was(simulate: Simulate) -> None:
    """A client whose every other task is given up is where it would be without these tasks' steps."""
    steps: list[int] = []
    from fredsim.optimizers.momentum import Momentum

    class Noting(Momentum):
        def coefficients(self, alpha: float, k: int) -> Any:
            steps.append(k)
            return super().coefficients(alpha, k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fredsim.optimizers.OPTIMIZERS._found, "momentum", Noting)  # type: ignore[attr-defined]
        clock = {"name": "clock", "compute": {"noise": {"name": "exponential"}, "limit": 0.7}}
        optimizer = {"name": "momentum", "keep_state": True}
        given = {"count": 1, "batch_size": 2, "sampling": "iid", "optimizer": optimizer}
        result = simulate({"clients": given, "dispatcher": clock, "iterations": 20})
    assert steps == list(range(result.summary["pushes"]))
    assert 0 < result.summary["pushes"] < 20


def test_each_client_steps_by_the_rate_of_its_fetch(simulate: Simulate, plain: ModuleType) -> None:
    """Also those that first arrive when the schedule is elsewhere, after a client whose first tasks were given up."""
    pytest.importorskip("pyarrow")
    limit = {"seconds": [1.0, 30.0, 30.0, 30.0], "noise": {"name": "exponential"}, "limit": [0.7, 1e3, 1e3, 1e3]}
    optimizer = {
        "name": "momentum", "keep_state": True, "lr": {"name": "step", "base": 0.05, "every": 2, "factor": 0.5}
    }  # fmt: skip
    run = ASGD | clients(local_steps=2, optimizer=optimizer) | {"iterations": 80, "events": True}
    result = simulate(run | {"dispatcher": {"name": "clock", "compute": limit}})
    events = result.events
    assert events["given_up"][0]
    assert all(events["timestamp"][events["client"] == client].iloc[0] >= 5 for client in (1, 2, 3))
    world = plain.World(clients=4, batch_size=3, sampling="iid")
    theta, stamp, digests = world.start.copy(), 0, []
    held, stamps, kept, numbers = [theta] * 4, [0] * 4, [np.zeros(1210, F)] * 4, [0] * 4
    for client, given_up in zip(events["client"], events["given_up"], strict=True):
        if not given_up:
            x, alpha = held[client], F(0.05 * 0.5 ** (stamps[client] // 2))
            for k in range(2):
                kept[client] = F(0.9) * kept[client] + world.gradient(x, 0, client, numbers[client] * 2 + k)
                x = x - alpha * kept[client]
                kept[client] = np.where(np.abs(kept[client]) < 2.0**-62, F(0), kept[client])
            theta, stamp = theta - (held[client] - x), stamp + 1
        numbers[client] += 1
        held[client], stamps[client] = theta, stamp
        digests.append(world.digest(theta))
    same(result, digests)


CANCELLED: dict[str, Any] = {
    "iterations": 100,
    "server": {"name": "ringmaster", "lr": 0.05, "threshold": 3, "stop": True},
    "dispatcher": {
        "name": "clock", "compute": {"seconds": [1.0, 1.0, 2.0, 3.0]}, "link": {"latency": [2.5, 0.5, 0.5, 0.5]}
    },
}  # fmt: skip
ALL_PASS = {"push": {"every": {"k": 1}}}


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_a_task_whose_push_is_cancelled_was_done(simulate: Simulate, optimizer: str) -> None:
    """What a client keeps has changed when its push was on its way, whether a gate looked at that or not."""
    run = CANCELLED | clients(local_steps=3, optimizer={"name": optimizer, "keep_state": True})
    plain, gated = simulate(run), simulate(run | {"dispatcher": CANCELLED["dispatcher"] | ALL_PASS})
    assert plain.metrics["digest"].tolist() == gated.metrics["digest"].tolist()
    assert plain.summary["pushes"] > 100  # some never arrived


@pytest.mark.parametrize("server", ["sync", "fedasync"])
def test_a_trace_of_drawn_clients_is_followed(simulate: Simulate, server: str) -> None:
    """A recorded order of the clients that were drawn gives the digests of the run."""
    pytest.importorskip("pyarrow")
    run = {"server": {"name": server, "lr": 0.1}, "events": True} | clients(fraction=0.5, local_steps=2)
    recorded = simulate(run | {"dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}}}})
    file = str(recorded.folder / "events.parquet")
    followed = simulate(run | {"dispatcher": {"name": "trace", "file": file}})
    same(followed, recorded.metrics["digest"].tolist()[1:])


def test_what_is_left_out_changes_no_digest(digits_experiment: dict[str, Any]) -> None:
    """`sgd` by the server's rate is what there is without an optimizer."""
    plain, spelled = (
        resolve(digits_experiment | {"clients": digits_experiment["clients"] | more})
        for more in ({}, {"optimizer": "sgd", "prox": 0.0, "fraction": 1.0, "pushes": None})
    )
    assert plain.digest == spelled.digest
    assert set(plain.plain()["clients"]) == {"count", "batch_size", "sampling", "local_steps"}
    base = {"name": "bowl", "iterations": 3, "clients": {"count": 2}, "server": {"name": "asgd", "lr": 0.1}}
    keys = {"name": "tests.own_problems:Bowl", "size": 3, "noise": 0.5}
    given = [resolve(base | {"problem": dict(order)}) for order in (keys.items(), reversed(keys.items()))]
    assert given[0].digest == given[1].digest  # in whatever order the arguments of a class stand


VGG: dict[str, Any] = {"model": {"name": "torch:fredsim.zoo:vgg", "numerics": "native", "buffers": "last"}}
CLOCK: dict[str, Any] = {"dispatcher": {"name": "clock"}}
SYNC: dict[str, Any] = {"server": {"name": "sync", "lr": 0.1}}


@pytest.mark.parametrize(("changes", "message"), [
    (clients(fraction=0.0), "clients.fraction: is 0.0; it should be greater than 0"),
    (clients(fraction=1.5), "clients.fraction: is 1.5; it should be less than or equal to 1"),
    (clients(prox=-0.1), "clients.prox: is -0.1; it should be greater than or equal to 0"),
    (clients(clip=0.0), "clients.clip: is 0.0; it should be greater than 0"),
    (clients(noise=-1.0), "clients.noise: is -1.0; it should be greater than or equal to 0"),
    (clients(optimizer="adamv"), "clients.optimizer.name: unknown optimizer 'adamv'; did you mean 'adamw'?"),
    (clients(optimizer={"name": "adamw", "beta": 1}), "clients.optimizer.beta: unknown key; did you mean 'beta2'?"),
    (clients(optimizer={"name": "adamw", "beta1": 1.0}), "clients.optimizer.beta1: is 1.0; it should be less than 1"),
    (clients(optimizer={"name": "sgd", "keep_state": True}), "clients.optimizer.keep_state: unknown key"),
    (clients(local_steps={"fastest": 4}), "clients.local_steps is {'fastest': 4, 'by': 'speed'}; the dispatcher unif"),
    (CLOCK | {"clients": {"count": 4, "batch_size": 3, "local_steps": {"seconds": 1.0}}}, "give iid, or a partition"),
    (clients(pushes="gradients", optimizer="momentum"), "pushes is gradients, and optimizer is momentum"),
    (clients(pushes="difference") | {"server": {"name": "fedbuff", "lr": 0.1}}, "the server fedbuff asks for delta"),
    (clients(control_variates=True, prox=0.1), "control_variates is true, and prox is 0.1; give one of them"),
    (clients(control_variates=True, optimizer="adamw"), "SCAFFOLD's steps are those of sgd"),
    (clients(control_variates=True) | {"compress": {"name": "top_k", "k": 0.1}}, "control variates are not compressed"),
    (clients(control_variates=True) | {"dispatcher": {"push": {"every": {"k": 2}}}}, "dispatcher.push may drop a copy"),
    (clients(fraction=0.5) | {"dispatcher": {"fetch": {"every": {"k": 2}}}}, "a client that was drawn must fetch"),
    (clients(clip_each_sample=0.5) | VGG,
     "model.buffers is last, which is of whole minibatches"),
    (clients(fraction=0.5) | {"dispatcher": {"wait": False}}, "clients never wait to be drawn"),
    (clients(fraction=0.5) | {"server": {"name": "malenia", "lr": 0.1}}, "the server restarts clients"),
    (clients(fraction=0.5) | {"server": {"name": "soft_sync", "lr": 0.1, "n": 1}}, "does not say that it can do with"),
    (clients(fraction=0.5) | {"server": {"name": "easgd", "lr": 0.1}}, "which one that is not drawn loses"),
    (clients(fraction=0.5) | {"server": {"name": "sync", "lr": 0.1, "aggregate": 3}}, "the clients at work (clients"),
])  # fmt: skip
def test_what_does_not_fit_is_one_message(
    digits_experiment: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    from fredsim.config.document import Document

    data = digits_experiment | changes
    if "torch:" in str(data):
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    with pytest.raises(ConfigError) as caught:
        open_experiment(data, Document(data).place)
    assert message in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [
    {"optimizer": {"name": "adamw", "keep_state": True}}, {"control_variates": True}, {"fraction": 0.5},
    {"local_steps": {"fastest": 3, "by": "speed"}},
], ids=str)  # fmt: skip
def test_a_live_run_refuses_what_its_workers_cannot_do(digits_experiment: dict[str, Any], more: dict[str, Any]) -> None:
    experiment = resolve(digits_experiment | clients(**more))
    with pytest.raises(ConfigError, match=f"clients.{next(iter(more))}.*compute for any client"):
        refuse_what_workers_cannot(experiment)
    refuse_what_workers_cannot(with_changes(experiment, clients(optimizer="adamw", prox=0.1)))


OWN = """
import numpy as np


class Local:
    def __init__(self, lr):
        self.lr, self.kept = np.float32(lr), {}

    def begin(self, client, params):
        self.kept.setdefault(client, np.zeros_like(params))
        %s

    def step(self, client, params, grad, k):
        self.kept[client] = np.float32(0.9) * self.kept[client] + grad
        %s
"""
STEP = "return params - self.lr * self.kept[client]"


def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str = STEP, begin: str = "") -> dict[str, Any]:
    """Return the clients of a user's optimizer."""
    name = f"own_local_{abs(hash((step, begin)))}"
    (tmp_path / f"{name}.py").write_text(OWN % (begin, step), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return clients(local_steps=2, optimizer={"name": f"{name}:Local", "lr": 0.05})


@pytest.mark.parametrize("step", [STEP, "params -= self.lr * self.kept[client]"], ids=["returned", "in place"])
def test_an_own_optimizer_is_the_same_rule(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A heavy ball in a user's class gives the bits of `momentum`, also when it goes on from checkpoints."""
    wanted = simulate(ASGD | clients(local_steps=2, optimizer={"name": "momentum", "lr": 0.05, "keep_state": True}))
    run = ASGD | own(tmp_path, monkeypatch, step)
    assert simulate(run).summary["digest"] == wanted.summary["digest"]
    experiment = resolve({"data": {"name": "digits"}, "model": {"hidden": [16]}} | run)
    for least in (2, 3, 10**9):
        execute(experiment, tmp_path / "at", stop=partial(asked_often, count(), least), policy=CheckpointPolicy(1e9))
    assert Result(tmp_path / "at").summary["digest"] == wanted.summary["digest"]


DERIVED = """
import numpy as np

from fredsim.optimizers import Momentum, Optimizer


class Local(%s):
    def begin(self, client, params):
        pass

    def step(self, client, params, grad, k):
        return params - np.float32(0.05) * grad
"""


@pytest.mark.parametrize("base", ["Optimizer", "Momentum"])
def test_an_own_optimizer_may_be_derived_from_one_of_fredsims(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    """Its own steps are taken, here those of `sgd`, not those of its base."""
    (tmp_path / f"derived_of_{base}.py").write_text(DERIVED % base, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    wanted, found = (
        simulate(ASGD | clients(local_steps=2, optimizer=optimizer))
        for optimizer in ({"name": "sgd", "lr": 0.05}, {"name": f"derived_of_{base}:Local"})
    )
    assert found.metrics["digest"].tolist() == wanted.metrics["digest"].tolist()


def test_an_own_optimizer_of_a_short_name_has_no_known_rate_either(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differences over a rate that nobody knows would all be 0."""
    given = own(tmp_path, monkeypatch)["clients"]
    optimizer = given["optimizer"]
    point = EntryPoint("theirs", optimizer["name"], "fredsim.optimizers")
    points = {"fredsim.optimizers": [point]}
    monkeypatch.setattr("fredsim.config.registry.entry_points", lambda group: points.get(group, []))
    for name in ("theirs", optimizer["name"]):
        changes = {"optimizer": optimizer | {"name": name}, "pushes": "difference_over_lr"}
        with pytest.raises(ConfigError, match=r"clients.pushes is difference_over_lr; a class of your own has no"):
            simulate(ASGD | {"clients": given | changes})


COUNTING = """
import numpy as np


class Counting:
    %s

    def __init__(self):
        self.tasks = 0

    def begin(self, client, params):
        self.tasks += 1

    def step(self, client, params, grad, k):
        return params - np.float32(0.01 * (self.tasks %% 7)) * grad
"""


def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, state: str = "pass") -> dict[str, Any]:
    """Return an optimizer of the user's whose steps depend on how many tasks of all clients it has seen."""
    (tmp_path / f"{name}.py").write_text(COUNTING % state, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return {"name": f"{name}:Counting"}


def test_an_own_optimizer_is_called_in_the_order_in_which_pushes_are_sent(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: ModuleType
) -> None:
    """Client 0 sends at 1 s what arrives at 6 s, after four of client 1; a gate that drops nothing changes nothing."""
    optimizer = counting(tmp_path, monkeypatch, "own_counting_tasks")
    clock: dict[str, Any] = {"name": "clock", "compute": {"seconds": 1.0}, "link": {"latency": [5.0, 0.0]}}
    server = {"name": "asgd", "lr": 0.5}
    run = {"iterations": 30, "server": server, "dispatcher": clock} | clients(optimizer=optimizer, count=2)
    found = [simulate(run | {"dispatcher": clock | more}).metrics["digest"].tolist() for more in ({}, ALL_PASS)]
    assert found[0] == found[1]
    world = plain.World(clients=2, batch_size=3, sampling="iid")
    theta, digests, number, tasks = world.start.copy(), [], [0, 0], 0
    held, sent = [theta.copy(), theta.copy()], dict[int, Array]()
    for second in range(1, 7):
        for client in (0, 1) if second == 1 else (1,):
            tasks += 1
            grad = world.gradient(held[client], 0, client, number[client])
            number[client] += 1
            sent[client] = held[client] - (held[client] - F(0.01 * (tasks % 7)) * grad)
        for client in (0, 1) if second == 6 else (1,):
            theta = theta - F(0.5) * sent[client]
            held[client] = theta
            digests.append(world.digest(theta))
    assert len(digests) == 7
    assert found[0][1 : 1 + len(digests)] == digests


@pytest.mark.parametrize(("state", "declared"), [("pass", False), ("state_names = ('tasks',)", True)])
def test_an_own_optimizer_may_not_have_all_of_its_state_in_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, declared: bool
) -> None:
    """A run that diverges is repeated from its last checkpoint only if every class declares its state."""
    optimizer = counting(tmp_path, monkeypatch, f"own_counting_{declared}".lower(), state)
    base = {"data": {"name": "digits"}, "model": {"hidden": [16]}, "server": {"name": "asgd", "lr": 0.5}}
    prepared = prepare(resolve(base | {"iterations": 2} | clients(optimizer=optimizer)), None)
    engine = make_engine("numba", prepared.model, prepared.dataset, 3, 1)
    run = Run(prepared, "numba", engine, tmp_path / "run", Observer(), lambda: False, prepared.length)
    assert run.simulation.declares_state is declared
    engine.close()


GATE = """
class Half:
    def init(self, clients, tensors, streams, stream):
        pass

    def passes(self, step, client, statistics):
        return [number % 2 == step % 2 for number in range(4)]
"""


def test_zeros_never_take_the_place_of_parameters(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where clients push parameters, a gate by tensor must apply what it had before again."""
    (tmp_path / "own_alternating.py").write_text(GATE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = {"iterations": 20, "server": {"name": "fedasync", "lr": 0.1}} | clients(local_steps=2)
    gate: dict[str, Any] = {"push": {"own_alternating:Half": {}}}
    with pytest.raises(ConfigError, match="zeros would take the place of a tensor that does not pass"):
        simulate(run | {"dispatcher": gate | {"dropped_push": "skip"}})
    assert simulate(run | {"dispatcher": gate | {"dropped_push": "reapply"}}).summary["status"] == "finished"


@pytest.mark.parametrize(("step", "begin", "message"), [
    ("self.seen = grad[:3]", "", "step: keeps grad, or a view of it, which is overwritten; keep grad.copy()"),
    ("self.seen = params", "", "step: keeps params, or a view of it"),
    (STEP, "self.seen = params[1:]", "begin: keeps params, or a view of it"),
    (STEP, "params += 1", "begin: changes params"),
    ("return params * np.float32(np.nan)", "", "gave parameters that are NaN, from finite ones and a finite gradient"),
    ("return params[:-1]", "", "what step returns: is float32 (1209,); it must be float32 (1210,)"),
    ("return params.astype(np.float64)", "", "what step returns: is float64 (1210,)"),
    ("return 1 / 0", "", "ZeroDivisionError: division by zero"),
], ids=lambda one: one[:24])  # fmt: skip
def test_what_an_own_optimizer_does_wrong(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, begin: str, message: str
) -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(ASGD | own(tmp_path, monkeypatch, step, begin))
    assert message in str(caught.value), str(caught.value)
    assert str(caught.value).startswith("Local, client ")


def test_a_mean_of_samples_takes_little_memory_beside_them() -> None:
    each = np.random.default_rng(0).normal(size=(37, 300_000)).astype(np.float32)
    tracemalloc.start()
    try:
        mean = mean_of_samples(each)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert mean.tobytes() == (tree_sum(each) / np.float32(37)).tobytes()
    assert most < mean.nbytes + 4 * 2**20 < each.nbytes / 4
