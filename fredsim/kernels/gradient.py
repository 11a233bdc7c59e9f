"""Weight gradients of many minibatches at once, each with parameters of its own.

The same bits as fredsim.numerics.oracle.gradient. Conventions as in fredsim.kernels.dense; parameters and gradients are
flat, their rows not padded. A batch is `rows` int64 (B, µ): the samples of each of B minibatches, with its parameters
at the memory address `held[b]`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fredsim.kernels.cache import kernel
from fredsim.kernels.dense import ZERO, backward, combine, padded, softmax_cross_entropy, turn, upper_layers
from fredsim.kernels.team import meet
from fredsim.kernels.trees import LEAVES, finish_lists, gradient_rows, lay_out, list_blocks
from fredsim.kernels.vector import floats, item, load, load_part, store, store_part, zeros

__all__ = ["gradients"]


@kernel(nogil=True, error_model="numpy")
def gradients(
    rank, size, barrier, sizes, held, out, first, column, value, labels, cuts, chunk, rows,
    factors, active, z, errors, activations, losses, turned,
):  # fmt: skip
    """Write each minibatch's mean gradient to the float32 array at address out[b], its samples' losses to losses[b].

    The rest is work space, for each of B minibatches: the blocks of fredsim.kernels.trees, hidden activations sample by
    sample and in blocks, errors, and the weights above the first layer transposed.
    """
    layers = len(sizes) - 1
    batches, mu = rows.shape
    inputs = sizes[0]
    blocks = (mu + LEAVES - 1) // LEAVES
    widest = sizes[1:].max()
    offsets = np.zeros(layers + 1, np.int64)  # where a layer's parameters begin
    places = np.zeros(layers + 1, np.int64)  # its errors, for all samples
    inside = np.zeros(layers + 1, np.int64)  # what leaves it, in blocks
    transposed = np.zeros(layers + 1, np.int64)  # its transposed weights; the first has none
    long = ZERO  # what one sample's activations take
    for layer in range(layers):
        width = sizes[layer + 1]
        offsets[layer + 1] = offsets[layer] + (sizes[layer] + 1) * width
        places[layer + 1] = places[layer] + blocks * LEAVES * padded(width)
        inside[layer + 1] = inside[layer] + blocks * (width + 1) * LEAVES
        long += padded(width)
        if layer > 0:
            transposed[layer + 1] = transposed[layer] + padded(sizes[layer]) * padded(width)
    parameters = offsets[layers]
    strides = sizes[1:].copy()
    at_sample = np.empty(layers, np.int64)
    scratch_column = np.empty(widest + 1, np.int32)
    scratch_value = np.empty(widest + 1, np.float32)

    # Inputs in blocks; weights above the first layer transposed, so that errors are propagated along rows.
    tasks = batches * blocks
    begin, end = tasks * rank // size, tasks * (rank + 1) // size
    for task in range(begin, end):
        lay_out(first, column, value, rows[task // blocks], task % blocks, inputs, factors, active, task)
    for b in range(batches):
        weights = floats(held[b], parameters)
        for layer in range(1, layers):
            start = padded(sizes[layer] * rank // size)
            stop = min(padded(sizes[layer] * (rank + 1) // size), sizes[layer])
            turn(
                weights, offsets[layer], sizes[layer + 1], start, stop, sizes[layer], sizes[layer + 1], turned[b],
                transposed[layer],
            )  # fmt: skip
    meet(size, barrier)

    # Forward and error passes. Threads divide the blocks of samples; those of one minibatch go through a chunk of rows
    # together, while it is in the first level of cache.
    task = begin
    while task < end:
        b = task // blocks
        following = min(end, (b + 1) * blocks)
        weights = floats(held[b], parameters)
        m0, m1 = (task - b * blocks) * LEAVES, min((following - b * blocks) * LEAVES, mu)
        for c in range(cuts.shape[1] - 1):
            for m in range(m0, m1):
                row = rows[b, m]
                start, stop = first[row] + cuts[row, c], first[row] + cuts[row, c + 1]
                at = (b * mu + m) * long
                combine(column, value, start, stop, weights, ZERO, sizes[1], sizes[1], z, at, c == 0)
        for m in range(m0, m1):
            at = (b * mu + m) * long
            for j in range(sizes[1]):
                z[at + j] = item(z, at + j) + item(weights, inputs * sizes[1] + j)
            upper_layers(sizes, offsets, strides, weights, z, at, scratch_column, scratch_value)
            for layer in range(layers):
                at_sample[layer] = places[layer] + m * padded(sizes[layer + 1])
            last = at + long - padded(sizes[layers])
            label = labels[rows[b, m]]
            losses[b, m] = softmax_cross_entropy(z, last, sizes[layers], label, errors[b], at_sample[layers - 1])
            backward(sizes, transposed, turned[b], z, at, errors[b], at_sample, scratch_column, scratch_value)
            for layer in range(layers - 1):
                width = sizes[layer + 1]
                keep = inside[layer] + m // LEAVES * (width + 1) * LEAVES + m % LEAVES
                for k in range(width):
                    activations[b, keep + k * LEAVES] = item(z, at + k)
                activations[b, keep + width * LEAVES] = np.float32(1.0)
                at += padded(width)
        task = following
    meet(size, barrier)

    # Weight gradients, row by row. Threads divide the rows of every layer.
    lists = np.zeros(chunk + 2, np.int64)
    found = np.zeros((chunk + 1) * blocks + 1, np.int64)
    merges = np.zeros((chunk + 1) * blocks + 1, np.int64)
    open_blocks = np.empty(65, np.int64)
    nodes = np.empty(64 * 65, np.float32)
    some = np.empty(chunk * widest + 64, np.float32)
    for b in range(batches):
        gradient = floats(out[b], parameters)
        for layer in range(layers):
            tall, width = sizes[layer] + 1, sizes[layer + 1]
            for begin in range(tall * rank // size, tall * (rank + 1) // size, chunk):
                end = min(begin + chunk, tall * (rank + 1) // size)
                for k in range(begin, end):
                    at = lists[k - begin]
                    if layer == 0:
                        at = list_blocks(active, b * blocks * tall, tall, blocks, k, at, found, merges, open_blocks)
                    else:
                        for block in range(blocks):
                            found[at + block] = block
                        finish_lists(found, at, at + blocks, merges, open_blocks)
                        at += blocks
                    lists[k - begin + 1] = at
                if layer == 0:
                    gradient_rows(
                        factors, b * blocks * tall * LEAVES + begin * LEAVES, tall * LEAVES, end - begin, lists, found,
                        merges, errors[b], places[0], padded(width), width, mu, nodes, some, ZERO, width,
                    )  # fmt: skip
                else:
                    gradient_rows(
                        activations[b], inside[layer - 1] + begin * LEAVES, tall * LEAVES, end - begin, lists, found,
                        merges, errors[b], places[layer], padded(width), width, mu, nodes, some, ZERO, width,
                    )  # fmt: skip
                copy(some, (end - begin) * width, gradient, offsets[layer] + begin * width)
    meet(size, barrier)


@njit(error_model="numpy")
def copy(source, count, out, at):
    """Set out[at : at + count] to the first elements of `source`."""
    i = ZERO
    while i + 16 <= count:
        store(out, at + i, load(zeros(16), source, i))
        i += 16
    if i < count:
        store_part(out, at + i, load_part(zeros(16), source, i, count - i), count - i)
