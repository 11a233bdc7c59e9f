"""Networks as graphs: the bits of dense networks written out, errors that meet, shared tensors, what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from fredsim.compute.graph_engine import BLOCK, GraphEngine
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.linear import Linear as LinearModel
from fredsim.networks.mlp import Mlp
from fredsim.numerics import oracle
from fredsim.numerics.ops.arithmetic import Add, Mul
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.operator import Array
from fredsim.numerics.ops.pointwise import Relu, Tanh
from fredsim.numerics.oracle import tree_sum
from fredsim.numerics.streams import Streams
from tests.dense_networks import forward, gradient

F = np.float32


@pytest.mark.parametrize("number", range(12))
def test_a_dense_network_has_the_bits_of_one_written_out(number: int) -> None:
    rng = np.random.default_rng(number)
    sizes, mu = tuple(rng.integers(1, 40, rng.integers(2, 5)).tolist()), int(rng.integers(1, 140))
    sizes = (*sizes[:-1], max(2, sizes[-1]))
    model = Mlp(sizes)
    params = model.initial(Streams(number)) + F(0.1) * rng.normal(size=model.layout.size).astype(F)
    x, y = np.maximum(rng.normal(size=(mu, sizes[0])), 0).astype(F), rng.integers(0, sizes[-1], mu)
    views = list(model.layout.split(params).values())
    weights = list(zip(views[::2], views[1::2], strict=True))
    layers, losses = gradient(weights, x, y)
    grad, own_losses = model.graph.gradient(params, x, y)
    assert own_losses.tobytes() == losses.tobytes()
    assert grad.tobytes() == b"".join(part.tobytes() for layer in layers for part in layer)
    output = model.graph.forward(params, x).output
    assert output.tobytes() == forward(weights, x).logits.tobytes()
    best = oracle.softmax_cross_entropy(output, y)[2]
    wrong = model.graph.loss.wrong(output, y)
    assert wrong is not None
    assert wrong.tolist() == (best != y).tolist()


@pytest.mark.parametrize("mu", [1, 2, 7, 33])
def test_least_squares_has_the_bits_of_loops(mu: int) -> None:
    rng = np.random.default_rng(mu)
    x, y, w = (rng.normal(size=shape).astype(F) for shape in ((mu, 9), mu, 9))
    errors = np.empty(mu, F)
    for m in range(mu):
        total = F(0)
        for k in range(9):
            total += x[m, k] * w[k]
        errors[m] = total - y[m]
    grad, losses = LinearModel(9).graph.gradient(w, x, y)
    assert losses.tobytes() == (errors * errors * F(0.5)).tobytes()
    assert grad.tobytes() == (tree_sum(x * errors[:, None]) / F(mu)).tobytes()


def test_rows_that_are_evaluated_in_blocks_are_those_of_the_whole() -> None:
    rng, model = np.random.default_rng(6), Mlp((5, 4, 3))
    params, count = model.initial(Streams(2)), 2 * BLOCK + 7
    split = Split(rng.normal(size=(count, 5)).astype(F), rng.integers(0, 3, count))
    engine = GraphEngine(model.graph, Dataset(split, split, Split(split.x[:0], split.y[:0]), 3))
    views = list(model.layout.split(params).values())
    logits = forward(list(zip(views[::2], views[1::2], strict=True)), split.x).logits
    expected, _, best = oracle.softmax_cross_entropy(logits, split.y)
    losses, wrong = engine.outcomes(params, "train")
    assert losses.tobytes() == expected.tobytes()
    assert wrong.tolist() == (best != split.y).tolist()
    assert engine.evaluate(params, "train") == (oracle.mean64(expected), np.count_nonzero(best != split.y) / count)
    assert np.isnan(engine.evaluate(params, "test")).all()


def residual() -> Graph:
    """y = tanh(h) · h + h with h = x·A, and A once more after it."""
    layout = Layout((("A", (3, 3)), ("b", (3,)), ("unused", (2,))))
    shared = (("weight", "A"), ("bias", "b"))
    nodes = (
        Node(Linear(3), (0,), shared), Node(Tanh(), (1,)), Node(Mul(), (2, 1)), Node(Add(), (3, 1)),
        Node(Relu(), (0,)), Node(Linear(3), (4,), shared),
    )  # fmt: skip
    return Graph((3,), (3,), nodes, MeanSquaredError(), layout)


def test_errors_that_meet_are_added() -> None:
    graph, rng = residual(), np.random.default_rng(4)
    x, y, params = (rng.normal(size=shape).astype(F) for shape in ((5, 3), (5, 3), 14))

    def loss(params: Array) -> float:
        a, b = params[:9].astype(np.float64).reshape(3, 3), params[9:12].astype(np.float64)
        h = x @ a + b
        return float((((np.tanh(h) * h + h) @ a + b - y) ** 2).mean())

    grad, losses = graph.gradient(params, x, y)
    np.testing.assert_allclose(losses.mean(), loss(params), rtol=1e-5)
    for i in range(12):
        step = np.zeros(14)
        step[i] = 1e-5
        np.testing.assert_allclose(grad[i], (loss(params + step) - loss(params - step)) / 2e-5, rtol=1e-3, atol=1e-4)
    assert grad[12:].tolist() == [0, 0]


def test_a_shared_tensors_samples_are_added_before_the_tree() -> None:
    graph, rng = residual(), np.random.default_rng(5)
    x, y, params = (rng.normal(size=shape).astype(F) for shape in ((8, 3), (8, 3), 14))
    whole = graph.gradient(params, x, y)[0]
    halves = [graph.gradient(params, x[part], y[part])[0] for part in (slice(0, 4), slice(4, 8))]
    assert (tree_sum(np.stack(halves)) / F(2)).tobytes() == whole.tobytes()


def test_what_does_not_fit() -> None:
    layout = Layout((("A", (3, 2)),))
    dense = Node(Linear(2, bias=False), (0,), (("weight", "A"),))
    with pytest.raises(ValueError, match=r"node 1: takes values \(1,\), which are not all before it"):
        Graph((3,), (), (Node(Relu(), (1,)),), CrossEntropy(), layout)
    with pytest.raises(ValueError, match=r"node 1: takes the tensors {'weight': \(4, 2\)}, not {'weight': \(3, 2\)}"):
        Graph((4,), (), (dense,), CrossEntropy(), layout)
    with pytest.raises(ValueError, match=r"cross_entropy: takes outputs .* not \(2,\) and \(2,\)"):
        Graph((3,), (2,), (dense,), CrossEntropy(), layout)
