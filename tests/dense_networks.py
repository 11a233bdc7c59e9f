"""A multilayer perceptron written out layer by layer in NumPy, beside which graphs and kernels are compared.

Arrays are C-contiguous float32 unless a docstring says otherwise. M is the number of samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array
from fredsim.numerics.oracle import softmax_cross_entropy, tree_sum

Weights = list[tuple[Array, Array]]  # per layer: W of shape (inputs, outputs), b of shape (outputs,)

MAX_LEAVES = 2**18  # the most leaves of trees that are in memory at once: a megabyte


def combine(factors: Array, rows: Array) -> Array:
    """Return Σ_k factors[m, k]·rows[k, j], (M, J): k ascending, from +0, without leaving out any product."""
    total = np.zeros((factors.shape[0], rows.shape[1]), np.float32)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for k in range(rows.shape[0]):
            total = total + factors[:, k, None] * rows[k]
    return total


class ForwardPass(NamedTuple):
    """The result of a forward pass: each layer's inputs, (M, inputs) each, and the last layer's z, (M, classes)."""

    activations: list[Array]
    logits: Array


def forward(weights: Weights, x: Array) -> ForwardPass:
    """Run the network on x (M, inputs): z = Σ_k x_k w_k + b, then z if z > 0, else +0, except at the last layer."""
    activations = [x]
    for layer, (w, b) in enumerate(weights):
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            z = combine(activations[-1], w) + b
        if layer < len(weights) - 1:
            activations.append(np.where(z > 0, z, np.float32(0)))
    return ForwardPass(activations, z)


def backward(weights: Weights, activations: list[Array], errors: Array) -> list[Array]:
    """Return each layer's error δ, (M, outputs), given that of the last layer, `errors` (M, classes).

    δ_k = Σ_j δ'_j w[k, j] of the layer above (δ', w), j ascending from +0, if the activation k is positive, else +0.
    """
    deltas = [errors]
    for layer in range(len(weights) - 1, 0, -1):
        w = weights[layer][0]
        delta = combine(deltas[0], np.ascontiguousarray(w.T))
        deltas.insert(0, np.where(activations[layer] > 0, delta, np.float32(0)))
    return deltas


def gradient(weights: Weights, x: Array, labels: NDArray[np.integer]) -> tuple[Weights, Array]:
    """Return the minibatch-mean gradient, shaped as `weights`, and the losses (M,) of the minibatch x (M, inputs).

    Each element is the tree sum over the M samples of input × error, divided by M once. No product is left out: 0·∞ is
    NaN, also if the zero is an input or the activation of a dead unit.
    """
    activations, logits = forward(weights, x)
    losses, errors, _ = softmax_cross_entropy(logits, labels)
    deltas = backward(weights, activations, errors)
    count = np.float32(len(x))
    result: Weights = []
    for a, delta in zip(activations, deltas, strict=True):
        gw = np.empty((a.shape[1], delta.shape[1]), np.float32)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            step = max(1, MAX_LEAVES // delta.size)
            for k in range(0, a.shape[1], step):  # some rows at a time, as the leaves of all would not fit in memory
                gw[k : k + step] = tree_sum(a[:, k : k + step, None] * delta[:, None]) / count
            gb = (tree_sum(delta) / count).astype(np.float32)
        result.append((gw, gb))
    return result, losses
