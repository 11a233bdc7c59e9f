"""Losses and errors of many samples at the same parameters."""

from __future__ import annotations

import numpy as np

from fredsim.kernels.cache import kernel
from fredsim.kernels.dense import ZERO, combine, largest, padded, softmax_cross_entropy
from fredsim.kernels.team import meet
from fredsim.kernels.trees import LEAVES, upper_layers
from fredsim.kernels.vector import floats, integers, item, octets, put, shift, shorts

__all__ = ["TOGETHER", "evaluate"]

TOGETHER = 32  # samples that go through a chunk of rows while it is in the first level of cache


@kernel
def evaluate(rank, size, barrier, arguments):
    """Write each sample's loss to losses (n,) and whether its argmax misses the label to wrong (n,), uint8.

    The arguments stand below, in their order. The weights' rows are padded. Scratch for each thread comes last: what
    enters the upper layers in blocks, and the activations of TOGETHER samples and one error.
    """
    a = integers(arguments)
    layers, n, chunks = item(a, 0), item(a, 1), item(a, 2)
    sizes, strides, offsets, inside = (
        integers(item(a, 3)), integers(item(a, 4)), integers(item(a, 5)), integers(item(a, 6)),
    )  # fmt: skip
    weights, first, column, value = floats(item(a, 7)), integers(item(a, 8)), shorts(item(a, 9)), floats(item(a, 10))
    labels, cuts, losses, wrong = integers(item(a, 11)), shorts(item(a, 12)), floats(item(a, 13)), octets(item(a, 14))
    activations, z = shift(floats(item(a, 15)), rank * item(a, 16)), shift(floats(item(a, 17)), rank * item(a, 18))
    inputs, width, classes = item(sizes, 0), item(sizes, 1), item(sizes, layers)
    stride = padded(width)
    long = ZERO
    for layer in range(layers):
        long += padded(item(sizes, layer + 1))
    for block in range(n * rank // size, n * (rank + 1) // size, TOGETHER):
        stop = min(block + TOGETHER, n * (rank + 1) // size)
        for c in range(chunks):
            for row in range(block, stop):
                cut = row * (chunks + 1) + c
                low, high = item(first, row) + item(cuts, cut), item(first, row) + item(cuts, cut + 1)
                combine(column, value, low, high, weights, ZERO, stride, width, z, (row - block) * long, c == 0)
        for row in range(block, stop):
            at = (row - block) * long
            for j in range(width):
                put(z, at + j, item(z, at + j) + item(weights, inputs * stride + j))
        for b in range((stop - block + LEAVES - 1) // LEAVES):
            samples, here = min(LEAVES, stop - block - b * LEAVES), shift(z, b * LEAVES * long)
            upper_layers(layers, sizes, offsets, strides, weights, here, long, samples, activations, inside, b)
        for row in range(block, stop):
            last = (row - block) * long + long - padded(classes)
            label = item(labels, row)
            put(losses, row, softmax_cross_entropy(z, last, classes, label, z, TOGETHER * long))
            put(wrong, row, np.uint8(largest(z, last, classes) != label))
    meet(size, barrier)
