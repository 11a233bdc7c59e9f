"""Initial parameters of any graph: the draws of each kind of tensor, by an independent computation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fredsim.networks.graph import Graph, Node
from fredsim.networks.initial import initial_parameters
from fredsim.networks.layout import Layout
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.norms import GroupNorm, LayerNorm
from fredsim.numerics.ops.operator import Array
from fredsim.numerics.ops.views import Reshape
from fredsim.numerics.streams import Stream, Streams, normal_quantile

STREAMS = Streams(3)


def images() -> Graph:
    layout = (
        ("c", (6, 2, 3, 2)), ("gamma", (6,)), ("bias", (6,)), ("beta", (6,)), ("head", (5, 6 * 2 * 3)), ("b", (5,))
    )  # fmt: skip
    nodes = (
        Node(Conv2d(6, (3, 2), groups=2), (0,), (("weight", "c"), ("bias", "bias"))),
        Node(GroupNorm(2), (1,), (("weight", "gamma"), ("bias", "beta"))),
        Node(Reshape((-1,)), (2,)),
        Node(Linear(5, layout="out_in"), (3,), (("weight", "head"), ("bias", "b"))),
    )
    return Graph((4, 4, 4), (), nodes, CrossEntropy(), Layout(layout))


def words(count: int, step: int) -> Array:
    return STREAMS.words(Stream.PARAMETERS, np.arange(count), step)


def uniform(limit: float, drawn: Array) -> Array:
    return np.float32(limit) * ((drawn >> 8) * 2.0**-23 - 1).astype(np.float32)


def test_convolutions_and_dense_layers_by_fans() -> None:
    graph = images()
    sizes = {"c": (72, 2 * 6, 6 * 6), "head": (180, 36, 5)}
    views = {init: graph.layout.split(initial_parameters(graph, STREAMS, init, 0.5)) for init in
             ("he", "glorot", "torch", "normal")}  # fmt: skip
    for step, (name, (count, inputs, outputs)) in enumerate(sizes.items()):
        normal = normal_quantile(words(count, step))
        expected = {
            "he": (normal * math.sqrt(2 / inputs)).astype(np.float32),
            "normal": (normal * 0.5).astype(np.float32),
            "glorot": uniform(math.sqrt(6 / (inputs + outputs)), words(count, step)),
            "torch": uniform(math.sqrt(1 / inputs), words(count, step)),
        }
        for init, values in expected.items():
            np.testing.assert_array_equal(views[init][name].reshape(-1), values)
    drawn = uniform(math.sqrt(1 / 12), words(78, 0))[72:]
    np.testing.assert_array_equal(views["torch"]["bias"], drawn)
    for init, tensors in views.items():
        assert tensors["gamma"].tolist() == [1] * 6
        assert tensors["beta"].tolist() == [0] * 6
        assert init == "torch" or not (tensors["bias"].any() or tensors["b"].any())
    left = graph.layout.split(initial_parameters(graph, STREAMS, "zeros"))
    assert {name: float(np.abs(view).sum()) for name, view in left.items() if view.any()} == {"gamma": 6}


@pytest.mark.parametrize("init", ["he", "torch", "glorot"])
def test_tables_are_normal_and_shared_ones_are_their_layers(init: str) -> None:
    layout = Layout((("table", (7, 4)), ("gamma", (4,)), ("beta", (4,)), ("other", (7, 4))))
    norm = Node(LayerNorm(), (1,), (("weight", "gamma"), ("bias", "beta")))

    def views(head: str) -> dict[str, Array]:
        nodes = (
            Node(Embedding(7, 4), (0,), (("weight", "table"),)),
            norm,
            Node(Linear(7, bias=False, layout="out_in"), (2,), (("weight", head),)),
        )
        graph = Graph((3,), (3,), nodes, CrossEntropy(), layout)
        return graph.layout.split(initial_parameters(graph, STREAMS, init))

    own, tied = views("other"), views("table")
    np.testing.assert_array_equal(own["table"].reshape(-1), normal_quantile(words(28, 0)).astype(np.float32))
    limit = {"torch": math.sqrt(1 / 4), "glorot": math.sqrt(6 / 11), "he": 0}[init]
    drawn = uniform(limit, words(28, 0)) if limit else normal_quantile(words(28, 0)) * math.sqrt(2 / 4)
    np.testing.assert_array_equal(tied["table"].reshape(-1), drawn.astype(np.float32))
    assert not tied["other"].any()  # no node takes it


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match=r"init is 'xavier'; it must be he, glorot, torch, zeros or normal"):
        initial_parameters(images(), STREAMS, "xavier")
