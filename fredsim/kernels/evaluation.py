"""Losses and errors of many samples at the same parameters."""

from __future__ import annotations

import numpy as np

from fredsim.kernels.cache import kernel
from fredsim.kernels.dense import ZERO, combine, largest, padded, softmax_cross_entropy, upper_layers
from fredsim.kernels.team import meet
from fredsim.kernels.vector import item

__all__ = ["evaluate"]

TOGETHER = 64  # samples that go through a chunk of rows while it is in the first level of cache


@kernel(nogil=True, error_model="numpy")
def evaluate(
    rank, size, barrier, sizes, offsets, strides, weights, first, column, value, labels, cuts, losses, wrong
):  # fmt: skip
    """Write each sample's loss to losses (n,) and whether its argmax misses the label to wrong (n,)."""
    layers = len(sizes) - 1
    inputs, width, classes = sizes[0], sizes[1], sizes[layers]
    long = strides.sum()
    widest = sizes[1:].max()
    z = np.zeros(TOGETHER * long + 64, np.float32)
    errors = np.empty(padded(classes), np.float32)
    scratch_column = np.empty(widest + 1, np.int32)
    scratch_value = np.empty(widest + 1, np.float32)
    n = len(labels)
    begin, end = n * rank // size, n * (rank + 1) // size
    for block in range(begin, end, TOGETHER):
        stop = min(block + TOGETHER, end)
        for c in range(cuts.shape[1] - 1):
            for row in range(block, stop):
                low, high = first[row] + cuts[row, c], first[row] + cuts[row, c + 1]
                combine(column, value, low, high, weights, ZERO, strides[0], width, z, (row - block) * long, c == 0)
        for row in range(block, stop):
            at = (row - block) * long
            for j in range(width):
                z[at + j] = item(z, at + j) + item(weights, inputs * strides[0] + j)
            upper_layers(sizes, offsets, strides, weights, z, at, scratch_column, scratch_value)
            last = at + long - padded(classes)
            losses[row] = softmax_cross_entropy(z, last, classes, labels[row], errors, ZERO)
            wrong[row] = largest(z, last, classes) != labels[row]
    meet(size, barrier)
