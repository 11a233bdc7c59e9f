"""Losses and errors of many samples at the same parameters."""

from __future__ import annotations

from fredsim.kernels.cache import kernel
from fredsim.kernels.dense import ZERO, combine, largest, padded, softmax_cross_entropy
from fredsim.kernels.team import meet
from fredsim.kernels.trees import LEAVES, upper_layers
from fredsim.kernels.vector import item, pointer, put, shift

__all__ = ["TOGETHER", "evaluate"]

TOGETHER = 32  # samples that go through a chunk of rows while it is in the first level of cache


@kernel(nogil=True, error_model="numpy")
def evaluate(
    rank, size, barrier, sizes_, offsets_, strides_, weights_, first_, column_, value_, labels, cuts_, losses, wrong,
    inside_, blocks_, floats_,
):  # fmt: skip
    """Write each sample's loss to losses (n,) and whether its argmax misses the label to wrong (n,).

    The weights' rows are padded. Scratch for each thread comes last: what enters the upper layers in blocks, and the activations
    of TOGETHER samples and one error.
    """
    layers = len(sizes_) - 1
    chunks = cuts_.shape[1] - 1
    sizes, offsets, strides, weights = pointer(sizes_), pointer(offsets_), pointer(strides_), pointer(weights_)
    first, column, value, cuts = pointer(first_), pointer(column_), pointer(value_), pointer(cuts_)
    inside, activations = pointer(inside_), shift(pointer(blocks_), rank * blocks_.shape[1])
    z = shift(pointer(floats_), rank * floats_.shape[1])
    inputs, width, classes = item(sizes, 0), item(sizes, 1), item(sizes, layers)
    stride = padded(width)
    long = ZERO
    for layer in range(layers):
        long += padded(item(sizes, layer + 1))
    n = len(labels)
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
            losses[row] = softmax_cross_entropy(z, last, classes, labels[row], z, TOGETHER * long)
            wrong[row] = largest(z, last, classes) != labels[row]
    meet(size, barrier)
