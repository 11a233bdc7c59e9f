"""Forward and error passes of a multilayer perceptron, sample by sample; an error pass back-propagates the errors.

The results have the same bits as those of fredsim.numerics.oracle. The only differences are where zeros are skipped,
how columns are grouped into vector registers, and which thread does what; none of these changes the order of additions.

Conventions. `net` is a NETWORK (fredsim.kernels.workspace), `data` a DATA (fredsim.kernels.data). The argument after a
pointer is the index at which to begin: out, at; errors, d; factors, x; weights, base; active, mark. A layer's
parameters are rows: one per input, then the bias, `stride` floats apart. Access to a row's last vector may go beyond
the row: behind every array there are MARGIN spare floats.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.pointers import item, put
from fredsim.jit.shuffles import transpose16
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.data import input_at
from fredsim.kernels.elementary import exp32, log32
from fredsim.numerics.rules import where

__all__ = [
    "ZERO",
    "backward",
    "chunk_of",
    "combine",
    "first_layer",
    "largest",
    "padded",
    "sample_floats",
    "softmax_cross_entropy",
    "transpose",
]

FLUSH = np.float32(2.0**-62)
ZERO = np.int64(0)  # a literal 0 has its own type in numba, for which every function would be compiled a second time


@subroutine
def padded(width):
    """Return `width` rounded up to whole vectors."""
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
    """Add the weights' rows times the inputs start … stop − 1, ascending, to out[at :]; with `fresh` start from +0."""
    total = like
    if not fresh:
        total = load(like, out, at)
    for t in range(start, stop):
        column, value = input_at(data, t)
        total = total + value * load(like, weights, base + column * stride)
    store(out, at, total)


@subroutine
def combine(data, start, stop, weights, base, stride, width, out, at, fresh):
    """Add Σ value·weights[base + column·stride + j] of the inputs start … stop − 1 to out[at + j], j < padded(width).

    Up to seven vectors of columns are summed together, as many as fit into registers.
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
def chunk_of(data, row, c):
    """Return where a sample's inputs in chunk c of the columns begin and end."""
    first, cut = item(data.first, row), row * (data.chunks + 1) + c
    return first + item(data.cuts, cut), first + item(data.cuts, cut + 1)


@subroutine
def first_layer(net, data, rows, m0, m1, weights, z, sample_stride):
    """Write the first layer's z of the samples rows[m], m0 ≤ m < m1, to z[m·sample_stride :].

    All samples are multiplied by one chunk of the weights' rows, while it is in the L1 cache, before the next chunk.
    """
    inputs, width, stride = item(net.sizes, 0), item(net.sizes, 1), item(net.strides, 0)
    for c in range(data.chunks):
        for m in range(m0, m1):
            low, high = chunk_of(data, item(rows, m), c)
            combine(data, low, high, weights, ZERO, stride, width, z, m * sample_stride, c == 0)
    for m in range(m0, m1):
        for j in range(width):
            put(z, m * sample_stride + j, item(z, m * sample_stride + j) + item(weights, inputs * stride + j))


@subroutine
def largest(logits, at, classes):
    """Return the lowest index of the maximum."""
    best = 0
    for j in range(1, classes):
        if item(logits, at + j) > item(logits, at + best):
            best = j
    return best


@subroutine
def softmax_cross_entropy(logits, at, classes, label, errors, to):
    """Write p − onehot(label), flushed, to errors[to :], padded with +0, and return the loss."""
    top = item(logits, at + largest(logits, at, classes))
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
def propagate(like, errors, d, width, transposed, base, stride, activations, at, out):
    """Write some columns of the error of the layer below, +0 where its activation is not positive."""
    total = like
    for j in range(width):
        total = total + item(errors, d + j) * load(like, transposed, base + j * stride)
    store(errors, out, where(load(like, activations, at) > 0.0, total, 0.0))


@subroutine
def backward(net, transposed, activations, at, errors, m):
    """Propagate sample m's error from the last layer down to the first.

    Layer l's errors begin at errors[error_offsets[l]], sample by sample, padded with +0; `activations[at :]` are those
    of the sample in all layers, each padded; layer l's transposed weights begin at transposed[transposed_offsets[l]],
    their rows padded.
    """
    for layer in range(1, net.layers - 1):
        at += padded(item(net.sizes, layer))
    for layer in range(net.layers - 1, 0, -1):
        inputs, width = item(net.sizes, layer), item(net.sizes, layer + 1)
        stride, base = padded(inputs), item(net.transposed_offsets, layer)
        d, out = item(net.error_offsets, layer) + m * padded(width), item(net.error_offsets, layer - 1) + m * stride
        k = ZERO
        while k + 48 < stride:
            propagate(zeros(64), errors, d, width, transposed, base + k, stride, activations, at + k, out + k)
            k += 64
        while k < stride:
            propagate(zeros(16), errors, d, width, transposed, base + k, stride, activations, at + k, out + k)
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
