"""Running statistics of batch norms that fredsim computes itself: the key `model.buffers` of portable networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.compute.graph_engine import GraphEngine
from fredsim.compute.statistics import Statistics, follow
from fredsim.config.models import TorchChoice
from fredsim.data.datasets import Dataset, data_root, load_dataset
from fredsim.errors import ConfigError
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.networks.graph import Graph, Node
from fredsim.networks.initial import DrawnNetwork
from fredsim.networks.running import Found, Running, RunningNorm
from fredsim.networks.saved import graph_of_text, text_of_graph
from fredsim.networks.zoo.vgg import vgg
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.ops.norms import BatchNorm
from fredsim.numerics.ops.sums import over_axis, over_positions
from fredsim.numerics.oracle import mean64
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.result import Result
from tests.conftest import checkpoints_every

Simulate = Callable[..., Result]
Refused = Callable[..., None]
Array = NDArray[np.float32]

CLIENTS, MU, STEPS = 3, 4, 8
MODEL = {"name": "vgg", "widths": [2]}
BASE: dict[str, Any] = {
    "iterations": STEPS, "threads": 1, "dispatcher": {"name": "round_robin"}, "evaluation": {"every": 2},
    "model": MODEL | {"buffers": "averaged"}, "clients": {"count": CLIENTS, "batch_size": MU},
    "server": {"name": "asgd", "lr": 0.1},
}  # fmt: skip


class ByHand:
    """A plain loop over the nodes: each client has statistics of its own, by which nothing is trained.

    A client's first push and each `every`-th pass; in place of others the gradient that was sent last is applied again.
    """

    def __init__(self, served: str, every: int = 1) -> None:
        self.every, self.sent, self.known = every, dict[int, Array](), dict[int, list[Array]]()
        self.digits: Dataset = load_dataset("digits", None, None, data_root())
        self.graph, self.served = vgg(10, self.digits.shape, (2,)), served
        self.params = DrawnNetwork(self.graph).initial(Streams(0))
        self.own: list[list[Array]] = [[] for _ in range(CLIENTS)]
        for client in self.own:
            client += [np.zeros(2, np.float32), np.ones(2, np.float32)] * 2
        self.initial, self.pushed = [one.copy() for one in self.own[0]], list[int]()

    def values(self, params: Array, x: Array, statistics: list[Array] | None = None) -> tuple[Array, list[Array]]:
        """Return the output, by statistics if these are given, and each norm's input."""
        found, values, norms = [], [x.reshape(len(x), *self.digits.shape)], 0
        views = self.graph.layout.split(params)
        for node in self.graph.nodes:
            tensors = {role: views[name] for role, name in node.tensors}
            given = [values[i] for i in node.inputs]
            if isinstance(node.operator, BatchNorm):
                found.append(given[0])
                if statistics is not None:
                    mean, variance = (one[:, None, None] for one in statistics[2 * norms : 2 * norms + 2])
                    r = np.float32(1) / np.sqrt(variance + np.float32(1e-5))
                    gamma, beta = tensors["weight"][:, None, None], tensors["bias"][:, None, None]
                    values.append((given[0] - mean) * r * gamma + beta)
                    norms += 1
                    continue
            values.append(node.operator.forward(given, tensors)[0])
        return values[-1], found

    def evaluate(self) -> float:
        those = sorted(set(self.pushed)) if self.served == "averaged" else self.pushed[-1:]
        known = [self.known[client] for client in those] or [self.initial]
        mean = [
            (sum(each[1:], each[0].astype(float)) / len(each)).astype(np.float32) for each in zip(*known, strict=True)
        ]
        output, _ = self.values(self.params, self.digits.validation.x, mean)
        return mean64(self.graph.loss.losses(output, self.digits.validation.y).each)

    def push(self, step: int, held: Array) -> None:
        client, rows = step % CLIENTS, np.arange(MU * step, MU * step + MU)
        x, y = self.digits.train.x[rows], self.digits.train.y[rows]
        grad, _ = self.graph.gradient(held, x.reshape(MU, *self.digits.shape), y)
        _, inputs = self.values(held, x)
        for number, given in enumerate(inputs):
            v = np.ascontiguousarray(given.transpose(0, 2, 3, 1))
            size = v[..., 0].size
            count = np.float32(size)
            mean = over_axis(over_positions(v), 0) / count
            variance = over_axis(over_positions((v - mean) * (v - mean)), 0) / count
            unbiased = variance * np.float32(size / (size - 1))
            for place, seen in ((2 * number, mean), (2 * number + 1, unbiased)):
                kept, share = np.float32(1 - float(np.float32(0.1))), np.float32(0.1)
                self.own[client][place] = np.asarray(self.own[client][place] * kept + seen * share, np.float32)
        if step < CLIENTS or (step // CLIENTS + 1) % self.every == 0:
            self.sent[client], self.known[client] = grad, [one.copy() for one in self.own[client]]
            self.pushed.append(client)
        self.params = np.asarray(self.params - np.float32(0.1) * self.sent[client], np.float32)

    def losses(self) -> list[float]:
        held, found = [self.params] * CLIENTS, []
        for step in range(STEPS + 1):
            if step % 2 == 0:
                found.append(self.evaluate())
            if step < STEPS:
                self.push(step, held[step % CLIENTS])
                held[step % CLIENTS] = self.params
        return found


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("served", ["averaged", "last"])
def test_against_a_plain_loop(served: str, every: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ByHand(served, every).losses()
    assert len(set(expected)) == len(expected)
    gate = {} if every == 1 else {"push": {"every": {"k": every}}}
    experiment = BASE | {"model": MODEL | {"buffers": served}, "dispatcher": {"name": "round_robin"} | gate}
    for way in ({"backend": "numpy"}, {"window": 1}, {"threads": 2}, {"probe": {"every": 3}}):
        assert list(simulate(experiment | way).metrics["validation_loss"]) == expected
    checkpoints_every(0.0, monkeypatch)
    assert list(simulate(experiment).metrics["validation_loss"]) == expected


WAYS: dict[str, dict[str, Any]] = {
    "synchronous": {"server": {"name": "sync", "lr": 0.1}},
    "local steps": {"clients": {"count": CLIENTS, "batch_size": MU, "local_steps": 2}},
    "augmented": {"data": {"name": "digits", "augment": {"flip": True}}},
    "dropout": {"model": MODEL | {"buffers": "averaged", "dropout": 0.5}},
    "some trained": {"model": MODEL | {"buffers": "last", "trainable": ["1.*", "8.*"]}},
    "a pipeline": {
        "clients": {"count": 1, "batch_size": MU},
        "stages": {"cuts": ["3.weight"], "delay": "pipemare", "correction": 0.1},
    },
    "dropped": {"dispatcher": {"name": "round_robin", "push": {"every": {"k": 2}}}},
}  # fmt: skip


@pytest.mark.parametrize("changes", WAYS.values(), ids=WAYS)
def test_backends_and_stops(changes: dict[str, Any], simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [simulate(BASE | changes | {"backend": backend}) for backend in ("numpy", "numba")]
    local = simulate(BASE | changes | {"model": {**BASE["model"], **changes.get("model", {}), "buffers": "local"}})
    checkpoints_every(0.0, monkeypatch)
    runs.append(simulate(BASE | changes))
    assert len({run.metrics.to_csv() for run in runs}) == 1
    assert local.summary["digest"] == runs[0].summary["digest"]
    assert local.summary["validation_loss"] != runs[0].summary["validation_loss"]


def test_what_is_evaluated() -> None:
    graph = vgg(10, (1, 8, 8), (2,), served="last")
    assert graph.evaluated.layout.tensors[-4:] == graph.statistics.tensors
    assert not graph.evaluated.batch_norms


def test_following() -> None:
    running = Running((RunningNorm("m", "v", 0.25), RunningNorm("m", "v", 0.25)))
    found = [Found(np.full(1, 4, np.float32), np.full(1, 3, np.float32), 4)] * 2
    mean, variance = follow(running, [np.zeros(1, np.float32), np.ones(1, np.float32)], found)
    assert (mean[0], variance[0]) == (1.75, 2.3125)  # twice: 0 → 1 → 1.75; 1 → 1.75 → 2.3125, of 3·4/3


def test_two_norms_in_the_order_of_the_nodes() -> None:
    sample = (2, 4, 4)
    nodes = tuple(Node(BatchNorm(eps, affine=False), (0,)) for eps in (1e-5, 0.5))
    base = vgg(10, sample, (2,))
    shift = len(nodes) + 1
    moved = [Node(node.operator, tuple(i + shift for i in node.inputs), node.tensors) for node in base.nodes]
    norms = [RunningNorm(f"{name}.mean", f"{name}.variance") for name in "abcd"]
    graph = replace(base, nodes=(*nodes, Node(Add(), (1, 2)), *moved), running=Running(tuple(norms), "last"))
    assert graph_of_text(text_of_graph(graph).encode()) == graph
    rng = np.random.default_rng(0)
    part = replace(
        load_dataset("digits", None, None, data_root()).train,
        x=rng.normal(size=(12, 32)).astype(np.float32),
        y=np.arange(12) % 10,
    )
    dataset = replace(
        load_dataset("digits", None, None, data_root()), train=part, validation=part, test=part, shape=sample
    )
    params, found = DrawnNetwork(graph).initial(Streams(0)), []
    start = DrawnNetwork(graph).statistics()
    for engine in (GraphEngine(graph, dataset), NumbaGraphEngine(graph, dataset, 6, 1)):
        engine.statistics = Statistics(start, "last")
        engine.gradients([params, params], np.arange(12).reshape(2, 6), Keys(0, np.arange(2), np.zeros(2, int)))
        engine.statistics.arrived(1, reached=True)
        found.append(engine.statistics.served())
        found[-1] += [np.array(engine.evaluate(params, "validation"))]
    assert [one.tobytes() for one in found[0]] == [one.tobytes() for one in found[1]]


def test_a_graph_whose_statistics_do_not_fit_is_refused() -> None:
    graph: Graph = vgg(10, (1, 8, 8), (2,))
    for norms, says in (
        ((RunningNorm("a", "b"),), "2 batch norms, and statistics of 1"),
        ((RunningNorm("a", "b"), RunningNorm("c", "0.weight")), "also among its tensors"),
        ((RunningNorm("a", "b"), RunningNorm("b", "a")), "the same names"),
    ):
        with pytest.raises(ValueError, match=says):
            replace(graph, running=Running(norms))


NAMES = ("norm.running_mean", "norm.running_var")
CASES: dict[str, Any] = {
    "once": [NAMES],
    "of others": [NAMES, NAMES],
    "shape": [NAMES],
    "twice": "computes the batch norm of 'norm.running_mean' once more of the same values, and buffers is last; use",
    "own": "keeps running statistics in '0.mean', which is no buffer of a norm of PyTorch's, and buffers is last; use",
}


@pytest.mark.parametrize("how", CASES)
def test_which_statistics_of_a_module_follow(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    keys = {"name": "torch:own_modules:Normed", "how": how, "numerics": "portable", "buffers": "last"}
    if how == "own":
        keys = keys | {"name": "torch:own_modules:by_own_norm"}
        del keys["how"]
    choice = TorchChoice.model_validate(keys)
    digits, expected = load_dataset("digits", None, None, data_root()), CASES[how]
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=re.escape(expected)):
            choice.network(digits, 0)
        return
    graph = choice.network(digits, 0).graph
    assert graph is not None
    assert graph.running is not None
    assert [norm[:2] for norm in graph.running.norms] == expected
    assert graph_of_text(text_of_graph(graph).encode()) == graph


def test_what_is_refused(small_yaml: Path, refused: Refused) -> None:
    vgg_with = "model={name: vgg, widths: [2], buffers: last}"
    refused("run", small_yaml, vgg_with, "clients.clip_each_sample=1", "--out", "out", says=["leave one out"])
    refused("live", small_yaml, vgg_with, "--out", "out", says=["model.buffers is last; a live run's workers"])
