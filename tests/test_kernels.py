"""The compiled kernels give the oracle's bits, whatever the shapes, the batch and the threads."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.backends import MARGIN, NumpyEngine
from fredsim.datasets import Dataset, Split
from fredsim.kernels.engine import NumbaEngine
from fredsim.kernels.team import Team
from fredsim.models import Mlp


def dataset(inputs: int, classes: int, seed: int = 0, rows: int = 60) -> Dataset:
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((rows, inputs)) < 0.4, rng.random((rows, inputs)), 0).astype(np.float32)
    y = rng.integers(0, classes, rows)
    return Dataset(Split(x[:50], y[:50]), Split(x[50:57], y[50:57]), Split(x[57:], y[57:]), classes)


def held(size: int, batches: int, std: float, seed: int = 0) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    padded = (rng.standard_normal((batches, size + MARGIN)) * std).astype(np.float32)
    padded[:, size:] = np.nan  # what a kernel may read but must not use
    return [row[:size] for row in padded]


@settings(deadline=None, max_examples=40)
@given(
    hidden=st.lists(st.integers(1, 130), max_size=3),
    inputs=st.integers(1, 40),
    classes=st.integers(2, 20),
    mu=st.sampled_from([1, 2, 3, 8, 13, 32, 50]),
    batches=st.integers(1, 4),
    threads=st.integers(1, 3),
    std=st.sampled_from([0.05, 1.0, 30.0]),
)
def test_gradients_and_evaluation(
    hidden: list[int], inputs: int, classes: int, mu: int, batches: int, threads: int, std: float
) -> None:
    model, data = Mlp((inputs, *hidden, classes)), dataset(inputs, classes)
    params = held(model.layout.size, batches, std)
    rows = np.random.default_rng(1).integers(0, 50, (batches, mu))
    oracle, kernels = NumpyEngine(model, data), NumbaEngine(model, data, threads)
    try:
        expected, expected_losses = oracle.gradients(params, rows)
        found, losses = kernels.gradients(params, rows)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
        np.testing.assert_array_equal(losses.view(np.uint32), expected_losses.view(np.uint32))
        assert kernels.evaluate(params[0], "validation") == oracle.evaluate(params[0], "validation")
        assert kernels.evaluate(params[0], "test") == oracle.evaluate(params[0], "test")
    finally:
        kernels.close()


@pytest.fixture
def team() -> Iterator[Team]:
    with Team(2) as both:
        yield both


def test_a_team_meets_again_and_again(team: Team) -> None:
    from fredsim.kernels.dense import evaluate

    sizes = np.array([1, 2])
    first, column, value = np.arange(65), np.zeros(64, np.int32), np.ones(64, np.float32)
    weights = np.zeros(4 + MARGIN, np.float32)
    for _ in range(200):
        losses, wrong = np.full(64, np.nan, np.float32), np.ones(64, np.bool_)
        team.run(evaluate, sizes, weights, first, column, value, np.zeros(64, np.int64), losses, wrong)
        assert not wrong.any()
        assert np.isfinite(losses).all()
