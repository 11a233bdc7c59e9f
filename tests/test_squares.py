"""Least squares and a quadratic: kernels against the oracle, gradients and gaps against formulas in float64."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.compute import objectives
from fredsim.compute.engines import Engine
from fredsim.config.choices import Backend
from fredsim.config.data import LeastSquares
from fredsim.data.problems import Quadratic, least_squares, quadratic
from fredsim.data.squares import draw_rows
from fredsim.errors import ConfigError
from fredsim.networks.linear import Linear
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.streams import Streams
from fredsim.simulation.paths.backends import make_engine
from tests.conftest import needs_cuda

Array = NDArray[np.float32]
BACKENDS: tuple[Backend, ...] = ("numpy", "numba")


def held(size: int, batches: int, std: float = 1.0) -> list[Array]:
    padded = (np.random.default_rng(0).standard_normal((batches, size + MARGIN)) * std).astype(np.float32)
    padded[:, size:] = np.nan  # what a kernel may read but must not use
    return [row[:size] for row in padded]


def same(engines: list[Engine], params: list[Array], rows: NDArray[np.int64]) -> None:
    with np.errstate(all="ignore"):
        expected, *others = ([np.array(one) for one in engine.gradients(params, rows)] for engine in engines)
        for found in others:
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
        for part in ("train", "validation", "test"):
            oracle, *kernels = (engine.outcomes(params[0], part) for engine in engines)
            assert [one[0].tobytes() for one in kernels] == [oracle[0].tobytes()] * len(kernels)
            assert all(np.isnan(one[1].astype(float)).all() for one in (oracle, *kernels))
            means = {repr(engine.evaluate(params[0], part)) for engine in engines}
            assert len(means) == 1
    for engine in engines:
        engine.close()


@settings(max_examples=30)
@given(
    columns=st.integers(1, 150),
    mu=st.sampled_from([1, 2, 3, 5, 8, 13, 32, 50, 64, 100]),
    batches=st.integers(1, 4),
    threads=st.integers(1, 3),
    std=st.sampled_from([0.05, 1.0, 1e20]),
)
def test_least_squares_of_kernels_and_oracle(columns: int, mu: int, batches: int, threads: int, std: float) -> None:
    data = least_squares(columns, 0.1, 3, 60, 7)
    rows = np.random.default_rng(1).integers(0, 60, (batches, mu))
    engines = [make_engine(name, Linear(columns), data, mu, threads) for name in BACKENDS]
    same(engines, held(columns, batches, std), rows)


@settings(max_examples=30)
@given(
    size=st.integers(2, 1500), noise=st.sampled_from([0.0, 0.1, 1e30]), batches=st.integers(1, 4),
    threads=st.integers(1, 3), std=st.sampled_from([0.05, 1e25]),
)  # fmt: skip
def test_quadratic_of_kernels_and_oracle(size: int, noise: float, batches: int, threads: int, std: float) -> None:
    data, draw = quadratic(size, noise, 5), np.random.default_rng(1)
    tasks = draw.integers(0, 10**7, (batches, 1)) << 32 | draw.integers(0, 2**32, (batches, 1))
    engines = [make_engine(name, Linear(size), data, 1, threads) for name in BACKENDS]
    same(engines, held(size, batches, std), tasks)


@needs_cuda
@pytest.mark.parametrize(("most", "batches", "noise"), [(65_535, 65_537, 0.0), (3, 8, 0.1), (3, 9, 0.1)])
def test_more_minibatches_than_a_grid_has_blocks(
    most: int, batches: int, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along its third axis: those of a window go in several launches, each with its own parameters and noise."""
    from fredsim.cuda import engine, squares_engine

    if most != engine.MOST_MINIBATCHES:
        monkeypatch.setattr(squares_engine, "MOST_MINIBATCHES", most)
    data, draw = quadratic(3, noise, 5), np.random.default_rng(1)
    tasks, two = draw.integers(0, 10**7, (batches, 1)) << 32, held(3, 2)
    one, other = (make_engine(name, Linear(3), data, 1, None) for name in ("numpy", "cuda"))
    there = [cast(Any, other).array_of(params) for params in two]
    found, losses = other.gradients([there[number % 2] for number in range(batches)], tasks)
    assert len(losses) == batches
    some = [0, 1, *range(batches - 6, batches)]
    expected, _ = one.gradients([two[number % 2] for number in some], tasks[some])
    assert np.asarray(found)[some].tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize(
    ("validation", "says"),
    [(1, "2³² rows are too many"), (0, "4,294,967,295 rows take 120 GB, and this machine has")],
)
def test_rows_that_are_too_many(validation: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.system.memory.machine_memory", lambda: 2**30)
    rows = LeastSquares(name="least_squares", train=2**32 - 1, validation=validation, columns=1)
    with pytest.raises(ConfigError, match=says):
        rows.load(tmp_path, 0)


def test_least_squares_against_formulas() -> None:
    data = least_squares(30, 0.3, 1, 200, 50)
    (params,), rows = held(30, 1), np.random.default_rng(2).integers(0, 200, 64)
    x, y, w = (array.astype(np.float64) for array in (data.train.x, data.train.y, params))
    (gradient,), (losses,) = make_engine("numpy", Linear(30), data, 64, None).gradients([params], rows[None])
    np.testing.assert_allclose(gradient, x[rows].T @ (x[rows] @ w - y[rows]) / 64, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(losses, (x[rows] @ w - y[rows]) ** 2 / 2, rtol=1e-4, atol=1e-7)
    best, *_ = np.linalg.lstsq(x, y, rcond=None)
    value = [((x @ at - y) ** 2).mean() / 2 for at in (w, best)]
    assert objectives.gap(data)(params) == pytest.approx(value[0] - value[1], rel=1e-10)
    assert 0 <= objectives.gap(data)(best.astype(np.float32)) < 1e-13
    norm = np.linalg.norm(x.T @ (x @ w - y) / 200)
    assert objectives.gradient_norm(data)(params) == pytest.approx(norm, rel=1e-12)


def test_more_columns_than_rows() -> None:
    """Then an optimum leaves nothing."""
    data = least_squares(40, 0.3, 1, 25, 0)
    (params,) = held(40, 1)
    x, y = data.train.x.astype(np.float64), data.train.y.astype(np.float64)
    assert objectives.gap(data)(params) == pytest.approx(((x @ params - y) ** 2).mean() / 2, rel=1e-9)


def test_quadratic_against_formulas() -> None:
    size = 120
    matrix = (2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1)) / 4
    b = np.zeros(size)
    b[0] = -0.25
    best = np.linalg.solve(matrix, b)

    def value(at: NDArray[np.floating]) -> float:
        return float(at @ matrix @ at / 2 - b @ at)

    data, (params,) = quadratic(size, 0.0, 0), held(size, 1)
    x = params.astype(np.float64)
    (gradient,), losses = make_engine("numpy", Linear(size), data, 1, None).gradients(
        [params], np.zeros((1, 1), np.int64)
    )
    np.testing.assert_allclose(gradient, matrix @ x - b, atol=1e-6)
    assert losses[0, 0] == pytest.approx(value(x), rel=1e-6)
    assert objectives.gap(data)(params) == pytest.approx(value(x) - value(best), rel=1e-12)
    assert objectives.gap(data)(best.astype(np.float32)) < 1e-13
    assert objectives.gradient_norm(data)(params) == pytest.approx(np.linalg.norm(matrix @ x - b), rel=1e-12)


def test_noise_is_of_the_client_and_its_task() -> None:
    """And of the seed; of the law that it should have."""

    def noise(task: int, seed: int = 4) -> Array:
        engines = (make_engine("numpy", Linear(4000), quadratic(4000, sd, seed), 1, None) for sd in (0.5, 0.0))
        noisy, plain = (engine.gradients([np.zeros(4000, np.float32)], np.array([[task]]))[0][0] for engine in engines)
        return np.asarray(noisy - plain)

    one = noise(7 << 32 | 3)
    assert noise(7 << 32 | 3).tobytes() == one.tobytes()
    for other in (noise(8 << 32 | 3), noise(7 << 32 | 4), noise(7 << 32 | 3, seed=5)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.06
    assert one.mean() == pytest.approx(0, abs=0.03)
    assert one.std() == pytest.approx(0.5, rel=0.05)


def test_rows_are_of_their_law_and_stay_where_they_are() -> None:
    x, y = draw_rows(500, 100, 0.0, 2)
    np.testing.assert_array_equal(x[:20], draw_rows(20, 100, 0.0, 2)[0])
    assert (x.min() >= 0, x.max() < 0.1, x.mean()) == (True, True, pytest.approx(0.05, rel=0.01))
    solution, rest, *_ = np.linalg.lstsq(x.astype(np.float64), y.astype(np.float64), rcond=None)
    assert rest[0] < 1e-10
    assert solution.std() == pytest.approx(1, rel=0.25)
    noisy = draw_rows(500, 100, 0.5, 2)[1]
    assert (noisy - y).std() == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize(("init", "expected"), [("zeros", 0.0), ("first", 81.0), ("normal", 162.0)])
def test_initial_parameters(init: str, expected: float) -> None:
    """Of squared norm: √P in the first place alone, or drawn."""
    params = Linear(81, init, std=np.sqrt(2)).initial(Streams(0)).astype(np.float64)
    assert params @ params == pytest.approx(expected, rel=0.5 if init == "normal" else 1e-6)
    assert init != "first" or not params[1:].any()


def test_a_quadratic_stands_for_one_row() -> None:
    data = quadratic(9, 0.1, 3)
    assert isinstance(data, Quadratic)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [1, 1, 0]
    assert data.train.x.tolist() == [[-0.25] + 8 * [0.0]]  # which is b
