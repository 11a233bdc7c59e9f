"""Losses and errors of many samples at the same parameters."""

from __future__ import annotations

import numpy as np

from fredsim.jit.cache import kernel
from fredsim.jit.pointers import floats, integers, item, octets, put, shift, shorts
from fredsim.jit.team import meet
from fredsim.kernels.dense import first_layer, largest, length, padded, softmax_cross_entropy
from fredsim.kernels.trees import GROUP, LEAVES, upper_layers

__all__ = ["GROUP", "LEAVES", "TOGETHER", "evaluate"]

TOGETHER = 32  # samples that go through a chunk of rows while it is in the first level of cache


@kernel
def evaluate(rank, size, barrier, arguments):
    """Write each sample's loss to losses (n,) and whether its argmax misses the label to wrong (n,), uint8.

    The arguments stand below, in their order. The weights' rows are padded; `order` int64 (n,) numbers the samples.
    Scratch for each thread comes last: what enters the upper layers in blocks, and the activations of TOGETHER samples
    and one error.
    """
    a = integers(arguments)
    layers, n, chunks = item(a, 0), item(a, 1), item(a, 2)
    sizes, strides, offsets, inside = (
        integers(item(a, 3)), integers(item(a, 4)), integers(item(a, 5)), integers(item(a, 6)),
    )  # fmt: skip
    weights, first, column, value = floats(item(a, 7)), integers(item(a, 8)), shorts(item(a, 9)), floats(item(a, 10))
    labels, cuts, losses, wrong = integers(item(a, 11)), shorts(item(a, 12)), floats(item(a, 13)), octets(item(a, 14))
    order = integers(item(a, 15))
    activations, z = shift(floats(item(a, 16)), rank * item(a, 17)), shift(floats(item(a, 18)), rank * item(a, 19))
    inputs, width, classes, long = item(sizes, 0), item(sizes, 1), item(sizes, layers), length(layers, sizes)
    for block in range(n * rank // size, n * (rank + 1) // size, TOGETHER):
        stop = min(block + TOGETHER, n * (rank + 1) // size)
        first_layer(
            first, column, value, cuts, chunks, shift(order, block), 0, stop - block, weights, inputs, width,
            padded(width), z, long,
        )  # fmt: skip
        for b in range((stop - block + LEAVES - 1) // LEAVES):
            samples, here = min(LEAVES, stop - block - b * LEAVES), shift(z, b * LEAVES * long)
            upper_layers(layers, sizes, offsets, strides, weights, here, long, samples, activations, inside, b)
        for row in range(block, stop):
            last = (row - block) * long + long - padded(classes)
            label = item(labels, row)
            put(losses, row, softmax_cross_entropy(z, last, classes, label, z, TOGETHER * long))
            put(wrong, row, np.uint8(largest(z, last, classes) != label))
    meet(size, barrier)
