"""The parts of the kernel fredsim.kernels.mlp.hand.advance: what one thread does in a window of events.

In all functions `a` are the kernel's arguments; `local` is the thread's ThreadLocal; a window's events are s … e − 1, i
is one of them; k and `end` are rows of a layer's parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fredsim.jit.pointers import address_of, call, floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, load_part, no_nan, store, zeros
from fredsim.kernels.arrays.steady import CHECK_EVERY, unsteady_end
from fredsim.kernels.arrays.update import FINITE, UNCHANGED
from fredsim.kernels.mlp.dense import (
    ZERO,
    backward,
    chunk_bounds,
    combine,
    padded,
    sample_floats,
    softmax_cross_entropy,
    transpose,
)
from fredsim.kernels.mlp.trees import (
    LEAVES,
    Tree,
    activate_all,
    activity_run,
    blocks_of,
    errors_finite,
    gradient_rows,
    lay_out,
    thread_space,
)
from fredsim.kernels.mlp.upper import upper_layers

__all__ = [
    "ACTIVITIES",
    "ROWS_AT_ONCE",
    "add_columns",
    "inlined",
    "lay_out_window",
    "run_block_passes",
    "thread_local",
    "update_columns",
    "update_rows",
]

ROWS_AT_ONCE = 64  # rows of an upper layer that a thread takes at once: whole blocks of 16
#: What a thread spends its time on; these names are keys of `shares_kernels` in summary.json.
ACTIVITIES = ("gradient and update", "forward and error", "inputs", "waiting")

inlined = subroutine(forceinline=True)  # compiled into the kernel's one function


class ThreadLocal(NamedTuple):
    """What belongs to one thread: `width` columns of the first layer from `low` on, and workspace.

    The last `width` − `units` columns are padding.
    """

    rank: int
    low: int
    width: int
    units: int
    factors: Any  # the window's inputs in blocks, and which of these are active (fredsim.kernels.mlp.trees)
    active: Any
    tree: Tree  # for sums over a minibatch
    hidden: Any  # space for the activations of one block of samples
    gradient: Any  # space for some rows of a gradient
    steady: Any  # which rows of the thread's columns are steady (fredsim.kernels.arrays.steady)
    ticks: Any  # the ticks spent on each of ACTIVITIES


@inlined
def thread_local(rank, a):
    """Return this thread's ThreadLocal."""
    inputs, low = item(a.net.sizes, 0), item(a.bounds, rank)
    blocks, groups = blocks_of(a.mu)
    factors = shift(a.factors, rank * a.capacity * blocks * (inputs + 1) * LEAVES)
    active = shift(a.active, rank * a.capacity * groups * (inputs + 1))
    tree, hidden, gradient = thread_space(rank, a)
    steady, spent = shift(a.steady, rank * (inputs + 1)), shift(a.ticks, len(ACTIVITIES) * rank)
    width = item(a.bounds, rank + 1) - low
    units = min(width, item(a.net.sizes, 1) - low)
    return ThreadLocal(rank, low, width, units, factors, active, tree, hidden, gradient, steady, spent)


@inlined
def input_offsets(a, i):
    """Return where the inputs of the window's event i (counted from its begin) start in `factors` and in `active`."""
    (blocks, groups), rows = blocks_of(a.mu), item(a.net.sizes, 0) + 1
    return i * blocks * rows * LEAVES, i * groups * rows


@inlined
def lay_out_window(a, local, s, e):
    """Write the arriving minibatches' inputs in blocks; each thread does so for itself, to have them in its cache."""
    inputs, stride, (_, groups) = item(a.net.sizes, 0), item(a.net.strides, 0), blocks_of(a.mu)
    for i in range(s, e):
        slot = item(a.events.arriving, i)
        if slot >= 0:
            samples, (at, active_at) = shift(a.pending_rows, slot * a.mu), input_offsets(a, i - s)
            begin = slot * item(a.net.error_offsets, a.net.layers) + local.low
            finite = errors_finite(a.pending_errors, begin, stride, local.width, a.mu)
            for g in range(groups):
                lay_out(a.data, samples, a.mu, g, inputs, local.factors, at, local.active, active_at)
                if not finite:
                    activate_all(local.active, active_at + g * (inputs + 1), inputs + 1)


@inlined
def update_columns(a, local, s, i, k, end):
    """Apply event i's gradient to this thread's columns of rows k … end − 1; return whether they stay finite."""
    rows, stride, slot = item(a.net.sizes, 0) + 1, item(a.net.strides, 0), item(a.events.arriving, i)
    _, groups = blocks_of(a.mu)
    table, (factors_at, active_at) = address_of(a.addresses, a.versions * a.array_count), input_offsets(a, i - s)
    coefficients = a.events.coefficients + i * a.events.coefficients_stride
    errors = shift(a.pending_errors, slot * errors_size(a))
    finite = True
    while k < end:
        start = k
        k, inactive = activity_run(local.active, active_at, rows, groups, k, end)
        at = rows * local.low + start * local.width
        if not inactive:
            finite &= apply_rows(
                a.rule, table, at, local.width, local.units, coefficients, local.tree, local.factors,
                factors_at + start * LEAVES, rows * LEAVES, k - start, local.active, active_at + start, rows, errors,
                local.low, stride, local.gradient,
            )  # fmt: skip
            for row in range(start, k if a.apply_zeros else start):
                put(local.steady, row, np.uint8(0))
        elif a.apply_zeros:
            checking = a.may_skip != 0 and (a.arrived + i) % CHECK_EVERY == 0
            finite &= apply_zeros(a, local, table, start, k, coefficients, checking)
    return finite


@inlined
def apply_zeros(a, local, table, k, end, coefficients, checking):
    """Apply the rule with a gradient of +0 to rows k … end − 1 that are not steady; return whether θ stays finite.

    If `checking`, each row is updated by itself, and marked as steady if that has changed no bit of it
    (fredsim.kernels.arrays.steady).
    """
    rows, finite = item(a.net.sizes, 0) + 1, True
    while k < end:
        start = k
        k = unsteady_end(local.steady, start, end, checking)
        if k > start:
            at, count = rows * local.low + start * local.width, (k - start) * local.width
            outcome = call(a.rule, (table, at, ZERO, count, coefficients, ZERO))
            finite &= stays_finite(outcome, table, at, k - start, local.width, local.units)
            if checking and outcome & UNCHANGED != 0:
                put(local.steady, start, np.uint8(1))
        while k < end and item(local.steady, k) != 0:
            k += 1
    return finite


@inlined
def add_columns(a, local, s, i, c, last):
    """Add chunk c of inputs × weights to z of event i's next minibatch; after the `last` chunk, add the bias."""
    inputs, stride, width = item(a.net.sizes, 0), item(a.net.strides, 0), local.width
    theta, strip = floats(item(a.addresses, a.versions * a.array_count)), (inputs + 1) * local.low
    for m in range(a.mu):
        start, stop = chunk_bounds(a.data, item(a.events.rows, i * a.mu + m), c)
        at = ((i - s) * a.mu + m) * stride + local.low
        combine(a.data, start, stop, theta, strip, width, width, a.z, at, c == 0)
        if last:
            for j in range(0, width, 16):
                bias = load(zeros(16), theta, strip + inputs * width + j)
                store(a.z, at + j, load(zeros(16), a.z, at + j) + bias)


@inlined
def update_rows(a, local, s, e, version, layer, k):
    """Apply all events' gradients to ROWS_AT_ONCE rows of an upper layer, from row k on.

    After each event that is followed by a fetch, the rows are also transposed, for the next minibatch's backward pass.
    """
    net = a.net
    rows, stride, width = item(net.sizes, layer) + 1, item(net.strides, layer), item(net.sizes, layer + 1)
    for i in range(s, e):
        slot = item(a.events.arriving, i)
        if slot >= 0:
            finite = apply_rows(
                a.rule, address_of(a.addresses, version * a.array_count), item(net.offsets, layer) + k * stride, stride,
                width, a.events.coefficients + i * a.events.coefficients_stride, local.tree,
                shift(a.pending_activations, slot * item(net.activation_offsets, net.layers - 1)),
                item(net.activation_offsets, layer - 1) + k * LEAVES, rows * LEAVES, min(ROWS_AT_ONCE, rows - k),
                a.tables.all_active, ZERO, a.tables.stride, shift(a.pending_errors, slot * errors_size(a)),
                item(net.error_offsets, layer), stride, local.gradient,
            )  # fmt: skip
            if not finite:
                put(a.events.diverged_at, local.rank, min(item(a.events.diverged_at, local.rank), i))
            version = (version + 1) % a.versions
        if item(a.events.target, i) >= 0:
            weights = floats(item(a.addresses, version * a.array_count))
            transposed = shift(a.transposed, (i - s) * item(net.transposed_offsets, net.layers))
            stop, to = min(k + ROWS_AT_ONCE, rows - 1), item(net.transposed_offsets, layer)
            transpose(weights, item(net.offsets, layer), stride, k, stop, rows - 1, width, transposed, to)


@inlined
def run_block_passes(a, local, s, i, b, version):
    """Do the forward and backward pass of block b of event i's next minibatch, above the first layer."""
    net, mu, slot, hidden = a.net, a.mu, item(a.events.target, i), local.hidden
    stride, classes, sample_stride = item(net.strides, 0), item(net.sizes, net.layers), sample_floats(net)
    weights = floats(item(a.addresses, version * a.array_count))
    transposed = shift(a.transposed, (i - s) * item(net.transposed_offsets, net.layers))
    errors = shift(a.pending_errors, slot * errors_size(a))
    activations = shift(a.pending_activations, slot * item(net.activation_offsets, net.layers - 1))
    samples = min(LEAVES, mu - b * LEAVES)
    for m in range(samples):
        at = ((i - s) * mu + b * LEAVES + m) * stride
        for j in range(0, stride, 16):
            store(hidden, m * sample_stride + j, load(zeros(16), a.z, at + j))
    upper_layers(net, weights, hidden, sample_stride, samples, activations, b)
    for m in range(b * LEAVES, b * LEAVES + samples):
        row = item(a.events.rows, i * mu + m)
        at = (m - b * LEAVES) * sample_stride
        last, to = at + sample_stride - padded(classes), item(net.error_offsets, net.layers - 1) + m * padded(classes)
        loss = softmax_cross_entropy(hidden, last, classes, item(a.data.labels, row), errors, to)
        put(a.pending_losses, slot * mu + m, loss)
        put(a.pending_rows, slot * mu + m, row)
        backward(net, transposed, hidden, at, errors, m)


@subroutine
def apply_rows(
    rule, table, at, width, units, coefficients, tree, factors, factors_at, step, rows, active, active_at, group_stride,
    errors, errors_at, stride, gradient,
):  # fmt: skip
    """Form rows of a layer's gradient, and apply the rule to them, from element `at` on; return whether θ stays finite.

    The arguments are those of gradient_rows (fredsim.kernels.mlp.trees) and of a rule (fredsim.kernels.arrays.update);
    `units` columns of the `width` are no padding.
    """
    gradient_rows(
        tree, factors, factors_at, step, rows, active, active_at, group_stride, errors, errors_at, stride, width,
        gradient, ZERO, width,
    )  # fmt: skip
    outcome = call(rule, (table, at, address_of(gradient, ZERO), rows * width, coefficients, ZERO))
    return stays_finite(outcome, table, at, rows, width, units)


@subroutine
def stays_finite(outcome, table, at, rows, stride, units):
    """Return whether the new θ is finite in `units` columns of rows; `outcome` is what applying the rule has returned.

    The rule is applied to the padding, too, where parameters, state and gradient are +0 at first. What it makes of them
    there may be not finite, as with g/√s, and says nothing of θ.
    """
    if outcome & FINITE != 0:
        return True
    theta, finite = floats(item(int64s(table), 1)), zeros(16)
    for row in range(rows):
        for j in range(0, units, 16):
            finite = finite + load_part(finite, theta, at + row * stride + j, units - j) * 0.0
    return no_nan(finite)


@inlined
def errors_size(a):
    """Return how many floats the errors of a minibatch take."""
    return item(a.net.error_offsets, a.net.layers)
