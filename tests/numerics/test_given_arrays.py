"""A rule's update refuses arrays that it cannot write, and takes a gradient of any kind, on every backend alike."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fredsim.kernels.arrays.operations import NumbaOperations
from fredsim.numerics.given_arrays import CheckedOperations
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.rules import Rule

SIZE = 100


def rule(theta: Any, mean: Any, g: Any, alpha: Any) -> Any:
    mean = 0.5 * mean + g
    return theta - alpha * mean, mean


@pytest.fixture(params=[NumpyOperations, lambda: NumbaOperations(2)])
def update(request: pytest.FixtureRequest) -> Callable[..., bool]:
    return CheckedOperations(request.param()).compile_rule(Rule(rule, state=("mean",)))


def arrays() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    theta, mean, g = rng.integers(-8, 8, (3, SIZE)).astype(np.float32)  # with these, the formula below is exact
    return theta.copy(), mean.copy(), g.copy()


@pytest.mark.parametrize("shift", [-33, -16, -1, 0, 1, 16, 33])
def test_a_gradient_in_the_memory_that_is_written(update: Callable[..., bool], shift: int) -> None:
    theta, mean, _ = arrays()
    memory = np.zeros(SIZE + 80, np.float32)
    memory[40 : 40 + SIZE] = theta
    g = memory[40 + shift : 40 + shift + SIZE]
    expected = theta - 0.25 * (0.5 * mean + g)
    assert update(memory[40 : 40 + SIZE], mean, g, 0, SIZE, np.float32(0.25))
    assert (memory[40 : 40 + SIZE] == expected).all()


def test_a_coefficient_is_rounded_once(update: Callable[..., bool]) -> None:
    theta, mean, g = arrays()
    step = np.float32(0.1) * (np.float32(0.5) * mean + g)
    expected = theta - step
    update(theta, mean, g, 0, SIZE, np.float64(0.1))
    assert (theta == expected).all()


REFUSED: dict[str, Callable[[Any, Any, Any], tuple[Any, ...]]] = {
    "params and mean share memory": lambda theta, mean, g: (theta, theta, g, 0, SIZE, 0.1),
    "mean is read-only": lambda theta, mean, g: (theta, np.broadcast_to(mean, mean.shape), g, 0, SIZE, 0.1),
    "mean is not contiguous": lambda theta, mean, g: (theta, np.repeat(mean, 2)[::2], g, 0, SIZE, 0.1),
    "mean is an array of float64": lambda theta, mean, g: (theta, mean.astype(float), g, 0, SIZE, 0.1),
    "mean has the shape (50,)": lambda theta, mean, g: (theta, mean[:50], g, 0, SIZE, 0.1),
    "the gradient has the shape (50,)": lambda theta, mean, g: (theta, mean, g[:50], 0, SIZE, 0.1),
    "elements 0 to 101": lambda theta, mean, g: (theta, mean, g, 0, SIZE + 1, 0.1),
    "elements -1 to 100": lambda theta, mean, g: (theta, mean, g, -1, SIZE, 0.1),
    "2 coefficients are given": lambda theta, mean, g: (theta, mean, g, 0, SIZE, 0.1, 0.2),
}


@pytest.mark.parametrize("says", REFUSED)
def test_refused(update: Callable[..., bool], says: str) -> None:
    theta, mean, g = arrays()
    before = theta.copy()
    with pytest.raises((TypeError, ValueError)) as error:
        update(*REFUSED[says](theta, mean, g))
    assert says in str(error.value)
    assert (theta == before).all()
