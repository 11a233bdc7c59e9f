"""The dense layers, the loss and the sums of docs/numerics.md, written in NumPy so that a reader can check them by eye.

Every function defines, to the last bit, what the kernels of the same name compute. Nothing here is written for speed.
Arrays are C-contiguous float32 unless a docstring says otherwise. M is the number of samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array
from fredsim.numerics.elementary import exp32, log32

__all__ = [
    "ForwardPass",
    "backward",
    "forward",
    "gradient",
    "mean64",
    "norm",
    "softmax_cross_entropy",
    "tree_sum",
]

Weights = list[tuple[Array, Array]]  # per layer: W of shape (inputs, outputs), b of shape (outputs,)

FLUSH = np.float32(2.0**-62)  # smaller errors become +0
MAX_LEAVES = 2**18  # the most leaves of trees that are in memory at once: a megabyte


def tree_sum(leaves: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the sum of `leaves` (n, …) over the first axis by a balanced binary tree over the index.

    At each level, neighbours are added in pairs; an odd last element moves up unchanged. So a zero leaf has no effect,
    as if it were absent. +0 is added at the end, so that the sum is never −0. The sum of no leaves is +0.
    """
    if len(leaves) == 0:
        return np.zeros(leaves.shape[1:], leaves.dtype)
    while len(leaves) > 1:
        pairs = leaves[0 : len(leaves) - 1 : 2] + leaves[1::2]
        leaves = np.concatenate([pairs, leaves[-1:]]) if len(leaves) % 2 else pairs
    total: NDArray[np.floating] = leaves[0] + leaves.dtype.type(0)
    return total


def mean64(values: NDArray[np.floating]) -> float:
    """Return the mean of all elements, in C order, by tree_sum in float64; NaN if there are none."""
    flat = np.asarray(values).reshape(-1).astype(np.float64)
    return float(tree_sum(flat) / np.float64(flat.size))


def norm(values: NDArray[np.float64]) -> float:
    """Return ‖values‖₂ of float64 (n,): the root of the squares' sum by tree_sum."""
    with np.errstate(all="ignore"):
        return math.sqrt(tree_sum(values * values))


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


def softmax_cross_entropy(logits: Array, labels: NDArray[np.integer]) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return each sample's loss (M,), its error p − onehot(y) (M, classes) flushed below 2⁻⁶², and the argmax (M,).

    loss = log Σ exp(z − max) − (z_y − max); exponentials are summed in ascending order of class; a tie of the argmax
    goes to the lowest class.
    """
    rows = np.arange(len(logits))
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        errors, shifted, total = softmax(logits)
        errors[rows, labels] = errors[rows, labels] - np.float32(1)
        errors = np.where(np.abs(errors) < FLUSH, np.float32(0), errors)
        losses = log32(total) - shifted[rows, labels]
    return losses, errors, largest(logits)


def largest(logits: Array) -> NDArray[np.int64]:
    """Return the argmax over the last axis: the lowest class of a tie; NaN is larger than nothing but class 0."""
    best = np.zeros(logits.shape[:-1], np.int64)
    for j in range(1, logits.shape[-1]):
        value = np.take_along_axis(logits, best[..., None], -1)[..., 0]
        best = np.where(logits[..., j] > value, j, best)
    return best


def softmax(logits: Array) -> tuple[Array, Array, Array]:
    """Return p (M, classes), z − max (M, classes), and Σ exp(z − max) (M,), j ascending from +0."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        shifted = logits - np.take_along_axis(logits, largest(logits)[:, None], 1)
        exponentials = exp32(shifted)
        total = np.zeros(len(logits), np.float32)
        for j in range(logits.shape[1]):
            total = total + exponentials[:, j]
        return exponentials / total[:, None], shifted, total


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
