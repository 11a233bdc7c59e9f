"""DC-ASGD: the published three-step values, its backups, and when it is plain SGD."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.errors import ConfigError
from fredsim.servers import ASGD, DCASGD

Array = NDArray[np.float32]
LIKE_TENSORFLOW: dict[str, Any] = {
    "lr": 0.01, "adaptive": False, "lambda0": 2.0, "backup": "push", "initial_backup": "zero"
}  # fmt: skip
STEPS = [
    ([1, 2], [0.1, 0.1], [[0.9988, 1.9986], [0.9978, 1.9976], [0.9968, 1.9966]]),
    ([3, 4], [0.01, 0.01], [[2.999894, 3.999892], [2.999794, 3.999792], [2.999694, 3.999692]]),
]


def started(params: Any, clients: int = 1, **hyper: Any) -> DCASGD:
    server = DCASGD(**hyper)
    server.init(np.asarray(params, np.float32), clients)
    return server


def f32(values: Any) -> Array:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize(("theta", "g", "expected"), STEPS)
def test_three_steps_of_the_tensorflow_variant(theta: Any, g: Any, expected: Any) -> None:
    server = started(theta, **LIKE_TENSORFLOW)
    for step, values in enumerate(expected):
        server.apply_update(f32(g), 0, step)
        server.begins(0, server.params, step + 1)
        np.testing.assert_allclose(server.params, values, rtol=1e-6)
        assert server.timestamp == step + 1


def test_unknown_client() -> None:
    server = started(np.ones(6), 2, lr=0.1)
    with pytest.raises(ConfigError, match="client_id is 2"):
        server.apply_update(f32(np.ones(6)), 2, 0)
    np.testing.assert_array_equal(server.params, np.ones(6, np.float32))
    assert server.timestamp == 0


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
