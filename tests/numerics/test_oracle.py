"""The oracle against plain definitions: recursion for the tree, float64 calculus for the gradient."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.numerics import oracle
from tests.dense_networks import Weights, combine, gradient

Array = NDArray[np.float32]


def tree_by_definition(leaves: list[np.float32 | None]) -> np.float32 | None:
    """Add pairs, then pairs of pairs; None is an absent leaf, which passes its partner up."""
    if len(leaves) == 1:
        return leaves[0]
    level = []
    for left, right in zip(leaves[0::2], [*leaves[1::2], None], strict=False):
        level.append(right if left is None else left if right is None else left + right)
    return tree_by_definition(level)


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**100, min_value=-(2.0**100)),
        max_size=70,
    )
)
def test_tree_sum(values: list[float]) -> None:
    leaves = [np.float32(v) if v != 0 else None for v in values]  # a zero of either sign is absent at its place
    expected = (tree_by_definition(leaves) if leaves else None) or np.float32(0)
    found = oracle.tree_sum(np.array(values, np.float32))
    assert np.float32(found).tobytes() == (expected + np.float32(0)).tobytes()


def test_a_power_of_two_splits_into_means_of_means() -> None:
    values = np.random.default_rng(0).standard_normal((128, 5)).astype(np.float32)
    whole = oracle.tree_sum(values) / np.float32(128)
    means = np.stack([oracle.tree_sum(part) / np.float32(16) for part in values.reshape(8, 16, 5)])
    np.testing.assert_array_equal(oracle.tree_sum(means) / np.float32(8), whole)


def network(sizes: list[int], seed: int = 0) -> tuple[Weights, Array, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    weights = [
        (rng.standard_normal((i, o)).astype(np.float32), rng.standard_normal(o).astype(np.float32))
        for i, o in pairwise(sizes)
    ]
    x = np.where(rng.random((6, sizes[0])) < 0.5, rng.random((6, sizes[0])), 0).astype(np.float32)
    return weights, x, rng.integers(0, sizes[-1], 6)


@pytest.mark.parametrize("sizes", [[5, 3], [5, 7, 4], [6, 9, 5, 3]])
def test_gradient_is_the_derivative(sizes: list[int]) -> None:
    weights, x, labels = network(sizes)

    def loss(layers: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
        a = x.astype(np.float64)
        for layer, (w, b) in enumerate(layers):
            a = a @ w + b
            if layer < len(layers) - 1:
                a = np.maximum(a, 0)
        return float(np.mean(np.log(np.exp(a).sum(1)) - a[np.arange(len(a)), labels]))

    wide = [(w.astype(np.float64), b.astype(np.float64)) for w, b in weights]
    found, losses = gradient(weights, x, labels)
    assert abs(oracle.mean64(losses) - loss(wide)) < 1e-5
    step = 1e-6
    for layer in range(len(weights)):
        for part in range(2):
            flat, slope = wide[layer][part].reshape(-1), found[layer][part].reshape(-1)
            for i in range(0, flat.size, 3):
                centre = flat[i]
                flat[i] = centre + step
                above = loss(wide)
                flat[i] = centre - step
                below = loss(wide)
                flat[i] = centre
                assert abs((above - below) / (2 * step) - slope[i]) < 1e-4


def test_products_with_a_zero_are_formed() -> None:
    rows = np.array([[np.inf, 1], [2, 3]], np.float32)
    np.testing.assert_array_equal(combine(np.array([[0, 1]], np.float32), rows), [[np.nan, 3]])


def test_softmax_flushes_tiny_errors_and_breaks_ties_low() -> None:
    logits = np.array([[0, 80, 0], [1, 1, 0]], np.float32)
    losses, errors, best = oracle.softmax_cross_entropy(logits, np.array([1, 0]))
    assert errors[0].tolist() == [0, 0, 0]
    assert best.tolist() == [1, 0]
    assert losses[0] == 0


def test_relu_and_its_derivative_are_zero_at_zero() -> None:
    weights = [
        (np.zeros((2, 3), np.float32), np.zeros(3, np.float32)),
        (np.ones((3, 2), np.float32), np.zeros(2, np.float32)),
    ]
    grads, _ = gradient(weights, np.ones((1, 2), np.float32), np.array([0]))
    assert not grads[0][0].any()
    assert not np.signbit(grads[0][0]).any()
