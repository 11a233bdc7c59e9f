"""The kernels of networks that are graphs have the bits of the operators' definitions, for any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fredsim.compute.graph_engine import GraphEngine
from fredsim.kernels.ops.correlate import LANES, Tile, padded, spans, tile_of
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.networks.graph import Graph
from fredsim.numerics.ops.arithmetic import Add, Mul
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, GroupNorm, LayerNorm
from fredsim.numerics.ops.operator import Array
from fredsim.numerics.ops.pointwise import Relu, Tanh
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, MaxPool2d
from fredsim.numerics.ops.views import Reshape
from tests.random_graphs import Builder, dataset, initial, random_graph

ROOT = Path(__file__).parent.parent
QUICK, MANY = 60, 3000  # random graphs; the second number with --slow


def bits(array: Array) -> bytes:
    """Return an array's bits, those of every NaN being the same: processors differ in them."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


def compare(graph: Graph, mu: int, threads: int, seed: int, *, odd: bool = False, batches: int = 2) -> Array:
    """Compare gradients, losses and answers with the definitions'; return the gradients."""
    rng = np.random.default_rng(seed)
    data = dataset(graph, rng, odd=odd)
    held = [initial(graph, rng, odd=odd) for _ in range(batches)]
    rows = rng.integers(0, len(data.train), (batches, mu))
    expected, engine = GraphEngine(graph, data), NumbaGraphEngine(graph, data, mu, threads)
    try:
        grads, losses = expected.gradients(held, rows)
        for _ in range(2):  # the second time, buffers have what the first left in them
            found, found_losses = engine.gradients(held, rows)
            assert bits(found_losses) == bits(losses)
            assert bits(found) == bits(grads)
        each, wrong = expected.outcomes(held[0], "test")
        found_each, found_wrong = engine.outcomes(held[0], "test")
        assert bits(found_each) == bits(each)
        assert np.array_equal(found_wrong, wrong, equal_nan=True)
    finally:
        engine.close()
    return grads


def compare_random(seed: int) -> None:
    """Compare a random graph, with odd numbers for every other seed."""
    rng = np.random.default_rng(seed)
    graph, mu = random_graph(rng), int(rng.choice([1, 2, 3, 4, 5, 8, 9, 16, 33]))
    compare(graph, mu, 1 + seed % 3, seed, odd=bool(seed % 2), batches=1)


@pytest.mark.parametrize("part", range(6))
def test_random_graphs(part: int) -> None:
    for seed in range(part, QUICK, 6):
        compare_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_graphs(part: int) -> None:
    for seed in range(QUICK + part, MANY, 10):
        compare_random(seed)
