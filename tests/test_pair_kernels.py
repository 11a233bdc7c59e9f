"""Kernels of products of two matrices, of softmax and of norms by given statistics have the bits of the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fredsim.kernels.ops.fallback import FallbackKernels
from fredsim.kernels.ops.plan import Plan
from fredsim.networks.graph import Graph
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import FrozenBatchNorm
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.products import MatMul, Softmax
from fredsim.numerics.ops.views import Reshape
from tests import random_graphs
from tests.test_graph_kernels import compare as compare_images
from tests.test_sequence_kernels import Builder, compare, draw


def without_definitions(graph: Graph, x: Any, y: Any) -> bool:
    """Return whether kernels compute all nodes of a graph."""
    from fredsim.data.datasets import Split

    plan = Plan(graph, Split(x, y), 2, 1, learn=True)
    return not any(type(node.kernels) is FallbackKernels for node in plan._planned)


#: Matrices before the last two axes, rows, terms, columns; some of more rows than a block, of odd numbers, of one.
PAIRS: list[tuple[Shape, int, int, int]] = [
    ((), 1, 1, 1), ((), 3, 4, 5), ((2,), 17, 16, 33), ((3, 2), 5, 19, 8), ((), 131, 7, 16), ((4,), 1, 40, 17),
    ((2,), 65, 1, 3),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "rows", "depth", "columns"), PAIRS)
def test_products_of_two_matrices(batch: Shape, rows: int, depth: int, columns: int) -> None:
    rng, network = np.random.default_rng(rows), Builder((*batch, rows, 3), [], {})
    left = network.add(Linear(depth), 0)
    flat = network.add(Reshape((-1,)), 0)
    size = int(np.prod(batch, dtype=int)) * depth * columns
    right = network.add(Reshape((*batch, depth, columns)), network.add(Linear(size), flat))
    network.add(MatMul(), left, right)
    graph = network.graph(MeanSquaredError())
    for mu, threads, odd in ((1, 1, False), (5, 3, False), (4, 2, True)):
        x, y = draw(rng, *graph.sample, odd=odd), draw(rng, *graph.target)
        compare(graph, x, y, mu, threads, odd=odd)
    assert without_definitions(graph, x, y)


@pytest.mark.parametrize("shape", [(1,), (7,), (16,), (33,), (3, 5), (17, 2), (2, 3, 18)])
def test_softmax(shape: Shape) -> None:
    rng, network = np.random.default_rng(shape[-1]), Builder((*shape[:-1], 4), [], {})
    network.add(Softmax(), network.add(Linear(shape[-1]), 0))
    graph = network.graph(MeanSquaredError())
    for mu, threads, odd in ((1, 2, False), (13, 1, False), (33, 3, True)):
        x, y = draw(rng, *graph.sample, odd=odd), draw(rng, *graph.target)
        compare(graph, x, y, mu, threads, scale=3, odd=odd)
    assert without_definitions(graph, x, y)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 4), (17, 9, 2), (32, 1, 1), (5, 7), (6,)])
def test_norms_by_given_statistics(shape: Shape, affine: bool) -> None:
    made = random_graphs.Builder(*shape)
    if len(shape) == 3:
        made.add(Conv2d(shape[0], (3, 3), padding=(1, 1)))
    before = made.last
    made.add(FrozenBatchNorm(1e-3, affine))
    if affine and len(shape) == 3:
        made.add(Add(), before, made.last)
    made.add(Relu())
    made.add(Reshape((-1,)))
    made.add(Linear(3))
    graph = made.graph(MeanSquaredError(), (3,))
    for mu, threads, odd in ((1, 2, False), (7, 3, False), (5, 1, True)):
        compare_images(graph, mu, threads, mu, odd=odd, batches=1)
