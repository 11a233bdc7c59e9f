"""The oracle forms some rows of a gradient at a time; how many changes no bit."""

import numpy as np
import pytest

from fredsim.numerics.oracle import softmax_cross_entropy
from tests import dense_networks


@pytest.mark.parametrize("most", [1, 50, 51, 10**6])
def test_rows_of_a_gradient(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element is the tree sum of its own leaves, written out."""
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((5, 7)).astype(np.float32), np.array([0, 2, 1, 1, 0])
    weights = [(rng.standard_normal((7, 3)).astype(np.float32), np.zeros(3, np.float32))]
    monkeypatch.setattr(dense_networks, "MAX_LEAVES", most)
    (((gw, _),), _) = dense_networks.gradient(weights, x, labels)
    errors = softmax_cross_entropy(dense_networks.forward(weights, x).logits, labels)[1]
    for k in range(7):
        for j in range(3):
            a, b, c, d, e = x[:, k] * errors[:, j]
            assert gw[k, j] == (((a + b) + (c + d)) + e + np.float32(0)) / np.float32(5)
