"""Gradients of many minibatches at once, each with parameters of its own.

The same bits as fredsim.numerics.oracle.gradient. Conventions as in fredsim.kernels.dense; parameters and gradients are
flat, their rows not padded.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import address_of, doubles, floats, int64s, item, octets, put, shift
from fredsim.jit.team import barrier_wait
from fredsim.jit.vector import store, store_part, zeros
from fredsim.kernels.data import DATA
from fredsim.kernels.dense import ZERO, backward, first_layer, padded, sample_floats, softmax_cross_entropy, transpose
from fredsim.kernels.reductions import copy
from fredsim.kernels.trees import (
    LEAVES,
    Tree,
    activate_all,
    blocks_of,
    errors_finite,
    gradient_rows,
    lay_out,
    rows_alike,
)
from fredsim.kernels.update import call_rule
from fredsim.kernels.upper import upper_layers
from fredsim.kernels.workspace import GROUP, NETWORK, TABLES
from fredsim.numerics.verdicts import DIVERGED, PASSED, REFUSED, UNDECIDED

__all__ = ["DRAIN_EVERY", "PASSES", "apply", "begin_works", "finish_work", "gradients", "passes"]

DRAIN_EVERY = 256  # vectors that are summed up in float32 before the sum goes to float64

#: Minibatches of the samples `rows` (batches, µ), with parameters at the addresses `held`. Their mean gradients go to
#: the addresses `out`. Row slots[b] is minibatch b's of `losses` (…, µ), of `errors`, and of `activations`, the upper
#: layers' inputs in blocks. Work space of each minibatch: the inputs in blocks, `factors`, and which are `active`; `z`
#: sample by sample; the upper layers' weights, `transposed`. Work space of each thread: `scratch`.
PASSES = Fields(
    net=NETWORK, data=DATA, tables=TABLES, mu=int, batches=int, rows=int64s, held=int64s, slots=int64s, losses=floats,
    out=int64s, factors=floats, active=octets, z=floats, errors=floats, activations=floats, transposed=floats,
    scratch=floats, scratch_stride=int,
)  # fmt: skip


@kernel(PASSES)
def passes(rank, size, barrier, a):
    """Do the forward and error passes of all minibatches."""
    lay_out_inputs(rank, size, a)
    transpose_upper(rank, size, a)
    barrier_wait(size, barrier)
    run_passes(rank, size, a)


@kernel(PASSES)
def gradients(rank, size, barrier, a):
    """Do the passes, then write each minibatch's mean gradient."""
    lay_out_inputs(rank, size, a)
    transpose_upper(rank, size, a)
    barrier_wait(size, barrier)
    run_passes(rank, size, a)
    barrier_wait(size, barrier)
    for b in range(a.batches):
        form_rows(rank, size, a, b, ZERO, ZERO, ZERO, ZERO, ZERO, doubles(ZERO))


@kernel(PASSES)
def begin_works(rank, size, barrier, a):
    """Do the passes alone: `finish_work` forms the gradients later, when the parameters may be others."""
    transpose_upper(rank, size, a)
    barrier_wait(size, barrier)
    run_passes(rank, size, a)


@kernel(PASSES)
def finish_work(rank, size, barrier, a):
    """Write the mean gradient of one minibatch whose passes are done."""
    net, rows, width, (_, groups) = a.net, item(a.net.sizes, 0) + 1, padded(item(a.net.sizes, 1)), blocks_of(a.mu)
    errors = shift(a.errors, item(a.slots, 0) * item(net.error_offsets, net.layers) + item(net.error_offsets, 0))
    lay_out_inputs(rank, size, a)
    for group in range(groups * rank // size, groups * (rank + 1) // size):  # those that this thread has laid out
        first = group * GROUP * LEAVES
        samples = min(GROUP * LEAVES, a.mu - first)
        if not errors_finite(errors, first * width, width, width, samples):
            activate_all(a.active, group * rows, rows)
    barrier_wait(size, barrier)
    form_rows(rank, size, a, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, doubles(ZERO))


@kernel(
    passes=PASSES, begin=int, end=int, rule=int, table=int64s, coefficients=int, coefficients_stride=int,
    apply_zeros=int, sums=int, partials=doubles, error=doubles, bounds=doubles, copies=int64s, verdicts=int64s,
    parameters=int,
)  # fmt: skip
def apply(rank, size, barrier, a):
    """Apply a rule to the mean gradients of minibatches begin … end − 1 whose passes are done, in place, row by row.

    After each the fetch gate decides by v̄, the mean of the state's watched array: the fetch is refused where v̄ is below
    bounds[b, 0], and passes where it is above bounds[b, 1]; then θ is copied to address copies[b]. verdicts[b] becomes
    what was decided (fredsim.numerics.verdicts); UNDECIDED and DIVERGED end the call.

    `table` and `coefficients`, a row a minibatch, `coefficients_stride` bytes apart, are what the rule takes
    (fredsim.kernels.update); `apply_zeros`: whether it is applied to rows whose gradient is +0, too. `error` is the
    relative error of a sum in float32. Work space: `sums`, the address of 32 floats a thread, or 0 where nothing is
    watched; `partials` (end, size, 3), of each thread whether its part of θ is finite, and its sums of v and |v|.
    """
    b, error, theta = a.begin, item(a.error, 0), floats(item(a.table, 0))
    sums = a.sums + 128 * rank if a.sums != 0 else a.sums
    while b < a.end:
        partial = shift(a.partials, (b * size + rank) * 3)
        put(partial, 1, 0.0)
        put(partial, 2, 0.0)
        coefficients = a.coefficients + b * a.coefficients_stride
        table = address_of(a.table, ZERO)
        finite = form_rows(rank, size, a.passes, b, a.rule, table, coefficients, a.apply_zeros, sums, partial)
        put(partial, 0, 1.0 if finite else 0.0)
        barrier_wait(size, barrier)  # once a minibatch: what a thread copies, it alone will change
        verdict = judge(size, shift(a.partials, b * size * 3), shift(a.bounds, 2 * b), error, a.parameters)
        if rank == 0:
            put(a.verdicts, b, verdict)
        if verdict == PASSED:
            copy_rows(rank, size, a.passes.net, theta, floats(item(a.copies, b)))
        b = b + 1 if verdict <= PASSED else a.end


@njit(error_model="numpy")
def judge(size, partials, bounds, error, count):
    """Return the verdict on a fetch from all threads' `partials`: see `apply`; `count` is the number of parameters."""
    total, magnitude = 0.0, 0.0
    for thread in range(size):
        if item(partials, 3 * thread) == 0.0:
            return DIVERGED
        total += item(partials, 3 * thread + 1)
        magnitude += item(partials, 3 * thread + 2)
    low, high = item(bounds, 0), item(bounds, 1)
    if high == -np.inf:
        return PASSED
    if low == np.inf:
        return REFUSED
    low_mean, high_mean = (total - error * magnitude) / count, (total + error * magnitude) / count
    if low_mean > 0.0 and low_mean > high:
        return PASSED
    if low_mean > 0.0 and high_mean < low:
        return REFUSED
    return UNDECIDED


@njit(error_model="numpy")
def copy_rows(rank, size, net, theta, out):
    """Copy this thread's rows of every layer."""
    for layer in range(net.layers):
        rows, width = item(net.sizes, layer) + 1, item(net.sizes, layer + 1)
        begin, end = rows * rank // size, rows * (rank + 1) // size
        at = item(net.offsets, layer) + begin * width
        copy(shift(theta, at), (end - begin) * width, shift(out, at))


@njit(error_model="numpy", forceinline=True)
def lay_out_inputs(rank, size, a):
    """Lay this thread's share of the inputs out in blocks."""
    inputs, (blocks, groups) = item(a.net.sizes, 0), blocks_of(a.mu)
    tasks = a.batches * groups
    for task in range(tasks * rank // size, tasks * (rank + 1) // size):
        b, group = task // groups, task % groups
        at, mark = b * blocks * (inputs + 1) * LEAVES, b * groups * (inputs + 1)
        lay_out(a.data, shift(a.rows, b * a.mu), a.mu, group, inputs, a.factors, at, a.active, mark)


@njit(error_model="numpy", forceinline=True)
def transpose_upper(rank, size, a):
    """Transpose this thread's share of the weights above the first layer: errors go back along their rows."""
    net = a.net
    for b in range(a.batches):
        weights, transposed = floats(item(a.held, b)), shift(a.transposed, b * item(net.transposed_offsets, net.layers))
        for layer in range(1, net.layers):
            below, width = item(net.sizes, layer), item(net.sizes, layer + 1)
            start = padded(below * rank // size)
            stop, to = min(padded(below * (rank + 1) // size), below), item(net.transposed_offsets, layer)
            transpose(weights, item(net.offsets, layer), width, start, stop, below, width, transposed, to)


@njit(error_model="numpy", forceinline=True)
def run_passes(rank, size, a):
    """Run this thread's blocks of samples through the network, and their errors back."""
    net, mu = a.net, a.mu
    layers, inputs, classes = net.layers, item(net.sizes, 0), item(net.sizes, net.layers)
    (blocks, groups), width, sample_stride = blocks_of(mu), padded(item(net.sizes, 1)), sample_floats(net)
    task, end = a.batches * blocks * rank // size, a.batches * blocks * (rank + 1) // size
    while task < end:
        b = task // blocks
        following = min(end, (b + 1) * blocks)
        weights, transposed = floats(item(a.held, b)), shift(a.transposed, b * item(net.transposed_offsets, layers))
        slot = item(a.slots, b)
        errors = shift(a.errors, slot * item(net.error_offsets, layers))
        activations = shift(a.activations, slot * item(net.activation_offsets, layers - 1))
        m0, m1 = (task - b * blocks) * LEAVES, min((following - b * blocks) * LEAVES, mu)
        z, rows = shift(a.z, b * blocks * LEAVES * sample_stride), shift(a.rows, b * mu)
        first_layer(net, a.data, rows, m0, m1, weights, z, sample_stride)
        for k in range(m0 // LEAVES, (m1 + LEAVES - 1) // LEAVES):
            block, samples = shift(z, k * LEAVES * sample_stride), min(LEAVES, mu - k * LEAVES)
            upper_layers(net, weights, block, sample_stride, samples, activations, k)
        for m in range(m0, m1):
            last, label = (m + 1) * sample_stride - padded(classes), item(a.data.labels, item(rows, m))
            to = item(net.error_offsets, layers - 1) + m * padded(classes)
            put(a.losses, slot * mu + m, softmax_cross_entropy(z, last, classes, label, errors, to))
            backward(net, transposed, z, m * sample_stride, errors, m)
            if not errors_finite(errors, item(net.error_offsets, 0) + m * width, width, width, 1):
                group = b * groups + m // (GROUP * LEAVES)  # other threads may write the same bits to the same place
                activate_all(a.active, group * (inputs + 1), inputs + 1)
        task = following


@njit(error_model="numpy", forceinline=True)
def form_rows(rank, size, a, b, rule, table, coefficients, apply_zeros, sums, partial):
    """Form this thread's rows of minibatch b's gradient; apply the rule to them or, where it is 0, write them out.

    Threads divide the rows of every layer. Returns whether θ stayed finite; `sums` and `partial` are as in `apply`.
    """
    net, tree = a.net, Tree(a.mu, a.tables, shift(a.scratch, rank * a.scratch_stride))
    slot = item(a.slots, b)
    errors = shift(a.errors, slot * item(net.error_offsets, net.layers))
    activations = shift(a.activations, slot * item(net.activation_offsets, net.layers - 1))
    blocks, groups = blocks_of(a.mu)
    buffer = shift(tree.stack, 64 * 65)
    gradient = floats(item(a.out, b))
    finite, added = True, ZERO
    for layer in range(net.layers):
        rows, width = item(net.sizes, layer) + 1, item(net.sizes, layer + 1)
        d, stride, step = item(net.error_offsets, layer), padded(width), rows * LEAVES
        x, factors, active, mark, group_stride = b * blocks * step, a.factors, a.active, b * groups * rows, rows
        if layer > 0:
            x, factors, active = item(net.activation_offsets, layer - 1), activations, a.tables.all_active
            mark, group_stride = ZERO, a.tables.stride
        k, end = rows * rank // size, rows * (rank + 1) // size
        while k < end:
            start, stop, inactive = k, min(k + a.data.chunk, end), False
            k = stop
            if layer == 0:
                k, inactive = rows_alike(a.active, mark, rows, groups, start, stop)
            at, count = item(net.offsets, layer) + start * width, (k - start) * width
            if inactive and rule == 0:
                clear(gradient, at, count)
            elif inactive and apply_zeros:
                finite &= call_rule(rule, table, at, ZERO, count, coefficients, sums)
            elif not inactive:
                gradient_rows(
                    tree, factors, x + start * LEAVES, step, k - start, active, mark + (start if layer == 0 else ZERO),
                    group_stride, errors, d, stride, width, buffer, ZERO, width,
                )  # fmt: skip
                if rule == 0:
                    copy(buffer, count, shift(gradient, at))
                else:
                    finite &= call_rule(rule, table, at, address_of(buffer, ZERO), count, coefficients, sums)
            added += (count + 15) // 16
            if added >= DRAIN_EVERY and sums != 0:
                drain(floats(sums), partial)
                added = ZERO
    if sums != 0:
        drain(floats(sums), partial)
    return finite


@njit(error_model="numpy")
def drain(sums, partial):
    """Add a rule's 16 sums to float64 partial[1], its 16 sums of absolute values to partial[2], and set them to 0."""
    for lane in range(16):
        put(partial, 1, item(partial, 1) + np.float64(item(sums, lane)))
        put(partial, 2, item(partial, 2) + np.float64(item(sums, 16 + lane)))
    store(sums, 0, zeros(16))
    store(sums, 16, zeros(16))


@njit(error_model="numpy")
def clear(out, at, count):
    """Set out[at : at + count] to +0."""
    i = ZERO
    while i + 16 <= count:
        store(out, at + i, zeros(16))
        i += 16
    if i < count:
        store_part(out, at + i, zeros(16), count - i)
