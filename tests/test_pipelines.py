"""Pipelines: runs against a plain loop, bit for bit; what they count; what does not fit is refused by name."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fredsim
from fredsim.config.document import Document
from fredsim.config.resolution import resolve
from fredsim.errors import ConfigError
from fredsim.numerics.streams import Streams
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.live.live import refuse_what_workers_cannot
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import open_experiment
from fredsim.runs.single.prepared import prepare
from fredsim.runs.verify.verify import verify
from fredsim.servers.dana import DANA
from tests.pipeline_loop import Layer, Pipeline, dense_gradient
from tests.random_experiments import staged
from tests.test_random_experiments import FEW_WAYS, asked_often, compare
from tests.test_state import stop_and_go_on

Simulate = Callable[..., Result]
Array = NDArray[np.float32]
F = np.float32
CUTS = ["W2", "W3"]


def pipeline(stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an experiment of one pipeline: 64-16-12-10, a stage for each layer unless `stages` says otherwise."""
    return {
        "iterations": 30,
        "data": {"name": "digits", "train": 200, "validation": 10},
        "model": {"hidden": [16, 12]},
        "clients": {"count": 1, "batch_size": 4, "sampling": "iid"},
        "server": {"name": "asgd", "lr": 0.2},
        "evaluation": {"every": 1},
        "stages": {"cuts": CUTS} | stages,
    } | more


def loop_of(data: dict[str, Any], fwd: list[int], bwd: list[int], **more: Any) -> tuple[Pipeline, list[str]]:
    """Return the loop of an experiment after its updates, and the digests of its parameters."""
    experiment = resolve(data)
    prepared = prepare(experiment, None)
    streams, layout = Streams(experiment.seed), prepared.model.layout
    start = list(layout.split(prepared.model.initial(streams)).values())
    train = prepared.dataset.train
    sampler = prepared.dataset.sampler("iid", experiment.clients.batch_size, streams, None)

    def minibatch(k: int) -> tuple[Array, NDArray[np.int64]]:
        (rows,) = sampler.rows(np.array([k]), np.array([0]), np.array([k]))
        return train.x[rows].reshape(len(rows), -1), train.y[rows]

    lr = experiment.server.hyper["lr"]
    layers = list(zip(start[::2], start[1::2], strict=True))
    loop = Pipeline(layers, minibatch, fwd, bwd, lr, **more).run(experiment.iterations or 0)
    return loop, [layout.digest(params) for params in loop.flat]


METHODS: dict[str, tuple[dict[str, Any], list[int], list[int], dict[str, Any]]] = {
    "pipedream": ({"delay": "pipedream"}, [2, 1, 0], [2, 1, 0], {}),
    "one step": ({"delay": "one_step"}, [1, 1, 1], [1, 1, 1], {}),
    "pipemare": ({"delay": "pipemare"}, [5, 3, 1], [0, 0, 0], {}),
    "corrected": ({"delay": "pipemare", "correction": 0.135}, [5, 3, 1], [0, 0, 0], {"correction": 0.135}),
    "rescheduled": ({"delay": "pipemare", "reschedule": 20}, [5, 3, 1], [0, 0, 0], {"reschedule": 20}),
    "both": (
        {"delay": "pipemare", "correction": 0.5, "reschedule": 9},
        [5, 3, 1], [0, 0, 0], {"correction": 0.5, "reschedule": 9},
    ),
    "own": ({"delay": {"forward": [4, 0, 3], "backward": [1, 0, 3]}}, [4, 0, 3], [1, 0, 3], {}),
    "stashed, rescheduled": ({"delay": "pipedream", "reschedule": 7}, [2, 1, 0], [2, 1, 0], {"reschedule": 7}),
    "stashed, warmed up": ({"delay": "pipedream", "synchronous": 11}, [2, 1, 0], [2, 1, 0], {"synchronous": 11}),
    "warmed up": (
        {"delay": "pipemare", "correction": 0.5, "reschedule": 9, "synchronous": 8},
        [5, 3, 1], [0, 0, 0], {"correction": 0.5, "reschedule": 9, "synchronous": 8},
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_the_plain_loop(simulate: Simulate, method: str, backend: str) -> None:
    """Also the staleness, which is that of the oldest stage, and the bytes: a gradient and a fetch each time."""
    stages, fwd, bwd, more = METHODS[method]
    data = pipeline(stages, backend=backend)
    result = simulate(data)
    _, digests = loop_of(data, fwd, bwd, **more)
    assert result.metrics["digest"].tolist()[1:] == digests
    assert len(set(digests)) == 30
    oldest = [min(max(0, k - more.get("synchronous", 0)), max(fwd)) for k in range(30)]
    counted = result.staleness.set_index("staleness")["count"].to_dict()
    assert {tau: n for tau, n in counted.items() if n} == {tau: oldest.count(tau) for tau in set(oldest)}
    size = 4 * (64 * 16 + 16 + 16 * 12 + 12 + 12 * 10 + 10)
    assert (result.summary["bytes_pushed"], result.summary["bytes_fetched"]) == (30 * size, 30 * size)
    assert result.summary["path"] == "snapshots"


def test_a_warm_up_is_continued_after_a_stop() -> None:
    """Of two pipelines, each of which counts its own minibatches."""
    stages = {"delay": "pipemare", "correction": 0.5, "synchronous": 5}
    data = pipeline(stages, clients={"count": 2, "batch_size": 4}, dispatcher={"name": "uniform"})
    stop_and_go_on(data, [3, 8, 12])


def test_delays_are_compensated_stage_by_stage(simulate: Simulate) -> None:
    """DC-ASGD: each tensor's gradient is corrected by how far it has moved since its own forward pass."""
    data = pipeline({"delay": "pipedream"}, server={"name": "dcasgd", "lr": 0.2, "lambda0": 0.5, "adaptive": False})

    def step(theta: Array, g: Array, seen: Array, alpha: np.float32) -> Array:
        return theta - alpha * (g + ((F(0.5) * g) * g) * (theta - seen))

    _, digests = loop_of(data, [2, 1, 0], [2, 1, 0], step=step)
    assert simulate(data).metrics["digest"].tolist()[1:] == digests


@pytest.mark.parametrize("inner", [
    {"name": "dcasgd", "lr": 0.2, "lambda0": 0.5, "adaptive": False}, {"name": "gap_aware", "lr": 0.2, "c": 0.01},
], ids=lambda one: one["name"])  # fmt: skip
def test_a_rounds_mean_is_corrected_by_what_the_pipelines_computed_from(
    simulate: Simulate, inner: dict[str, Any]
) -> None:
    """Two pipelines in rounds: each tensor's mean gradient, and how far the tensor has moved since the forward pass."""
    data = pipeline(
        {"delay": "pipedream"}, server={"name": "sync", "inner": inner}, dispatcher={"name": "round_robin"},
        clients={"count": 2, "batch_size": 4, "sampling": "iid"}, evaluation={"every": 2},
    )  # fmt: skip
    prepared, streams = prepare(resolve(data), None), Streams(0)
    layout, train = prepared.model.layout, prepared.dataset.train
    start = list(layout.split(prepared.model.initial(streams)).values())
    sampler = prepared.dataset.sampler("iid", 4, streams, None)

    def minibatches(k: int) -> tuple[Array, NDArray[np.int64]]:
        rows = np.concatenate(sampler.rows(np.array([2 * k, 2 * k + 1]), np.array([0, 1]), np.array([k, k])))
        return train.x[rows].reshape(8, -1), train.y[rows]

    def mean(seen: list[Layer], used: list[Layer], x: Array, y: NDArray[np.int64]) -> list[Layer]:
        both = [dense_gradient(seen, used, x[part], y[part]) for part in (slice(4), slice(4, 8))]
        return [((a + c) / F(2), (b + d) / F(2)) for (a, b), (c, d) in zip(*both, strict=True)]

    def compensated(theta: Array, g: Array, seen: Array, alpha: np.float32) -> Array:
        return theta - alpha * (g + ((F(0.5) * g) * g) * (theta - seen))

    def penalised(theta: Array, g: Array, seen: Array, alpha: np.float32) -> Array:
        return np.asarray(theta - alpha * (g / (F(1) + np.abs(theta - seen) / F(0.01))), F)

    step = compensated if inner["name"] == "dcasgd" else penalised
    layers = list(zip(start[::2], start[1::2], strict=True))
    loop = Pipeline(layers, minibatches, [2, 1, 0], [2, 1, 0], 0.2, gradient=mean, step=step).run(15)
    assert simulate(data).metrics["digest"].tolist()[1:] == [layout.digest(params) for params in loop.flat]


MODULE = """
from torch import nn


def dense(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, classes))
"""


@pytest.mark.parametrize(("delay", "fwd"), [("pipedream", [2, 1, 0]), ("one_step", [1, 1, 1])])
def test_stashed_weights_of_a_native_module(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: str, fwd: list[int]
) -> None:
    """The same loop, with gradients by PyTorch's autograd."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    (tmp_path / "staged_modules.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = {"name": "torch:staged_modules:dense", "numerics": "native"}
    stages = {"cuts": ["3", "5.weight"], "delay": delay}
    data = pipeline(stages, model=model, threads=1)

    def gradient(seen: list[Layer], used: list[Layer], x: Array, y: NDArray[np.int64]) -> list[Layer]:
        assert all(a is b for one, other in zip(seen, used, strict=True) for a, b in zip(one, other, strict=True))
        tensors = [torch.from_numpy(one.copy()).requires_grad_() for layer in seen for one in layer]
        z = torch.from_numpy(x.copy())
        for w, b in zip(tensors[::2], tensors[1::2], strict=True):
            z = torch.nn.functional.linear(torch.tanh(z) if w is not tensors[0] else z, w, b)
        found = torch.autograd.grad(torch.nn.functional.cross_entropy(z, torch.from_numpy(y.astype(np.int64))), tensors)
        arrays = [one.numpy() for one in found]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    _, digests = loop_of(data, fwd, fwd, gradient=gradient)
    assert simulate(data).metrics["digest"].tolist()[1:] == digests


@pytest.mark.parametrize("method", ["pipemare", "both"])
def test_a_native_module_with_two_vectors(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The backward pass is written out; products are PyTorch's, which hardly differ."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    (tmp_path / "apart_modules.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    stages, fwd, bwd, more = METHODS[method]
    model = {"name": "torch:apart_modules:dense", "numerics": "native"}
    data = pipeline(stages | {"cuts": ["3", "5"]}, model=model, threads=1)

    def gradient(seen: list[Layer], used: list[Layer], x: Array, y: NDArray[np.int64]) -> list[Layer]:
        z, inputs = torch.from_numpy(x.copy()), []
        for number, (w, b) in enumerate(seen):
            inputs.append(torch.tanh(z) if number else z)
            z = inputs[-1] @ torch.from_numpy(w).T + torch.from_numpy(b)
        error = torch.softmax(z, 1)
        error[torch.arange(len(y)), torch.from_numpy(y.astype(np.int64))] -= 1
        error, found = error / len(y), list[Layer]()
        for h, (w, _) in zip(inputs[::-1], used[::-1], strict=True):
            found.insert(0, ((error.T @ h).numpy(), error.sum(0).numpy()))
            error = (error @ torch.from_numpy(w)) * (1 - h * h)
        return found

    loop, _ = loop_of(data, fwd, bwd, gradient=gradient, **more)
    result = simulate(data)
    names = [f"{layer}.{kind}" for layer in (1, 3, 5) for kind in ("weight", "bias")]
    params = np.concatenate([result.params[name].ravel() for name in names])
    np.testing.assert_allclose(params, loop.flat[-1], rtol=0, atol=1e-5)
    stashed, _ = loop_of(data, fwd, fwd, gradient=gradient)
    assert np.abs(stashed.flat[-1] - loop.flat[-1]).max() > 1e-3
    assert verify(result) is None


def test_several_pipelines_each_have_their_own_past(simulate: Simulate) -> None:
    """Stages take what their own pipeline fetched, however often others have pushed; gates may drop what it fetches."""
    stages = {"cuts": ["b1", "W3"], "delay": {"forward": [3, 1, 0], "backward": [2, 0, 0]}}
    clients = {"count": 3, "batch_size": 4, "sampling": "iid"}
    gates = {"fetch": {"every": {"k": 2}}, "push": {"every": {"k": 3}}, "dropped_push": "accumulate"}
    data = pipeline(stages, clients=clients, dispatcher=gates, iterations=24, backend="numpy")
    from fredsim.compute.graph_engine import GraphEngine
    from fredsim.numerics.ops.draws import Keys
    from fredsim.numerics.streams import Stream

    prepared, streams = prepare(resolve(data), None), Streams(0)
    graph, layout = prepared.model.graph, prepared.model.layout
    assert graph is not None
    engine, theta = GraphEngine(graph, prepared.dataset), prepared.model.initial(streams)
    sampler = prepared.dataset.sampler("iid", 4, streams, None)
    parts = [slice(0, 1024), slice(1024, 1024 + 16 + 192 + 12), slice(1024 + 16 + 192 + 12, layout.size)]
    held: list[list[Array]] = [[theta] for _ in range(3)]
    unsent, digests = [np.zeros_like(theta) for _ in range(3)], []
    for t in range(24):
        who = int(streams.below(3, Stream.DISPATCH, 0, t))
        number, own = len(held[who]) - 1, held[who]
        seen, used = (
            np.concatenate([own[max(0, number - d)][part] for d, part in zip(delays, parts, strict=True)])
            for delays in ([3, 1, 0], [2, 0, 0])
        )
        keys = Keys(0, np.array([who]), np.array([number]))
        rows = sampler.rows(np.array([t]), np.array([who]), np.array([number]))
        (grad,), _ = engine.gradients_at_two([seen], [used], rows, keys)
        unsent[who] = unsent[who] + grad
        if number % 3 == 2:
            theta, unsent[who] = theta - F(0.2) * unsent[who], np.zeros_like(theta)
        own.append(theta if number % 2 == 1 else own[-1])
        digests.append(layout.digest(theta))
    assert simulate(data).metrics["digest"].tolist()[1:] == digests
    assert simulate(data | {"backend": "numba", "window": 3}).metrics["digest"].tolist()[1:] == digests


def test_gradients_at_two_vectors_have_the_same_bits() -> None:
    """Kernels against the operators' definitions, on random graphs and on a transformer, whose head is tied."""
    from fredsim.compute.graph_engine import GraphEngine
    from fredsim.kernels.ops.engine import NumbaGraphEngine
    from tests.random_graphs import bits, dataset, initial, random_graph

    differ = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng)
        data = dataset(graph, rng)
        one, two = ([initial(graph, rng) for _ in range(2)] for _ in range(2))
        rows = rng.integers(0, len(data.train), (2, int(rng.integers(1, 5))))
        expected, engine = GraphEngine(graph, data), NumbaGraphEngine(graph, data, rows.shape[1], 1 + seed % 2)
        grads, losses = expected.gradients_at_two(one, two, rows)
        for _ in range(2):
            found, its_losses = engine.gradients_at_two(one, two, rows)
            assert (bits(found), bits(its_losses)) == (bits(grads), bits(losses)), seed
        assert bits(engine.gradients_at_two(one, one, rows)[0]) == bits(expected.gradients(one, rows)[0])
        differ += bits(expected.gradients(one, rows)[0]) != bits(grads)
        engine.close()
    assert differ > 3


MODULAR = {"data": {"name": "modular", "p": 7, "train": 32, "validation": 8}, "iterations": 5}
GPT = {"name": "gpt", "width": 8, "layers": 2, "heads": 2, "dropout": 0.1}
OTHERS: dict[str, dict[str, Any]] = {
    "a transformer with dropout": pipeline({"cuts": ["layers.1", "norm"], "delay": "pipemare"}, **MODULAR, model=GPT),
    "a residual network": pipeline(
        {"cuts": ["3", "5"], "delay": "pipemare", "correction": 0.2},
        model={"name": "resnet", "depth": 8, "width": 8}, iterations=2,
    ),
    "some tensors trained": pipeline(
        {"cuts": ["W3"], "delay": "pipemare"}, model={"hidden": [16, 12], "trainable": ["W*", "b3"]}
    ),
    "augmented samples": pipeline(
        {"delay": "pipemare"}, data={"name": "digits", "train": 200, "validation": 10, "augment": {"flip": True}}
    ),
    "samples clipped": pipeline(
        {"delay": "pipemare"}, clients={"count": 1, "batch_size": 3, "clip_each_sample": 0.5, "noise": 0.01}
    ),
    "synchronous pipelines": pipeline(
        {"delay": "pipedream"}, clients={"count": 3, "batch_size": 2}, server={"name": "sync", "lr": 0.2}
    ),
    "rounds compensated": pipeline(
        {"delay": "pipemare", "synchronous": 2}, clients={"count": 2, "batch_size": 2},
        server={"name": "sync", "inner": {"name": "gap_aware", "lr": 0.2}},
    ),
    "delays compensated": pipeline({"delay": "pipedream"}, server={"name": "dcasgd", "lr": 0.2}),
    "compressed on a clock": pipeline(
        {"delay": "pipemare", "correction": 0.1}, clients={"count": 3, "batch_size": 2, "sampling": "iid"},
        dispatcher={"name": "clock", "link": {"up": 1e6}}, compress={"name": "top_k", "k": 0.3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("of", OTHERS)
def test_every_backend_and_every_stop_give_the_same_bits(simulate: Simulate, tmp_path: Path, of: str) -> None:
    data = OTHERS[of] | {"iterations": min(12, OTHERS[of]["iterations"])}
    digests = [simulate(data | {"backend": backend}).metrics["digest"].tolist() for backend in ("numpy", "numba")]
    assert digests[0] == digests[1]
    experiment = resolve(data)
    for least in (2, 5, 10**9):
        execute(experiment, tmp_path / "at", stop=partial(asked_often, count(), least), policy=CheckpointPolicy(1e9))
    assert Result(tmp_path / "at").metrics["digest"].tolist() == digests[0]
    assert verify(Result(tmp_path / "at")) is None


SCHEDULE = """
from fredsim.numerics.elementary import pow64


def falling(t):
    return 0.02 * (float(pow64(4.0, -(1 - t / 50))) if t < 50 else 1.0)
"""


@pytest.mark.parametrize(
    "server", [{"name": "adam", "weight_decay": 0.1}, {"name": "fasgd"}, {"name": "dana"}], ids=lambda one: one["name"]
)
def test_rescheduling_is_a_learning_rate_of_any_rule(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: dict[str, Any]
) -> None:
    """If all stages have a delay of 4, it is a schedule of the server; it also reaches averages and weight decay."""
    (tmp_path / "falling_rate.py").write_text(SCHEDULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    delay, more = {"forward": 4}, {"average": {"name": "window"}, "iterations": 60, "evaluation": {"every": 10}}
    by_stage = pipeline({"delay": delay, "reschedule": 50}, server=server | {"lr": 0.02}, **more)
    by_server = pipeline({"delay": delay}, server=server | {"lr": {"name": "falling_rate:falling"}}, **more)
    assert simulate(by_stage).metrics["digest"].tolist() == simulate(by_server).metrics["digest"].tolist()


def test_dana_looks_ahead_by_the_rate_of_each_stage(simulate: Simulate) -> None:
    """The parameters that a pipeline fetches are θ_s − (α·f_s^−p·γ)·Σ v, with f the stage's delay."""
    handed: list[tuple[Array, Array, Array]] = []
    fetch = DANA.fetch

    def noting(self: DANA, client_id: int) -> Any:
        found = fetch(self, client_id)
        handed.append((np.array(self.params), np.array(self.arrays["total"]), np.array(found)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DANA, "fetch", noting)
        data = pipeline({"delay": "pipemare", "reschedule": 10**9}, server={"name": "dana", "lr": 0.02})
        simulate(data | {"iterations": 6, "evaluation": {"every": 6}})
    params, total, found = handed[-1]
    places = np.split(np.arange(len(params)), np.cumsum([64 * 16 + 16, 16 * 12 + 12]))
    assert np.abs(total).max() > 0
    for place, forward in zip(places, (5, 3, 1), strict=True):  # twice as many stages as behind it, and one
        far = (params[place] - found[place]).astype(np.float64)
        assert far == pytest.approx(0.02 * 0.9 / forward * total[place].astype(np.float64), rel=2e-3, abs=5e-8)


def test_stale_samples_at_fresh_parameters(simulate: Simulate) -> None:
    """Which minibatch comes next is all that depends on clients: it is that of the arriving client's own number."""
    from fredsim.compute.graph_engine import GraphEngine
    from fredsim.numerics.streams import Stream

    clients = {"count": 4, "batch_size": 3, "sampling": "iid", "current": True, "clip": 0.7}
    data = pipeline({}, clients=clients, iterations=20, server={"name": "sasgd", "lr": 0.3})
    del data["stages"]
    prepared, streams = prepare(resolve(data), None), Streams(0)
    graph = prepared.model.graph
    assert graph is not None
    engine, theta = GraphEngine(graph, prepared.dataset), prepared.model.initial(streams)
    sampler, numbers, fetched = prepared.dataset.sampler("iid", 3, streams, None), [0] * 4, [0] * 4
    digests = []
    for t in range(20):
        who = int(streams.below(4, Stream.DISPATCH, 0, t))
        rows = sampler.rows(np.array([t]), np.array([who]), np.array([numbers[who]]))
        (grad,), _ = engine.gradients([theta], rows)
        length = float(np.linalg.norm(grad.astype(np.float64)))
        grad = grad * F(0.7 / length) if length > 0.7 else grad
        theta = theta - F(0.3) * (grad / F(max(1, t - fetched[who])))
        numbers[who], fetched[who] = numbers[who] + 1, t + 1
        digests.append(prepared.model.layout.digest(theta))
    for backend in ("numpy", "numba"):
        found = simulate(data | {"backend": backend, "window": 4})
        assert found.metrics["digest"].tolist()[1:] == digests
    assert found.summary["path"] == "snapshots"


def test_a_probe_compares_both_passes_with_the_servers_parameters(simulate: Simulate) -> None:
    """Of one stage without delay there is nothing to see; a pipeline's gradient differs in each stage."""
    more = {"probe": {"every": 5}, "evaluation": {"every": 100}}
    stages = {"delay": {"forward": [5, 3, 1], "backward": 0}}
    found = simulate(pipeline(stages, **more)).probe
    assert found["staleness"].tolist() == [min(5, t - 1) for t in found["iteration"]]
    assert (found["b_staleness"] > 0).all()
    assert (found["distance"] > 0).all()
    fresh = simulate(pipeline({"delay": {"forward": 0}}, **more)).probe
    assert fresh["b_staleness"].tolist() == [0.0] * 6
    same = simulate(pipeline({"delay": {"forward": [5, 3, 1]}}, **more)).probe
    assert same["b_staleness"].tolist() != found["b_staleness"].tolist()


def refused(changes: dict[str, Any]) -> str:
    """Return the message with which an experiment is refused, before its run."""
    return refused_as(pipeline({"delay": "pipemare"}) | changes)


def refused_as(data: dict[str, Any]) -> str:
    """Return the message with which this experiment is refused."""
    with pytest.raises(ConfigError) as caught:
        prepare(open_experiment(data, Document(data).place), None)
    message = str(caught.value)
    assert "\n" not in message, message
    return message


ONE = {"count": 1, "batch_size": 4}


@pytest.mark.parametrize(("changes", "message"), [
    ({"stages": {"cuts": ["W9"], "delay": "pipedream"}},
     "stages.cuts has 'W9'; the network has no such layer; did you mean 'W3'? (layers: W1, b1, W2, b2, W3, b3)"),
    ({"stages": {"cuts": ["w2"], "delay": "pipedream"}}, "no such layer; did you mean 'W2'?"),
    ({"stages": {"cuts": ["W3", "W2"], "delay": "pipedream"}}, "has 'W2' after 'W3'; give each once, in the param"),
    ({"stages": {"cuts": ["W2", "W2"], "delay": "pipedream"}}, "has 'W2' after 'W2'"),
    ({"stages": {"cuts": ["W1"], "delay": "pipedream"}}, "has 'W1', with which the parameters begin"),
    ({"stages": {"cuts": [], "delay": "pipedream"}}, "stages.cuts: is []; it should have at least 1 item"),
    ({"stages": {"cuts": CUTS, "delay": "gpipe"}},
     "stages.delay: is 'gpipe'; it must be 'pipedream', 'pipemare' or 'one_step'"),
    ({"stages": {"cuts": CUTS}}, "stages.delay: is required"),
    ({"stages": {"cuts": CUTS, "delay": {"forward": [2, 1]}}},
     "delay.forward has 2 delays, and cuts make 3 stages: give 3"),
    ({"stages": {"cuts": CUTS, "delay": {"forward": -1}}}, "is -1; it should be greater than or equal to 0"),
    ({"stages": {"cuts": CUTS, "delay": {"forward": 1.5}}}, "stages.delay.forward: is 1.5"),
    ({"stages": {"cuts": CUTS, "delay": {"forward": [2, 1, 0], "backward": 1}}},
     "delay.backward of stage 3 is 1, and delay.forward 0"),
    ({"stages": {"cuts": CUTS, "delay": "pipedream", "correction": 0.1}}, "correction is 0.1, and delay is pipedream"),
    ({"stages": {"cuts": CUTS, "delay": "pipemare", "correction": 1.0}}, "is 1.0; it should be less than 1"),
    ({"stages": {"cuts": CUTS, "delay": "pipemare", "reschedule": 0}}, "is 0; it should be greater than 0"),
    ({"stages": {"cuts": CUTS, "delay": "pipemare", "reschedule": 5}, "server": {"name": "rescaled", "lr": 0.1}},
     "stages.reschedule is 5; the server rescaled has no learning rate for each parameter"),
    ({"data": {"name": "quadratic", "size": 9}, "model": {"name": "linear"}, "clients": {"count": 1, "batch_size": 1}},
     "did you mean 'W1'? (layers: W1)"),
    ({"clients": ONE | {"local_steps": 2}}, "stages is given; clients take steps of their own"),
    ({"clients": ONE | {"optimizer": "adamw"}}, "clients take steps of their own"),
    ({"clients": ONE | {"prox": 0.1}}, "clients take steps of their own"),
    ({"clients": ONE | {"fraction": 0.5}}, "clients.fraction lets pipelines stand still"),
    ({"clients": ONE | {"current": True}}, "stages is given; clients.current is true"),
    ({"server": {"name": "fedbuff", "lr": 0.1, "buffer": 1}}, "the server's clients push delta"),
    ({"server": {"name": "easgd", "lr": 0.1}}, "the server's clients push params"),
    ({"server": {"name": "ringmaster", "lr": 0.1, "threshold": 3, "stop": True}}, "the server restarts clients"),
    ({"server": {"name": "sync", "lr": 0.1, "aggregate": 1}, "clients": {"count": 2, "batch_size": 4}},
     "server.aggregate is 1, and stages is given; a gradient is late if its parameters are older than the round"),
    ({"server": {"name": "sync", "inner": {"name": "dcasgd", "lr": 0.1}},
      "dispatcher": {"push": {"every": {"k": 2}}, "dropped_push": "skip"}},
     "stages is given; a pipeline whose push is dropped is ahead of the others"),
    ({"dispatcher": {"wait": False}}, "dispatcher.wait is false"),
    ({"dispatcher": {"replica": True}}, "dispatcher.replica is true"),
    ({"dispatcher": {"name": "clock", "compute": {"limit": 1.5}}, "server": {"name": "mindflayer", "lr": 0.1}},
     "the dispatcher clock may be given up"),
], ids=lambda one: one[:40] if isinstance(one, str) else "")  # fmt: skip
def test_what_pipelines_cannot_be_is_one_message(changes: dict[str, Any], message: str) -> None:
    assert message in refused(changes)


BEGINS = """
from fredsim.servers.asgd import ASGD


class Writing(ASGD):
    def begins(self, client_id, params, timestamp):
        params *= 0.5
"""


def test_a_server_that_writes_into_what_clients_begin_from_is_refused(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_begins.py").write_text(BEGINS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = pipeline({"delay": "pipedream"}, server={"name": "own_begins:Writing", "lr": 0.1})
    with pytest.raises(ConfigError, match="stages is given; the server has a method begins"):
        simulate(data)
    assert simulate({**data, "stages": None}).summary["status"] == "finished"


@pytest.mark.parametrize(
    "server", [{"name": "rennala", "lr": 0.3, "batch": 2}, {"name": "malenia", "lr": 0.3}], ids=str
)
def test_who_takes_fresh_pushes_alone_has_the_same_of_fresh_parameters(
    server: dict[str, Any], simulate: Simulate
) -> None:
    """What counts was computed at the server's parameters in either case."""
    clients = {"count": 3, "batch_size": 3, "sampling": "iid"}
    data = pipeline({}, clients=clients, iterations=30, server=server)
    del data["stages"]
    found = {
        simulate(data | {"clients": clients | {"current": current}}).summary["digest"] for current in (True, False)
    }
    assert len(found) == 1


CURRENT = ONE | {"current": True}


@pytest.mark.parametrize(("changes", "message"), [
    ({"clients": CURRENT | {"local_steps": 2}}, "clients.current is true; clients take steps of their own"),
    ({"compress": {"name": "sign"}}, "clients send samples, which neither dispatcher.push nor compress takes"),
    ({"dispatcher": {"push": {"every": {"k": 2}}}}, "clients send samples"),
    ({"server": {"name": "dcasgd", "lr": 0.1}}, "the server notes what gradients are computed from"),
    ({"server": {"name": "fedasync", "lr": 0.1}}, "the server's clients push params"),
    ({"dispatcher": {"replica": True}}, "clients have no gradients"),
    ({"probe": {"every": 2}}, "probe is given, and clients.current is true"),
], ids=lambda one: one[:40] if isinstance(one, str) else "")  # fmt: skip
def test_what_current_does_not_go_with_is_one_message(changes: dict[str, Any], message: str) -> None:
    assert message in refused({"stages": None, "clients": CURRENT} | changes)


CHECKPOINTED = (
    MODULE
    + """
from torch.utils.checkpoint import checkpoint


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x):
        x = checkpoint(self.first, x.flatten(1), use_reentrant=False)
        return self.second(x.tanh())
"""
)


def test_two_vectors_are_refused_where_they_cannot_be(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the backend cuda computes both passes with the same parameters" in refused({"backend": "cuda"})
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    (tmp_path / "again_modules.py").write_text(CHECKPOINTED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = {"name": "torch:again_modules:dense", "numerics": "native"}
    stages = {"cuts": ["3"], "delay": "pipemare"}
    found = refused({"model": model | {"precision": "bfloat16"}, "stages": stages, "threads": 1})
    assert "takes what the forward pass has made of the parameters" in found
    data = pipeline(stages | {"cuts": ["second"]}, model=model | {"name": "torch:again_modules:Again"}, threads=1)
    with pytest.raises(ConfigError, match=r"computes its Linear again on the way back \(torch.utils.checkpoint\)"):
        simulate(data)


PROBLEM = """
import numpy as np


class Bowl:
    parameters = {"a": (3,), "b": (2,)}
    portable = True

    def initial(self, rng):
        return np.arange(5, dtype=np.float32)

    def gradient(self, params, draw):
        return params + draw.standard_normal(5, np.float32) / 8

    def evaluate(self, params):
        return {"loss": float(params @ params)}
"""


def test_a_problem_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors may be stages, with one vector for both passes; its samples it draws itself."""
    (tmp_path / "own_bowl.py").write_text(PROBLEM, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    stages = {"cuts": ["b"], "delay": {"forward": [2, 0]}}
    data: dict[str, Any] = {
        "iterations": 8, "problem": {"name": "own_bowl:Bowl"}, "clients": {"count": 1}, "stages": stages,
        "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 1},
    }  # fmt: skip
    theta: list[Array] = [np.arange(5, dtype=F)]
    digests = []
    layout = prepare(resolve(data), None).model.layout
    from fredsim.networks.own_problem import Draw

    for k in range(8):
        drawn = Draw(0, 0, k).standard_normal(5, F)
        seen = np.concatenate([theta[max(0, k - 2)][:3], theta[k][3:]])
        theta.append(theta[k] - F(0.1) * (seen + drawn / F(8)))
        digests.append(layout.digest(theta[-1]))
    assert fredsim.run(data, out=tmp_path / "run").metrics["digest"].tolist()[1:] == digests
    assert "a problem's class computes both passes with the same parameters" in refused_as(
        data | {"stages": stages | {"delay": "pipemare"}}
    )
    current = {"stages": None, "clients": {"count": 2, "current": True}}
    assert "give it a method gradient(params, draw, current)" in refused_as(data | current)


@pytest.mark.parametrize("changes", [{}, {"stages": None, "clients": CURRENT}], ids=["stages", "current"])
def test_live_runs_refuse_them(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(stages is given|clients\.current is true).*compute for any client"):
        refuse_what_workers_cannot(resolve(pipeline({"delay": "pipedream"}) | changes))


def test_a_sweep_of_methods(tmp_path: Path) -> None:
    """Each method has its own folder and digest; an experiment without stages has no such key."""
    data = pipeline({"delay": "pipedream"}, iterations=6) | {"sweep": {"stages.delay": ["pipedream", "pipemare"]}}
    results = list(fredsim.sweep(data, out=tmp_path / "sweep"))
    assert len({one.summary["digest"] for one in results}) == 2
    assert all(verify(one) is None for one in results)
    plain = resolve(pipeline({"delay": "pipedream"}) | {"stages": None}).plain()
    assert "stages" not in plain
    assert "current" not in plain["clients"]


@pytest.mark.parametrize("number", range(3))
def test_random_pipelines(number: int) -> None:
    """Any server, dispatcher, gate, compressor: the same bytes on every backend and window, and after any stop."""
    compare(number, FEW_WAYS + 1, of=staged)
