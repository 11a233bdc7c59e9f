"""Weight gradients of many minibatches at once: tree sums over the minibatch, row by row of the weights.

The same bits as fredsim.numerics.oracle.gradient. Conventions as in fredsim.kernels.dense. A batch is `rows` int64
(B, µ): the samples of each of B minibatches, each with its own parameters at the memory address `held[b]`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fredsim.kernels.cache import kernel
from fredsim.kernels.dense import ZERO, backward, forward, measure, padded, softmax_cross_entropy
from fredsim.kernels.team import meet
from fredsim.kernels.vector import broadcast, floats, load, store, store_part, zeros16

__all__ = ["gradients"]

ABSENT = 64  # the level at which the last node of a tree meets its neighbour: above every real one


@njit
def level(i, j):
    """Return the height at which leaves i and j meet in a binary tree over the index."""
    height = 0
    difference = i ^ j
    while difference:
        height += 1
        difference >>= 1
    return height


@njit
def plan_merges(leaf, count, open_leaf, merges):
    """Find, for leaves in ascending order, how many open nodes each closes: merges[i], the tree of the contract.

    A node stays open until the next leaf would meet it higher up than its left neighbour does. An absent leaf closes
    nothing up: only the true indices decide.
    """
    depth = 0
    for i in range(count):
        following = level(leaf[i], leaf[i + 1]) if i + 1 < count else ABSENT
        closed = 0
        while depth > 0 and level(open_leaf[depth - 1], leaf[i]) < following:
            depth -= 1
            closed += 1
        merges[i] = closed
        open_leaf[depth] = leaf[i]
        depth += 1


@njit
def tree_row(leaf, factor, count, merges, errors, base, stride, width, divide, scale, nodes, out, at):
    """Set out[at + j] = (Σ_i factor[i]·errors[base + leaf[i]·stride + j] by the tree + 0) ÷ µ for j < width.

    `scale` is 1/µ where that is exact, else µ itself with `divide` true. `nodes` is scratch for the open nodes.
    """
    j = 0
    while j + 48 < width:
        depth = 0
        s0, s1, s2, s3 = zeros16(), zeros16(), zeros16(), zeros16()
        for i in range(count):
            if i > 0:  # the node before is left open: park it
                store(nodes, depth * 64, s0)
                store(nodes, depth * 64 + 16, s1)
                store(nodes, depth * 64 + 32, s2)
                store(nodes, depth * 64 + 48, s3)
                depth += 1
            x = broadcast(factor[i])
            row = base + leaf[i] * stride + j
            s0 = x * load(errors, row)
            s1 = x * load(errors, row + 16)
            s2 = x * load(errors, row + 32)
            s3 = x * load(errors, row + 48)
            for _ in range(merges[i]):
                depth -= 1
                s0 = load(nodes, depth * 64) + s0
                s1 = load(nodes, depth * 64 + 16) + s1
                s2 = load(nodes, depth * 64 + 32) + s2
                s3 = load(nodes, depth * 64 + 48) + s3
        finish(s0, divide, scale, width - j, out, at + j)
        finish(s1, divide, scale, width - j - 16, out, at + j + 16)
        finish(s2, divide, scale, width - j - 32, out, at + j + 32)
        finish(s3, divide, scale, width - j - 48, out, at + j + 48)
        j += 64
    while j < width:
        depth = 0
        s0 = zeros16()
        for i in range(count):
            if i > 0:
                store(nodes, depth * 16, s0)
                depth += 1
            s0 = broadcast(factor[i]) * load(errors, base + leaf[i] * stride + j)
            for _ in range(merges[i]):
                depth -= 1
                s0 = load(nodes, depth * 16) + s0
        finish(s0, divide, scale, width - j, out, at + j)
        j += 16


@njit
def finish(total, divide, scale, count, out, at):
    """Store the mean of a tree sum: +0 added, so that it is not −0, then divided once."""
    total = total + 0.0
    if divide:
        total = total / broadcast(scale)
    else:
        total = total * broadcast(scale)
    if count >= 16:
        store(out, at, total)
    else:
        store_part(out, at, total, count)


@kernel(nogil=True)
def gradients(
    rank, size, barrier, sizes, held, out, first, column, value, labels, rows, activations, errors, losses, turned
):
    """Write each minibatch's mean gradient to the float32 array at address out[b], its samples' losses to losses[b].

    `activations` and `errors` are float32 (B·µ·stride + 16,), stride = Σ padded(width) over the layers but the inputs;
    `losses` float32 (B, µ); `turned` float32 (B, Σ of the weights above the first layer + 16): W transposed.
    """
    layers = len(sizes) - 1
    batches, mu = rows.shape
    offsets, stride, widest = measure(sizes)
    parameters = offsets[layers]
    transposed = np.zeros(layers + 1, np.int64)  # where each layer's transposed weights begin; the first has none
    for layer in range(1, layers):
        transposed[layer + 1] = transposed[layer] + sizes[layer] * sizes[layer + 1]
    classes = sizes[layers]
    scratch_column = np.empty(widest + 1, np.int32)
    scratch_value = np.empty(widest + 1, np.float32)

    # The weights above the first layer, transposed, so that errors are propagated along rows; divided by minibatches.
    for b in range(batches * rank // size, batches * (rank + 1) // size):
        weights = floats(held[b], parameters)
        for layer in range(1, layers):
            inputs, width = sizes[layer], sizes[layer + 1]
            for j in range(width):
                for k in range(inputs):
                    turned[b, transposed[layer] + j * inputs + k] = weights[offsets[layer] + k * width + j]
    meet(size, barrier)

    # Forward and error pass, sample by sample. Threads divide samples.
    for sample in range(batches * mu * rank // size, batches * mu * (rank + 1) // size):
        b, m = sample // mu, sample % mu
        row = rows[b, m]
        at = sample * stride
        weights = floats(held[b], parameters)
        forward(sizes, offsets, weights, first, column, value, row, activations, at, scratch_column, scratch_value)
        last = at + stride - padded(classes)
        losses[b, m] = softmax_cross_entropy(activations, last, classes, labels[row], errors)
        backward(sizes, transposed, turned[b], activations, errors, at, stride, scratch_column, scratch_value)
    meet(size, barrier)

    # Weight gradients, row by row. Threads divide the rows of every layer.
    divide = mu & (mu - 1) != 0
    scale = np.float32(mu) if divide else np.float32(1.0) / np.float32(mu)
    leaf = np.empty(mu, np.int64)
    factor = np.empty(mu, np.float32)
    merges = np.empty(mu, np.int64)
    open_leaf = np.empty(ABSENT, np.int64)
    nodes = np.empty(ABSENT * 64, np.float32)
    for b in range(batches):
        gradient = floats(out[b], parameters)
        within = ZERO  # where the layer's activations begin in a sample's stride
        for layer in range(layers):
            inputs, width = sizes[layer], sizes[layer + 1]
            begin, end = inputs * rank // size, inputs * (rank + 1) // size
            delta = b * mu * stride + within
            below = delta - padded(inputs)  # where the activations that entered the layer begin
            if layer == 0:
                start, samples, factors = transpose_rows(first, column, value, rows[b], begin, end)
            for k in range(begin, end):
                at = offsets[layer] + k * width
                if layer == 0:
                    count = start[k - begin + 1] - start[k - begin]
                    for i in range(count):
                        leaf[i] = samples[start[k - begin] + i]
                        factor[i] = factors[start[k - begin] + i]
                else:
                    count = 0
                    for m in range(mu):
                        x = activations[below + m * stride + k]
                        leaf[count] = m
                        factor[count] = x
                        if x != np.float32(0.0):
                            count += 1
                if count == 0:
                    gradient[at : at + width] = np.float32(0.0)
                else:
                    plan_merges(leaf, count, open_leaf, merges)
                    tree_row(
                        leaf, factor, count, merges, errors, delta, stride, width, divide, scale, nodes, gradient, at
                    )
            if rank == size - 1:  # the bias is a row whose activations are all 1
                for m in range(mu):
                    leaf[m] = m
                    factor[m] = np.float32(1.0)
                at = offsets[layer] + inputs * width
                plan_merges(leaf, mu, open_leaf, merges)
                tree_row(leaf, factor, mu, merges, errors, delta, stride, width, divide, scale, nodes, gradient, at)
            within += padded(width)
    meet(size, barrier)


@njit
def transpose_rows(first, column, value, rows, begin, end):
    """Return the non-zeros of the minibatch's columns begin … end − 1: starts (end − begin + 1,), samples and values.

    Within a column the samples ascend.
    """
    start = np.zeros(end - begin + 1, np.int64)
    for m in range(len(rows)):
        for t in range(first[rows[m]], first[rows[m] + 1]):
            if begin <= column[t] < end:
                start[column[t] - begin + 1] += 1
    for k in range(end - begin):
        start[k + 1] += start[k]
    samples = np.empty(start[end - begin], np.int64)
    factors = np.empty(start[end - begin], np.float32)
    fill = start[: end - begin].copy()
    for m in range(len(rows)):
        for t in range(first[rows[m]], first[rows[m] + 1]):
            if begin <= column[t] < end:
                place = fill[column[t] - begin]
                samples[place] = m
                factors[place] = value[t]
                fill[column[t] - begin] = place + 1
    return start, samples, factors
