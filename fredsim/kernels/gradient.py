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
from fredsim.kernels.vector import floats, item, load, load_part, pointer, put, shift, store, store_part, zeros

__all__ = ["gradients"]


@kernel(nogil=True, error_model="numpy")
def gradients(
    rank, size, barrier, sizes_, strides_, offsets_, places_, inside_, transposed_, full_, held, out,
    first_, column_, value_, labels, cuts_, chunk, rows_, factors_, active_, z_, errors_, activations_, losses, turned_,
    integers_, floats_,
):  # fmt: skip
    """Write each minibatch's mean gradient to the float32 array at address out[b], its samples' losses to losses[b].

    After the data, work space for each minibatch: its inputs in blocks, hidden activations sample by sample, errors,
    activations in blocks, and the weights above the first layer transposed; then scratch for each thread.
    """
    layers = len(sizes_) - 1
    batches, mu = rows_.shape
    chunks = cuts_.shape[1] - 1
    blocks = (mu + LEAVES - 1) // LEAVES
    sizes, strides, offsets, places = pointer(sizes_), pointer(strides_), pointer(offsets_), pointer(places_)
    inside, transposed = pointer(inside_), pointer(transposed_)
    full_lists, full_found, full_merges = pointer(full_[0]), pointer(full_[1]), pointer(full_[2])
    first, column, value, cuts, rows = pointer(first_), pointer(column_), pointer(value_), pointer(cuts_), pointer(rows_)
    factors, active, z = pointer(factors_), pointer(active_), pointer(z_)
    lists = shift(pointer(integers_), rank * integers_.shape[1])
    found = shift(lists, chunk + 2)
    merges = shift(found, (chunk + 1) * blocks + 1)
    open_blocks = shift(merges, (chunk + 1) * blocks + 1)
    nodes = shift(pointer(floats_), rank * floats_.shape[1])
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
        weights, turned = floats(held[b]), shift(pointer(turned_), b * turned_.shape[1])
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
        weights, turned = floats(held[b]), shift(pointer(turned_), b * turned_.shape[1])
        errors = shift(pointer(errors_), b * errors_.shape[1])
        activations = shift(pointer(activations_), b * activations_.shape[1])
        m0, m1 = (task - b * blocks) * LEAVES, min((following - b * blocks) * LEAVES, mu)
        for c in range(chunks):
            for m in range(m0, m1):
                row = item(rows, b * mu + m)
                cut = row * (chunks + 1) + c
                start, stop = item(first, row) + item(cuts, cut), item(first, row) + item(cuts, cut + 1)
                combine(column, value, start, stop, weights, ZERO, width, width, z, (b * blocks * LEAVES + m) * long, c == 0)
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
            losses[b, m] = softmax_cross_entropy(z, last, classes, labels[item(rows, b * mu + m)], errors, to)
            backward(layers, sizes, transposed, turned, z, at, errors, places, m)
        task = following
    meet(size, barrier)

    # Weight gradients, row by row. Threads divide the rows of every layer.
    for b in range(batches):
        gradient = floats(out[b])
        errors = shift(pointer(errors_), b * errors_.shape[1])
        activations = shift(pointer(activations_), b * activations_.shape[1])
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
