"""Dropout of portable networks: what each draw depends on, kernels, and runs whose bits nothing else moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.compute.graph_engine import GraphEngine
from fredsim.config.resolution import resolve
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.networks.graph import Graph
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.draws import Draws, Keys
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.operator import Array
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.views import Permute, Reshape, Slice
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.runs.single.prepared import prepare
from fredsim.simulation.paths.backends import make_engine
from tests.conftest import checkpoints_every
from tests.random_graphs import Builder, dataset, initial
from tests.vectors.contract import philox

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]

KEYS = Keys(5, np.array([0, 7, 3]), np.array([2, 0, 9]))
GPT: dict[str, Any] = {
    "iterations": 30,
    "data": {"name": "modular", "p": 5},
    "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2, "dropout": 0.3},
    "clients": {"count": 4, "batch_size": 3},
    "evaluation": {"every": 10},
}


def rows(*layers: Any) -> Graph:
    """Return a network of layers, a dense one last."""
    to = Builder(6, 5)
    for layer in layers:
        to.add(layer, *([to.last] * layer.inputs))
    to.add(Reshape((-1,)))
    to.add(Linear(4, layout="out_in"))
    return to.graph(CrossEntropy())


def images() -> Graph:
    to = Builder(2, 7, 9)
    to.add(Conv2d(5, (3, 3), (1, 1), (1, 1)))
    to.add(Dropout(0.2))
    to.add(Conv2d(3, (3, 3), (1, 1), (1, 1)))
    to.add(Relu())
    to.add(Dropout(0.5))
    to.add(Reshape((-1,)))
    to.add(Linear(4, layout="out_in"))
    return to.graph(CrossEntropy())


def beside(before: bool) -> Graph:
    """Attention of two heads whose result is sorted by places after another node has drawn, or before its parts are."""
    to = Builder(7, 4)
    whole = to.add(Linear(30))
    early = to.add(Dropout(0.5), to.add(Linear(10), 0))
    three = [to.add(Reshape((7, 2, 5)), to.add(Slice(1, begin, begin + 10), whole)) for begin in (20, 0, 10)]
    y = to.add(Attention(dropout=0.2), *(to.add(Permute((1, 0, 2)), part) for part in three))
    late = early if before else to.add(Dropout(0.4), to.add(Linear(10), 0))
    places = to.add(Reshape((7, 10)), to.add(Permute((1, 0, 2)), y))
    to.add(Dropout(0.3), to.add(Add(), places, late))
    to.add(Reshape((-1,)))
    to.add(Linear(4, layout="out_in"))
    return to.graph(CrossEntropy())


GRAPHS: dict[str, Callable[[], Graph]] = {
    "before attention": lambda: beside(True),
    "between attention and its last view": lambda: beside(False),
    "dense": lambda: rows(Dropout(0.3), Linear(31, layout="out_in"), Dropout(0.9)),
    "attention": lambda: rows(Linear(5, layout="out_in"), Dropout(0.1), Attention(dropout=0.4)),
    "causal": lambda: rows(Linear(5, layout="out_in"), Attention(causal=True, dropout=0.4), Attention(dropout=0.01)),
    "masked": lambda: rows(
        Linear(5, layout="out_in"), Attention(masked=((False, True, False, False, True, False),) * 6, dropout=0.5)
    ),
    "images": images,
}


def test_what_a_draw_depends_on() -> None:
    """The number of each element, by Philox written out: seed, client, gradient, operator, sample, element."""
    found = Draws(11, client=3, number=4).uniform(2, (3, 2, 5))
    for sample in range(3):
        for element in range(10):
            block = sample * 3 + element // 4
            word = philox((block, 4, 3, 2), (11, 13))[element % 4]
            assert found[sample].reshape(-1)[element] == (word >> 8) / 2**24
    assert found[:2].tobytes() == Draws(11, 3, 4).uniform(2, (2, 2, 5)).tobytes()  # of samples alone


def test_samples_that_are_computed_alone_draw_as_the_first_of_gradients_of_their_own(simulate: Simulate) -> None:
    """Sample i of µ in gradient n of a client as the only one of gradient n·µ + i."""
    clients = {"count": 1, "batch_size": 3, "sampling": "sequential", "clip_each_sample": 1e30}
    result = simulate(GPT | {"iterations": 2, "clients": clients, "server": {"name": "asgd", "lr": 0.5}})
    prepared = prepare(resolve(result.config), None)
    seed, engine = prepared.experiment.seed, make_engine("numpy", prepared.model, prepared.dataset, 1, 1)
    theta = prepared.model.initial(Streams(seed))
    for n in range(2):
        each = []
        for row in range(3 * n, 3 * n + 3):
            keys = Keys(seed, np.array([0]), np.array([row]))  # for this is n·µ + i, too
            each.append(engine.gradients([theta], np.array([[row]]), keys)[0][0].copy())
        theta = theta - np.float32(0.5) * np.mean(each, axis=0, dtype=np.float64).astype(np.float32)
    for name, part in prepared.model.layout.slices.items():
        np.testing.assert_allclose(result.params[name].reshape(-1), theta[part], rtol=0, atol=1e-6)


def test_operators_that_draw_are_counted() -> None:
    draws = Draws(1, 2, 3)
    found = draws.of([Dropout(0.0), Dropout(0.5), Relu(), Attention(), Attention(dropout=0.1)])
    assert [draw is None for draw in found] == [True, False, True, True, False]
    first, second = (draw((2, 4)) for draw in found if draw is not None)
    assert first.tobytes() == draws.uniform(0, (2, 4)).tobytes()
    assert second.tobytes() == draws.uniform(1, (2, 4)).tobytes()


def gradients(graph: Graph, mu: int, threads: int, keys: Keys | None) -> Array:
    """Return gradients of three minibatches, after comparing those of kernels and definitions."""
    rng = np.random.default_rng(1)
    data = dataset(graph, rng)
    held = [initial(graph, rng) for _ in range(3)]
    chosen = rng.integers(0, len(data.train), (3, mu))
    plain, engine = GraphEngine(graph, data), NumbaGraphEngine(graph, data, mu, threads)
    try:
        expected, losses = plain.gradients(held, chosen, keys)
        for _ in range(2):
            found, its_losses = engine.gradients(held, chosen, keys)
            assert found.tobytes() == expected.tobytes()
            assert its_losses.tobytes() == losses.tobytes()
        assert engine.outcomes(held[0], "test")[0].tobytes() == plain.outcomes(held[0], "test")[0].tobytes()
        if keys is not None:  # whose other gradients are computed with it changes no bit
            alone = engine.gradients(held[1:2], chosen[1:2], Keys(5, np.array([7]), np.array([0])))[0]
            assert alone.tobytes() == expected[1].tobytes()
    finally:
        engine.close()
    return expected


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_have_the_bits_of_the_definition(name: str) -> None:
    graph = GRAPHS[name]()
    dropped = [gradients(graph, 5, threads, KEYS).tobytes() for threads in (1, 2)]
    assert dropped[0] == dropped[1] != gradients(graph, 5, 1, None).tobytes()


def test_wide_layers() -> None:
    """More elements than are drawn together, and not a multiple of four."""
    gradients(rows(Linear(67, layout="out_in"), Dropout(0.25)), 3, 2, KEYS)
    to = Builder(18, 3)
    to.add(Attention(causal=True, dropout=0.2), 0, 0, 0)
    to.add(Reshape((-1,)))
    to.add(Linear(4, layout="out_in"))
    gradients(to.graph(CrossEntropy()), 2, 1, KEYS)


KNOBS: list[dict[str, Any]] = [
    {"threads": 2}, {"window": 1}, {"window": 3}, {"backend": "numpy"}, {"evaluation": {"every": 7}},
    {"evaluation": {"every": 10, "gradient_norm": True}}, {"probe": {"every": 3}},
]  # fmt: skip


def test_a_run_has_the_same_bits_whatever_else_is_done(simulate: Simulate) -> None:
    digests = {str(knob): simulate(GPT | knob).summary["digest"] for knob in ({}, *KNOBS)}
    assert len(set(digests.values())) == 1, digests
    without = GPT["model"] | {"dropout": 0.0}
    assert simulate(GPT | {"model": without}).summary["digest"] not in digests.values()
    assert simulate(GPT | {"seed": 1}).summary["digest"] not in digests.values()


def test_local_steps_and_stops(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each local step draws anew, and a run that stops after each event goes on with the same bits."""
    steps = GPT | {
        "clients": {"count": 4, "batch_size": 3, "local_steps": 2},
        "server": {"name": "fedasync", "lr": 0.1},
    }
    whole = simulate(steps).summary["digest"]
    assert simulate(steps | {"window": 1, "backend": "numpy"}).summary["digest"] == whole
    checkpoints_every(0.0, monkeypatch)
    assert simulate(steps).summary["digest"] == whole


def test_vgg_and_its_key(simulate: Simulate, small_yaml: Path, refused: Callable[..., None]) -> None:
    vgg = {"iterations": 6, "model": {"name": "vgg", "widths": [4], "dropout": 0.5}}
    assert simulate(vgg).summary["digest"] == simulate(vgg | {"backend": "numpy", "window": 2}).summary["digest"]
    refused("run", small_yaml, "model={name: vgg, dropout: 1.0}", says=["model.dropout", "less than 1"])
    refused("run", small_yaml, "model={name: lenet, dropout: 0.1}", says=["model.dropout", "unknown key"])
