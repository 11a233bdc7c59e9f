"""Forward and error passes of a multilayer perceptron, sample by sample, and its evaluation.

The same bits as fredsim.numerics.oracle. What differs is only where zeros are skipped, how columns are grouped into
vector registers, and which thread does what; none of that changes an order of additions.

Conventions. `sizes` is int64 (layers + 1,): inputs, hidden …, classes. Parameters are one flat float32 array: W1
(inputs, hidden) in C order, b1, W2, …; it must be followed by at least 16 readable floats, since a row's last vector
may read beyond it. The inputs are in compressed sparse rows: `first` int64 (n + 1,), `column` int32, `value` float32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fredsim.kernels.cache import kernel
from fredsim.kernels.elementary import exp32, log32
from fredsim.kernels.team import meet
from fredsim.kernels.vector import broadcast, load, store, zeros16

__all__ = ["ZERO", "backward", "evaluate", "forward", "measure", "padded", "softmax_cross_entropy"]

FLUSH = np.float32(2.0**-62)
ZERO = np.int64(0)  # a literal 0 has a type of its own in numba, for which every function would be compiled once more


@njit
def padded(width):
    """Return `width` rounded up to whole vectors."""
    return (width + 15) // 16 * 16


@njit
def measure(sizes):
    """Return where each layer's parameters begin, (layers + 1,), the padded floats a sample, and the widest layer."""
    layers = len(sizes) - 1
    offsets = np.zeros(layers + 1, np.int64)
    stride = ZERO
    widest = ZERO
    for layer in range(layers):
        offsets[layer + 1] = offsets[layer] + (sizes[layer] + 1) * sizes[layer + 1]
        stride += padded(sizes[layer + 1])
        widest = max(widest, sizes[layer + 1])
    return offsets, stride, widest


@njit
def combine(column, value, start, stop, weights, base, width, out, at):
    """Set out[at + j] = Σ_t value[t]·weights[base + column[t]·width + j] for j < width, t ascending from +0.

    Writes whole vectors: `out` has room for padded(width) elements.
    """
    j = 0
    while j + 48 < width:  # four registers of columns at once
        s0, s1, s2, s3 = zeros16(), zeros16(), zeros16(), zeros16()
        for t in range(start, stop):
            x = broadcast(value[t])
            row = base + column[t] * width + j
            s0 = s0 + x * load(weights, row)
            s1 = s1 + x * load(weights, row + 16)
            s2 = s2 + x * load(weights, row + 32)
            s3 = s3 + x * load(weights, row + 48)
        store(out, at + j, s0)
        store(out, at + j + 16, s1)
        store(out, at + j + 32, s2)
        store(out, at + j + 48, s3)
        j += 64
    while j < width:
        s0 = zeros16()
        for t in range(start, stop):
            s0 = s0 + broadcast(value[t]) * load(weights, base + column[t] * width + j)
        store(out, at + j, s0)
        j += 16


@njit
def compress(dense, at, width, column, value):
    """Write the non-zero elements of dense[at : at + width] to (column, value) and return how many there are."""
    count = 0
    for k in range(width):
        x = dense[at + k]
        column[count] = k
        value[count] = x
        count += x != np.float32(0.0)  # a NaN counts: it is no zero
    return count


@njit
def forward(sizes, offsets, weights, first, column, value, row, activations, at, scratch_column, scratch_value):
    """Run one sample through the network; write the hidden activations, then z of the last layer, from `at` on."""
    layers = len(sizes) - 1
    before = at
    for layer in range(layers):
        inputs, width = sizes[layer], sizes[layer + 1]
        base = offsets[layer]
        if layer == 0:
            combine(column, value, first[row], first[row + 1], weights, base, width, activations, at)
        else:
            count = compress(activations, before, inputs, scratch_column, scratch_value)
            combine(scratch_column, scratch_value, ZERO, count, weights, base, width, activations, at)
        bias = base + inputs * width
        last = layer == layers - 1
        for j in range(width):
            z = activations[at + j] + weights[bias + j]
            activations[at + j] = z if last or z > np.float32(0.0) else np.float32(0.0)
        before = at
        at += padded(width)


@njit
def largest(logits, at, classes):
    """Return the lowest index of the maximum."""
    best = 0
    for j in range(1, classes):
        if logits[at + j] > logits[at + best]:
            best = j
    return best


@njit
def softmax_cross_entropy(logits, at, classes, label, errors):
    """Write p − onehot(label) to errors[at :], flushed, and return the loss."""
    top = logits[at + largest(logits, at, classes)]
    total = np.float32(0.0)
    for j in range(classes):
        errors[at + j] = exp32(logits[at + j] - top)
        total = total + errors[at + j]
    for j in range(classes):
        error = errors[at + j] / total
        if j == label:
            error = error - np.float32(1.0)
        errors[at + j] = np.float32(0.0) if abs(error) < FLUSH else error
    return log32(total) - (logits[at + label] - top)


@njit
def backward(sizes, transposed, turned, activations, errors, at, stride, scratch_column, scratch_value):
    """Propagate one sample's last error down; errors[at :] is laid out as the activations are, `stride` long."""
    end = at + stride
    for layer in range(len(sizes) - 2, 0, -1):
        inputs, width = sizes[layer], sizes[layer + 1]
        above = end - padded(width)
        below = above - padded(inputs)
        count = compress(errors, above, width, scratch_column, scratch_value)
        combine(scratch_column, scratch_value, ZERO, count, turned, transposed[layer], inputs, errors, below)
        for k in range(inputs):
            if not activations[below + k] > np.float32(0.0):
                errors[below + k] = np.float32(0.0)
        end = above


@kernel(nogil=True)
def evaluate(rank, size, barrier, sizes, weights, first, column, value, labels, losses, wrong):
    """Write each sample's loss to losses (n,) and whether its argmax misses the label to wrong (n,)."""
    offsets, stride, widest = measure(sizes)
    classes = sizes[-1]
    activations = np.empty(stride, np.float32)
    errors = np.empty(stride, np.float32)
    scratch_column = np.empty(widest + 1, np.int32)
    scratch_value = np.empty(widest + 1, np.float32)
    last = stride - padded(classes)
    n = len(labels)
    for row in range(n * rank // size, n * (rank + 1) // size):
        forward(sizes, offsets, weights, first, column, value, row, activations, ZERO, scratch_column, scratch_value)
        losses[row] = softmax_cross_entropy(activations, last, classes, labels[row], errors)
        wrong[row] = largest(activations, last, classes) != labels[row]
    meet(size, barrier)
