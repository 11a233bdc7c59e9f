"""Forward and backward passes of a multilayer perceptron, sample by sample; used by gradient, window and evaluation.

The results have the same bits as those of fredsim.networks.graph.Graph.gradient. Here zeros are skipped, and columns
are grouped into vector registers; neither changes the order of additions.

Conventions. `net` is a NETWORK (fredsim.kernels.mlp.workspace), `data` a DATA (fredsim.kernels.mlp.sparse_rows);
pointers are to float32 if nothing else is said. The argument after a pointer is the index of the first element that
is meant: (out, at), (errors, errors_at), (factors, factors_at), (weights, base), (active, active_at). `z` is a
layer's output before the activation function. A layer's parameters are rows: one row per input, then the bias; rows
begin `stride` floats apart. Access to a row's last vector may go beyond the row: behind every array there are MARGIN
spare floats.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.pointers import item, put
from fredsim.jit.shuffles import transpose16
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.arrays.elementary import exp32, log32
from fredsim.kernels.mlp.sparse_rows import input_at
from fredsim.numerics.rules import where

__all__ = [
    "ZERO",
    "argmax",
    "backward",
    "chunk_bounds",
    "combine",
    "first_layer",
    "padded",
    "sample_floats",
    "softmax_cross_entropy",
    "transpose",
]

FLUSH = np.float32(2.0**-62)  # smaller errors become +0
ZERO = np.int64(0)  # a literal 0 has its own type in numba, for which every function would be compiled a second time


@subroutine
def padded(width):
    """Return `width` rounded up to a multiple of 16, whole vectors."""
    return (width + 15) // 16 * 16


@subroutine
def sample_floats(net):
    """Return how many floats one sample's activations of all layers take, each layer padded."""
    total = ZERO
    for layer in range(net.layers):
        total += padded(item(net.sizes, layer + 1))
    return total


@subroutine
def add_rows(like, data, start, stop, weights, base, stride, out, at, fresh):
    """Do what `combine` does, for as many columns as `like` has lanes; `base` is the index of the first column."""
    total = like
    if not fresh:
        total = load(like, out, at)
    for t in range(start, stop):
        column, value = input_at(data, t)
        total = total + value * load(like, weights, base + column * stride)
    store(out, at, total)


@subroutine
def combine(data, start, stop, weights, base, stride, width, out, at, fresh):
    """Add Σ_t value_t·weights[base + column_t·stride + j] to out[at + j], j < padded(width): numerics.ops.sums.combine.

    The sum is over the nonzero inputs t = start … stop − 1 of DATA, in ascending order. If `fresh`, it begins with +0
    instead of out[at + j]. Up to seven vectors of columns are summed together, as many as fit into registers.
    """
    for j in range(0, width, 112):
        w, o, left = base + j, at + j, width - j
        if left > 96:
            add_rows(zeros(112), data, start, stop, weights, w, stride, out, o, fresh)
        elif left > 80:
            add_rows(zeros(96), data, start, stop, weights, w, stride, out, o, fresh)
        elif left > 64:
            add_rows(zeros(80), data, start, stop, weights, w, stride, out, o, fresh)
        elif left > 48:
            add_rows(zeros(64), data, start, stop, weights, w, stride, out, o, fresh)
        elif left > 32:
            add_rows(zeros(48), data, start, stop, weights, w, stride, out, o, fresh)
        elif left > 16:
            add_rows(zeros(32), data, start, stop, weights, w, stride, out, o, fresh)
        else:
            add_rows(zeros(16), data, start, stop, weights, w, stride, out, o, fresh)


@subroutine
def chunk_bounds(data, row, c):
    """Return the begin and the end, as indices t into DATA, of the inputs of sample `row` in chunk c of the columns."""
    first, cut = item(data.first, row), row * (data.chunks + 1) + c
    return first + item(data.cuts, cut), first + item(data.cuts, cut + 1)


@subroutine
def first_layer(net, data, rows, m0, m1, weights, z, sample_stride):
    """Write the first layer's z = Σ_k x_k w_k + b of the samples rows[m], m0 ≤ m < m1, to z[m·sample_stride :].

    All samples are multiplied by one chunk of the weights' rows, while it is in the L1 cache, before the next chunk.
    """
    inputs, width, stride = item(net.sizes, 0), item(net.sizes, 1), item(net.strides, 0)
    for c in range(data.chunks):
        for m in range(m0, m1):
            low, high = chunk_bounds(data, item(rows, m), c)
            combine(data, low, high, weights, ZERO, stride, width, z, m * sample_stride, c == 0)
    for m in range(m0, m1):
        for j in range(width):
            put(z, m * sample_stride + j, item(z, m * sample_stride + j) + item(weights, inputs * stride + j))


@subroutine
def argmax(logits, at, classes):
    """Return the index j < classes of the largest logits[at + j]; of equal ones the lowest."""
    best = 0
    for j in range(1, classes):
        if item(logits, at + j) > item(logits, at + best):
            best = j
    return best


@subroutine
def softmax_cross_entropy(logits, at, classes, label, errors, to):
    """Write a sample's error p − onehot(label) to errors[to :], padded with +0, and return its loss.

    p = exp(z − max) / Σ exp(z − max); loss = log Σ exp(z − max) − (z_label − max), of the logits z in logits[at :];
    errors below FLUSH become +0: fredsim.numerics.oracle.softmax_cross_entropy.
    """
    top = item(logits, at + argmax(logits, at, classes))
    for j in range(padded(classes)):  # whole vectors
        put(errors, to + j, exp32(item(logits, at + j) - top))
    total = np.float32(0.0)
    for j in range(classes):
        total = total + item(errors, to + j)
    for j in range(classes):
        error = item(errors, to + j) / total
        if j == label:
            error = error - np.float32(1.0)
        put(errors, to + j, np.float32(0.0) if abs(error) < FLUSH else error)
    for j in range(classes, padded(classes)):
        put(errors, to + j, np.float32(0.0))
    return log32(total) - (item(logits, at + label) - top)


@subroutine
def propagate(like, errors, errors_at, width, transposed, base, stride, activations, at, out):
    """Write as many elements of the error of the layer below as `like` has lanes to errors[out :].

    They are Σ_j δ_j w[k, j], j < width ascending, and +0 where the activation is not positive; δ_j is
    errors[errors_at + j].
    """
    total = like
    for j in range(width):
        total = total + item(errors, errors_at + j) * load(like, transposed, base + j * stride)
    store(errors, out, where(load(like, activations, at) > 0.0, total, 0.0))


@subroutine
def backward(net, transposed, activations, at, errors, m):
    """Propagate sample m's error from the last layer down to the first: fredsim.numerics.ops.linear.Linear.

    Layer l's errors begin at errors[error_offsets[l]], sample by sample, padded with +0. The sample's activations of
    all layers, each padded, begin at activations[at]. Layer l's transposed weights begin at
    transposed[transposed_offsets[l]]; their rows are padded.
    """
    for layer in range(1, net.layers - 1):
        at += padded(item(net.sizes, layer))
    for layer in range(net.layers - 1, 0, -1):
        inputs, width = item(net.sizes, layer), item(net.sizes, layer + 1)
        stride, base = padded(inputs), item(net.transposed_offsets, layer)
        errors_at, out = (
            item(net.error_offsets, layer) + m * padded(width),
            item(net.error_offsets, layer - 1) + m * stride,
        )
        k = ZERO
        while k + 48 < stride:
            propagate(zeros(64), errors, errors_at, width, transposed, base + k, stride, activations, at + k, out + k)
            k += 64
        while k < stride:
            propagate(zeros(16), errors, errors_at, width, transposed, base + k, stride, activations, at + k, out + k)
            k += 16
        for j in range(inputs, stride):
            put(errors, out + j, np.float32(0.0))
        if layer > 1:
            at -= padded(item(net.sizes, layer - 1))


@subroutine
def transpose(weights, base, stride, begin, end, inputs, width, out, at):
    """Transpose rows begin … end − 1 of a layer's weights; `begin` is a multiple of 16.

    out[at + j·padded(inputs) + k] = weights[base + k·stride + j]; values written beyond these are arbitrary.
    """
    out_stride = padded(inputs)
    k = begin
    while k + 16 <= end:
        for j in range(0, width, 16):
            transpose16(weights, base + k * stride + j, stride, out, at + j * out_stride + k, out_stride)
        k += 16
    for last in range(k, end):
        for j in range(width):
            put(out, at + j * out_stride + last, item(weights, base + last * stride + j))
