"""Pipelines: runs against a plain loop, bit for bit; what they count; what does not fit is refused by name."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.config.resolution import resolve
from fredsim.numerics.streams import Streams
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from fredsim.runs.single.prepared import prepare
from fredsim.runs.verify.verify import verify
from tests.pipeline_loop import Layer, Pipeline
from tests.test_random_experiments import asked_often

Simulate = Callable[..., Result]
Array = NDArray[np.float32]
F = np.float32
CUTS = ["W2", "W3"]


def pipeline(stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an experiment of one pipeline: 64-16-12-10, a stage for each layer unless `stages` says otherwise."""
    return {
        "iterations": 30,
        "data": {"name": "digits"},
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
    oldest = [min(k, max(fwd)) for k in range(30)]
    counted = result.staleness.set_index("staleness")["count"].to_dict()
    assert {tau: n for tau, n in counted.items() if n} == {tau: oldest.count(tau) for tau in set(oldest)}
    size = 4 * (64 * 16 + 16 + 16 * 12 + 12 + 12 * 10 + 10)
    assert (result.summary["bytes_pushed"], result.summary["bytes_fetched"]) == (30 * size, 30 * size)
    assert result.summary["path"] == "snapshots"


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
    from tests.random_graphs import dataset, initial, random_graph
    from tests.test_graph_kernels import bits

    differ = 0
    for seed in range(12):
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
    assert differ > 6


MODULAR = {"data": {"name": "modular", "p": 7, "train": 32, "validation": 8}, "iterations": 12}
GPT = {"name": "gpt", "width": 16, "layers": 2, "heads": 2, "dropout": 0.1}
OTHERS: dict[str, dict[str, Any]] = {
    "a transformer with dropout": pipeline({"cuts": ["layers.1", "norm"], "delay": "pipemare"}, **MODULAR, model=GPT),
    "a residual network": pipeline(
        {"cuts": ["3", "5"], "delay": "pipemare", "correction": 0.2},
        model={"name": "resnet", "depth": 8, "width": 8}, iterations=3,
        evaluation={"every": 100}, data={"name": "digits", "validation": 20},
    ),
    "some tensors trained": pipeline(
        {"cuts": ["W3"], "delay": "pipemare"}, model={"hidden": [16, 12], "trainable": ["W*", "b3"]}
    ),
    "augmented samples": pipeline({"delay": "pipemare"}, data={"name": "digits", "augment": {"flip": True}}),
    "samples clipped": pipeline(
        {"delay": "pipemare"}, clients={"count": 1, "batch_size": 3, "clip_each_sample": 0.5, "noise": 0.01}
    ),
    "synchronous pipelines": pipeline(
        {"delay": "pipedream"}, clients={"count": 3, "batch_size": 2}, server={"name": "sync", "lr": 0.2}
    ),
    "delays compensated": pipeline({"delay": "pipedream"}, server={"name": "dcasgd", "lr": 0.2}),
    "compressed on a clock": pipeline(
        {"delay": "pipemare", "correction": 0.1}, clients={"count": 3, "batch_size": 2, "sampling": "iid"},
        dispatcher={"name": "clock", "link": {"up": 1e6}}, compress={"name": "top_k", "k": 0.3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("of", OTHERS)
def test_every_backend_and_every_stop_give_the_same_bits(simulate: Simulate, tmp_path: Path, of: str) -> None:
    data = OTHERS[of]
    digests = [simulate(data | {"backend": backend}).metrics["digest"].tolist() for backend in ("numpy", "numba")]
    assert digests[0] == digests[1]
    experiment = resolve(data)
    for least in (2, 5, 10**9):
        execute(experiment, tmp_path / "at", stop=partial(asked_often, count(), least), policy=CheckpointPolicy(1e9))
    assert Result(tmp_path / "at").metrics["digest"].tolist() == digests[0]
    assert verify(Result(tmp_path / "at")) is None
