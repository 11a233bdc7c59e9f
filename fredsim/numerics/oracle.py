"""The loss and the sums of docs/numerics.md, written in NumPy so that a reader can check them by eye.

Every function defines, to the last bit, what the kernels of the same name compute. Nothing here is written for speed.
Arrays are C-contiguous float32 unless a docstring says otherwise. M is the number of samples.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array
from fredsim.numerics.elementary import exp32, log32

__all__ = ["mean64", "norm", "softmax_cross_entropy", "tree_sum"]

FLUSH = np.float32(2.0**-62)  # smaller errors become +0


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
