"""DC-ASGD: the published three-step values, dense and sparse, its backups, and when it is plain SGD."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.errors import ConfigError
from fredsim.networks.layout import Layout
from fredsim.servers import ASGD, DCASGD, SparseRows

Array = NDArray[np.float32]
LIKE_TENSORFLOW: dict[str, Any] = {
    "lr": 0.01, "adaptive": False, "lambda0": 2.0, "backup": "push", "initial_backup": "zero"
}  # fmt: skip
STEPS = [
    ([1, 2], [0.1, 0.1], [[0.9988, 1.9986], [0.9978, 1.9976], [0.9968, 1.9966]]),
    ([3, 4], [0.01, 0.01], [[2.999894, 3.999892], [2.999794, 3.999792], [2.999694, 3.999692]]),
]


def started(params: Any, clients: int = 1, layout: Layout | None = None, **hyper: Any) -> DCASGD:
    server = DCASGD(**hyper)
    server.init(np.asarray(params, np.float32), clients, layout)
    return server


def f32(values: Any) -> Array:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("kind", ["dense", "sparse", "sparse with repeated rows"])
@pytest.mark.parametrize(("theta", "g", "expected"), STEPS)
def test_three_steps_of_the_tensorflow_variant(theta: Any, g: Any, expected: Any, kind: str) -> None:
    server = started(theta, **LIKE_TENSORFLOW)
    whole = f32(g)
    push: Any = whole
    if kind == "sparse":
        push = SparseRows(np.array([1, 0]), whole[::-1])
    elif kind == "sparse with repeated rows":
        push = SparseRows(np.array([1, 0, 1, 0]), np.concatenate([whole[::-1] / 2, whole[::-1] / 2]))
    for step, values in enumerate(expected):
        server.apply_update(push, 0, step)
        server.begins(0, server.params, step + 1)
        np.testing.assert_allclose(server.params, values, rtol=0, atol=1e-6)
        if kind == "dense":
            dense = server.params.copy()
        assert server.timestamp == step + 1
    if kind == "dense":
        np.testing.assert_allclose(dense, expected[-1], rtol=1e-6)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("backup", ["pull", "push"])
@pytest.mark.parametrize("mean_square", ["shared", "client"])
def test_sparse_pushes_of_all_rows_are_dense_pushes(adaptive: bool, backup: str, mean_square: str) -> None:
    rng = np.random.default_rng(0)
    layout = Layout((("W", (5, 4)), ("b", (4,)), ("E", (7, 3))))
    start = rng.standard_normal(layout.size).astype(np.float32)
    hyper: dict[str, Any] = {"lr": 0.1, "adaptive": adaptive, "backup": backup, "mean_square": mean_square}
    dense, sparse = (started(start, 3, layout, **hyper) for _ in range(2))
    begin, shape = layout.place("E")
    assert shape == (7, 3)
    for step in range(40):
        client = int(rng.integers(3))
        rows = rng.permutation(7)
        values = rng.standard_normal((7, 3)).astype(np.float32)
        whole = np.zeros(layout.size, np.float32)
        whole[begin:].reshape(7, 3)[rows] = values
        dense.apply_update(whole, client, step)
        sparse.apply_update(SparseRows(rows, values, "E"), client, step)
        for server in (dense, sparse):
            server.begins(client, server.params, step + 1)
        # elsewhere the gradient is zero, which moves no parameter
        assert dense.params.tobytes() == sparse.params.tobytes()
    assert (dense.params[:begin] == start[:begin]).all()
    assert (dense.params[begin:] != start[begin:]).all()


def test_the_given_rows_decay_and_no_others() -> None:
    layout, start = Layout((("E", (4, 3)),)), np.arange(1, 13, dtype=np.float32)
    falling = {"name": "step", "base": 0.5, "every": 1, "factor": 0.5}
    dense, all_rows, some = (started(start, 1, layout, lr=falling, weight_decay=0.25) for _ in range(3))
    zeros = np.zeros((4, 3), np.float32)
    for step in range(3):
        dense.apply_update(zeros.reshape(-1), 0, step)
        all_rows.apply_update(SparseRows(np.arange(4), zeros, "E"), 0, step)
        some.apply_update(SparseRows(np.array([2, 0]), zeros[:2], "E"), 0, step)
    decayed = start.reshape(4, 3) * (1 - 0.5 / 4) * (1 - 0.25 / 4) * (1 - 0.125 / 4)
    np.testing.assert_allclose(dense.params.reshape(4, 3), decayed, rtol=1e-6)
    assert all_rows.params.tobytes() == dense.params.tobytes()
    np.testing.assert_allclose(some.params.reshape(4, 3)[[0, 2]], decayed[[0, 2]], rtol=1e-6)
    np.testing.assert_array_equal(some.params.reshape(4, 3)[[1, 3]], start.reshape(4, 3)[[1, 3]])


def test_only_the_given_rows_of_parameters_and_backup_change() -> None:
    """Row 1 of three by client 0, then a dense push of client 1, then one of client 0, by hand in float32."""
    f = np.float32
    alpha, scale = f(0.1), f(0.5)
    start = f32([[1, 2], [3, 4], [5, 6]])
    layout = Layout((("E", (3, 2)),))
    server = started(start.reshape(-1), 2, layout, lr=0.1, adaptive=False, lambda0=0.5, backup="push")

    def step(theta: Array, g: Array, backup: Array) -> Array:
        new: Array = theta - alpha * (g + ((scale * g) * g) * (theta - backup))
        return new

    theta, backups = start.copy(), [start.copy(), start.copy()]
    row = f32([[0.5, -2]])
    server.apply_update(SparseRows(np.array([1]), row, "E"), 0, 0)
    theta[1] = step(theta[1], row[0], backups[0][1])
    backups[0][1] = theta[1]
    np.testing.assert_array_equal(server.params.reshape(3, 2), theta)
    np.testing.assert_array_equal(server.params.reshape(3, 2)[[0, 2]], start[[0, 2]])

    dense = f32([[1, -1], [2, -2], [3, -3]])
    server.apply_update(dense.reshape(-1), 1, 0)
    theta = step(theta, dense, backups[1])
    backups[1] = theta
    np.testing.assert_array_equal(server.params.reshape(3, 2), theta)

    server.apply_update(dense.reshape(-1), 0, 1)
    expected = step(theta, dense, backups[0])
    np.testing.assert_array_equal(server.params.reshape(3, 2), expected)
    copied_whole = step(theta, dense, np.where(np.arange(6).reshape(3, 2) >= 0, theta, backups[0]))
    assert (expected != copied_whole).any()  # the case tells rows from a whole copy


def test_repeated_rows_are_summed_first_by_the_tree() -> None:
    """Pushed one by one they would square each value: (a + b)² is not a² + b². In float32 the order of a sum shows."""
    values = f32([1e8, 1, -1e8, 1])  # the tree: (1e8 + 1) + (−1e8 + 1) = 0
    once, repeated, one_by_one = (started([3.0, 7.0], **LIKE_TENSORFLOW) for _ in range(3))
    once.apply_update(SparseRows(np.array([0]), f32([0.0])), 0, 0)
    repeated.apply_update(SparseRows(np.zeros(4, np.int64), values), 0, 0)
    np.testing.assert_array_equal(repeated.params, once.params)
    for server, pushes in ((repeated, [[0.5, 0.25]]), (one_by_one, [[0.5], [0.25]])):
        server.init(f32([3, 7]), 1)
        for push in pushes:
            server.apply_update(SparseRows(np.ones(len(push), np.int64), f32(push)), 0, 0)
    np.testing.assert_allclose(repeated.params, [3, 7 - 0.01 * (0.75 + 2 * 0.75**2 * 7)], rtol=1e-6)
    assert repeated.params[1] != one_by_one.params[1]


def test_no_rows_are_an_update_without_effect() -> None:
    server = started([1.0, 2.0], lr=0.1)
    server.apply_update(SparseRows(np.array([], np.int64), np.zeros((0, 1), np.float32)), 0, 0)
    assert server.timestamp == 1
    assert server.finite
    np.testing.assert_array_equal(server.params, f32([1, 2]))


@pytest.mark.parametrize("rows", [[-1], [0, 3], [100]])
def test_rows_outside_are_refused(rows: list[int]) -> None:
    server = started(np.ones(6), 2, Layout((("E", (3, 2)),)), lr=0.1)
    with pytest.raises(ConfigError, match=r"do not fit the tensor E, \(3, 2\)"):
        server.apply_update(SparseRows(np.array(rows), np.ones((len(rows), 2), np.float32), "E"), 0, 0)
    with pytest.raises(ConfigError, match="client_id is 2"):
        server.apply_update(SparseRows(np.array([0]), np.ones((1, 2), np.float32), "E"), 2, 0)
    with pytest.raises(ConfigError, match="of width 3"):
        server.apply_update(SparseRows(np.array([0]), np.ones((1, 3), np.float32), "E"), 0, 0)
    np.testing.assert_array_equal(server.params, np.ones(6, np.float32))
    assert server.timestamp == 0


def test_a_sparse_gradient_that_is_not_finite_is_noticed() -> None:
    server = started(np.ones(6), lr=0.1)
    server.apply_update(SparseRows(np.array([2]), f32([np.nan])), 0, 0)
    assert not server.finite


def gradients(count: int, scale: float = 1.0) -> list[Array]:
    rng = np.random.default_rng(5)
    return [(scale * rng.standard_normal(50)).astype(np.float32) for _ in range(count)]


BACKUPS = [
    {"adaptive": adaptive, "backup": backup, "mean_square": mean_square}
    for adaptive in (False, True)
    for backup in ("pull", "push")
    for mean_square in ("shared", "client")
]


@pytest.mark.parametrize("scale", [1.0, 1e30])  # g² overflows at the second
@pytest.mark.parametrize("initial", ["params", "zero"])
@pytest.mark.parametrize("hyper", BACKUPS)
def test_without_lambda_it_is_asgd(
    hyper: dict[str, Any], initial: str, scale: float, exchange: Callable[..., Any]
) -> None:
    own = {"name": "dcasgd", "lr": 0.1, "lambda0": 0.0, "initial_backup": initial, **hyper}
    pair = [exchange(spec, 4, size=50, drops=0.2) for spec in (own, {"name": "asgd", "lr": 0.1})]
    for g in gradients(100, scale):
        clients = [int(ex.rng.integers(4)) for ex in pair]
        for ex, client in zip(pair, clients, strict=True):
            ex.push(client, [g])
        assert pair[0].server.params.tobytes() == pair[1].server.params.tobytes()
    assert pair[0].server.finite


@pytest.mark.parametrize("hyper", BACKUPS)
def test_one_client_that_always_fetches_is_plain_sgd(hyper: dict[str, Any]) -> None:
    start = gradients(1)[0]
    server, sgd = started(start, lr=0.1, **hyper), ASGD(lr=0.1)
    sgd.init(start, 1)
    for step, g in enumerate(gradients(100)):
        server.apply_update(g, 0, step)
        server.begins(0, server.params, step + 1)
        sgd.apply_update(g, 0, step)
        assert server.params.tobytes() == sgd.params.tobytes()


@pytest.mark.parametrize("hyper", BACKUPS)
def test_the_zero_start_spoils_the_first_push_only(hyper: dict[str, Any]) -> None:
    start = gradients(1)[0]
    server, sgd = started(start, lr=0.1, initial_backup="zero", **hyper), ASGD(lr=0.1)
    for step, g in enumerate(gradients(100)):
        server.apply_update(g, 0, step)
        server.begins(0, server.params, step + 1)
        if step == 0:
            wide, theta = g.astype(np.float64), start.astype(np.float64)
            scale = 2 / np.sqrt(0.05 * wide**2 + 1e-7) if hyper["adaptive"] else 0.04
            expected = theta - 0.1 * (wide + scale * wide**2 * theta)
            np.testing.assert_allclose(server.params, expected, rtol=0, atol=1e-6)
            assert np.abs(server.params - (start - np.float32(0.1) * g)).max() > 1e-3
            sgd.init(server.params, 1)
        else:
            sgd.apply_update(g, 0, step)
            assert server.params.tobytes() == sgd.params.tobytes()
