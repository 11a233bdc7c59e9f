"""Weight gradients of many minibatches at once, each with parameters of its own.

The same bits as fredsim.numerics.oracle.gradient. Conventions as in fredsim.kernels.dense; parameters and gradients are
flat, their rows not padded. A batch is `rows` int64 (B, µ): the samples of each of B minibatches, with its parameters
at the memory address `held[b]`.
"""

from __future__ import annotations

from numba import njit

from fredsim.kernels.cache import kernel
from fredsim.kernels.dense import ZERO, backward, combine, padded, softmax_cross_entropy, turn
from fredsim.kernels.team import meet
from fredsim.kernels.trees import LEAVES, gradient_rows, lay_out, list_blocks, upper_layers
from fredsim.kernels.vector import (
    floats,
    integers,
    item,
    load,
    load_part,
    octets,
    put,
    shift,
    shorts,
    store,
    store_part,
    zeros,
)

__all__ = ["gradients"]


@kernel
def gradients(rank, size, barrier, arguments):
    """Write each minibatch's mean gradient to the float32 array at address out[b], its samples' losses to losses (B, µ).

    The arguments stand below, in their order. After the data, work space for each minibatch: its inputs in blocks,
    hidden activations sample by sample, errors, activations in blocks, and the weights above the first layer
    transposed; then scratch for each thread.
    """
    a = integers(arguments)
    layers, mu, batches, chunk, chunks = item(a, 0), item(a, 1), item(a, 2), item(a, 3), item(a, 4)
    sizes, strides, offsets = integers(item(a, 5)), integers(item(a, 6)), integers(item(a, 7))
    places, inside, transposed = integers(item(a, 8)), integers(item(a, 9)), integers(item(a, 10))
    full_lists, full_found, full_merges = integers(item(a, 11)), integers(item(a, 12)), integers(item(a, 13))
    first, column, value = integers(item(a, 14)), shorts(item(a, 15)), floats(item(a, 16))
    labels, cuts = integers(item(a, 17)), shorts(item(a, 18))
    held, out, rows, losses = integers(item(a, 19)), integers(item(a, 20)), integers(item(a, 21)), floats(item(a, 22))
    factors, active, z = floats(item(a, 23)), octets(item(a, 24)), floats(item(a, 25))
    all_errors, all_activations, all_turned = floats(item(a, 26)), floats(item(a, 27)), floats(item(a, 28))
    lists, nodes = shift(integers(item(a, 29)), rank * item(a, 30)), shift(floats(item(a, 31)), rank * item(a, 32))
    blocks = (mu + LEAVES - 1) // LEAVES
    found = shift(lists, chunk + 2)
    merges = shift(found, (chunk + 1) * blocks + 1)
    open_blocks = shift(merges, (chunk + 1) * blocks + 1)
    some = shift(nodes, 64 * 65)
    inputs, width = item(sizes, 0), item(sizes, 1)
    long = ZERO  # what one sample's activations take
    for layer in range(layers):
        long += padded(item(sizes, layer + 1))

    # Inputs in blocks; weights above the first layer transposed, so that errors are propagated along rows.
    tasks = batches * blocks
    begin, end = tasks * rank // size, tasks * (rank + 1) // size
    for task in range(begin, end):
        samples = shift(rows, task // blocks * mu)
        at, mark = task * (inputs + 1) * LEAVES, task * (inputs + 1)
        lay_out(first, column, value, samples, mu, task % blocks, inputs, factors, at, active, mark)
    for b in range(batches):
        weights, turned = floats(item(held, b)), shift(all_turned, b * item(transposed, layers))
        for layer in range(1, layers):
            below, here = item(sizes, layer), item(sizes, layer + 1)
            start = padded(below * rank // size)
            stop = min(padded(below * (rank + 1) // size), below)
            turn(weights, item(offsets, layer), here, start, stop, below, here, turned, item(transposed, layer))
    meet(size, barrier)

    # Forward and error passes. Threads divide the blocks of samples; those of one minibatch go through a chunk of rows
    # together, while it is in the first level of cache.
    task = begin
    while task < end:
        b = task // blocks
        following = min(end, (b + 1) * blocks)
        weights, turned = floats(item(held, b)), shift(all_turned, b * item(transposed, layers))
        errors = shift(all_errors, b * item(places, layers))
        activations = shift(all_activations, b * item(inside, layers - 1))
        m0, m1 = (task - b * blocks) * LEAVES, min((following - b * blocks) * LEAVES, mu)
        for c in range(chunks):
            for m in range(m0, m1):
                row = item(rows, b * mu + m)
                cut = row * (chunks + 1) + c
                start, stop = item(first, row) + item(cuts, cut), item(first, row) + item(cuts, cut + 1)
                combine(
                    column, value, start, stop, weights, ZERO, width, width, z, (b * blocks * LEAVES + m) * long, c == 0
                )
        for m in range(m0, m1):
            at = (b * blocks * LEAVES + m) * long
            for j in range(width):
                put(z, at + j, item(z, at + j) + item(weights, inputs * width + j))
        for block in range(m0 // LEAVES, (m1 + LEAVES - 1) // LEAVES):
            samples = min(LEAVES, mu - block * LEAVES)
            here = shift(z, (b * blocks + block) * LEAVES * long)
            upper_layers(layers, sizes, offsets, strides, weights, here, long, samples, activations, inside, block)
        classes = item(sizes, layers)
        for m in range(m0, m1):
            at = (b * blocks * LEAVES + m) * long
            last, to = at + long - padded(classes), item(places, layers - 1) + m * padded(classes)
            label = item(labels, item(rows, b * mu + m))
            put(losses, b * mu + m, softmax_cross_entropy(z, last, classes, label, errors, to))
            backward(layers, sizes, transposed, turned, z, at, errors, places, m)
        task = following
    meet(size, barrier)

    # Weight gradients, row by row. Threads divide the rows of every layer.
    for b in range(batches):
        gradient = floats(item(out, b))
        errors = shift(all_errors, b * item(places, layers))
        activations = shift(all_activations, b * item(inside, layers - 1))
        for layer in range(layers):
            tall, here = item(sizes, layer) + 1, item(sizes, layer + 1)
            d, stride, step = item(places, layer), padded(here), tall * LEAVES
            for begin in range(tall * rank // size, tall * (rank + 1) // size, chunk):
                end = min(begin + chunk, tall * (rank + 1) // size)
                if layer == 0:
                    put(lists, 0, ZERO)
                    for k in range(begin, end):
                        at = item(lists, k - begin)
                        at = list_blocks(active, b * blocks * tall, tall, blocks, k, found, merges, at, open_blocks)
                        put(lists, k - begin + 1, at)
                    gradient_rows(
                        factors, b * blocks * step + begin * LEAVES, step, end - begin, lists, found, merges,
                        errors, d, stride, here, mu, nodes, some, ZERO, here,
                    )  # fmt: skip
                else:
                    gradient_rows(
                        activations, item(inside, layer - 1) + begin * LEAVES, step, end - begin, full_lists, full_found,
                        full_merges, errors, d, stride, here, mu, nodes, some, ZERO, here,
                    )  # fmt: skip
                copy(some, (end - begin) * here, gradient, item(offsets, layer) + begin * here)
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
