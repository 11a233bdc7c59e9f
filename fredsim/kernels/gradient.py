"""Gradients of many minibatches at once, each with parameters of its own.

The same bits as fredsim.numerics.oracle.gradient. Conventions as in fredsim.kernels.dense; parameters and gradients are
flat, their rows not padded.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import address_of, doubles, floats, integers, item, octets, put, shift
from fredsim.jit.team import meet
from fredsim.jit.vector import store, store_part, zeros
from fredsim.kernels.data import DATA
from fredsim.kernels.dense import ZERO, backward, first_layer, length, padded, softmax_cross_entropy, turn
from fredsim.kernels.reductions import copy
from fredsim.kernels.shape import GROUP, NETWORK, TABLES
from fredsim.kernels.trees import (
    LEAVES,
    Tree,
    activate,
    blocks_of,
    errors_finite,
    gradient_rows,
    lay_out,
    stretch,
    upper_layers,
)
from fredsim.kernels.update import call_rule
from fredsim.numerics.verdicts import DIVERGED, PASSED, REFUSED, UNDECIDED

__all__ = ["DRAIN", "PASSES", "apply", "gradients", "passes"]

DRAIN = 256  # vectors that are summed up in float32 before the sum goes to float64

#: Minibatches of `mu` samples, numbered in `rows` (batches, µ), with parameters at the addresses `held`. Their losses
#: go to `losses` (batches, µ), their mean gradients to the addresses `out`. Then work space for each: inputs in blocks
#: and which of them are active, activations sample by sample, errors, activations in blocks, and the weights above the
#: first layer transposed; then scratch for each thread.
PASSES = Fields(
    net=NETWORK, data=DATA, tables=TABLES, mu=int, batches=int, rows=integers, held=integers, losses=floats,
    out=integers, factors=floats, active=octets, z=floats, errors=floats, activations=floats, turned=floats,
    scratch=floats, scratch_apart=int,
)  # fmt: skip


@kernel(PASSES)
def passes(rank, size, barrier, a):
    """Do the forward and error passes of all minibatches."""
    prepare(rank, size, a)
    meet(size, barrier)
    run_passes(rank, size, a)


@kernel(PASSES)
def gradients(rank, size, barrier, a):
    """Do the passes, then write each minibatch's mean gradient."""
    prepare(rank, size, a)
    meet(size, barrier)
    run_passes(rank, size, a)
    meet(size, barrier)
    for b in range(a.batches):
        form_rows(rank, size, a, b, ZERO, ZERO, ZERO, ZERO, ZERO, doubles(ZERO))


@kernel(
    passes=PASSES, begin=int, end=int, rule=int, table=integers, coefficients=int, coefficients_apart=int, visit=int,
    sums=int, states=doubles, error=doubles, bounds=doubles, copies=integers, verdicts=integers, parameters=int,
)  # fmt: skip
def apply(rank, size, barrier, a):
    """Apply a rule to the mean gradients of minibatches begin … end − 1 whose passes are done, in place, row by row.

    After each, its client fetches, or not, by the mean v̄ of an array that the rule watches: not where v̄ is below
    bounds[b, 0], but where it is above bounds[b, 1]; then θ is copied to address copies[b]. verdicts[b] says what was
    done. Where sums in float32 cannot tell, or θ is not finite, b is the last minibatch.

    `table` and `coefficients`, whose rows lie so many bytes apart, are what the rule takes (fredsim.kernels.update);
    `visit` says whether it is to see rows without any gradient. `sums` is room for 32 floats a thread, or 0 where
    nothing is watched, `states` for (end, size, 3); `error` the relative error of a sum of float32 terms of one sign.
    """
    b, error, theta = a.begin, item(a.error, 0), floats(item(a.table, 0))
    sums = a.sums + 128 * rank if a.sums != 0 else a.sums
    while b < a.end:
        state = shift(a.states, (b * size + rank) * 3)
        put(state, 1, 0.0)
        put(state, 2, 0.0)
        coefficients = a.coefficients + b * a.coefficients_apart
        table = address_of(a.table, ZERO)
        finite = form_rows(rank, size, a.passes, b, a.rule, table, coefficients, a.visit, sums, state)
        put(state, 0, 1.0 if finite else 0.0)
        meet(size, barrier)  # once a minibatch: what a thread copies, it alone will change
        verdict = judge(size, shift(a.states, b * size * 3), shift(a.bounds, 2 * b), error, a.parameters)
        if rank == 0:
            put(a.verdicts, b, verdict)
        if verdict == PASSED:
            copy_rows(rank, size, a.passes.net, theta, floats(item(a.copies, b)))
        b = b + 1 if verdict <= PASSED else a.end


@njit(error_model="numpy")
def judge(size, states, bounds, error, count):
    """Return the verdict on a fetch from all threads' states: whether θ is finite, a sum, and that of the sizes."""
    total, most = 0.0, 0.0
    for thread in range(size):
        if item(states, 3 * thread) == 0.0:
            return DIVERGED
        total += item(states, 3 * thread + 1)
        most += item(states, 3 * thread + 2)
    low, high = item(bounds, 0), item(bounds, 1)
    if high == -np.inf:
        return PASSED
    if low == np.inf:
        return REFUSED
    least, most = (total - error * most) / count, (total + error * most) / count
    if least > 0.0 and least > high:
        return PASSED
    if least > 0.0 and most < low:
        return REFUSED
    return UNDECIDED


@njit(error_model="numpy")
def copy_rows(rank, size, net, theta, out):
    """Copy this thread's rows of every layer."""
    for layer in range(net.layers):
        tall, here = item(net.sizes, layer) + 1, item(net.sizes, layer + 1)
        begin, end = tall * rank // size, tall * (rank + 1) // size
        at = item(net.offsets, layer) + begin * here
        copy(shift(theta, at), (end - begin) * here, shift(out, at))


@njit(error_model="numpy", forceinline=True)
def prepare(rank, size, a):
    """Lay inputs out in blocks; transpose weights above the first layer, that errors be propagated along rows."""
    net, inputs = a.net, item(a.net.sizes, 0)
    blocks, groups = blocks_of(a.mu)
    tasks = a.batches * groups
    for task in range(tasks * rank // size, tasks * (rank + 1) // size):
        b, group = task // groups, task % groups
        at, mark = b * blocks * (inputs + 1) * LEAVES, b * groups * (inputs + 1)
        lay_out(a.data, shift(a.rows, b * a.mu), a.mu, group, inputs, a.factors, at, a.active, mark)
    for b in range(a.batches):
        weights, turned = floats(item(a.held, b)), shift(a.turned, b * item(net.transposed, net.layers))
        for layer in range(1, net.layers):
            below, here = item(net.sizes, layer), item(net.sizes, layer + 1)
            start = padded(below * rank // size)
            stop = min(padded(below * (rank + 1) // size), below)
            turn(weights, item(net.offsets, layer), here, start, stop, below, here, turned, item(net.transposed, layer))


@njit(error_model="numpy", forceinline=True)
def run_passes(rank, size, a):
    """Run this thread's blocks of samples through the network, and their errors back."""
    net, mu = a.net, a.mu
    layers, inputs, classes, long = net.layers, item(net.sizes, 0), item(net.sizes, net.layers), length(net)
    (blocks, groups), width = blocks_of(mu), padded(item(net.sizes, 1))
    task, end = a.batches * blocks * rank // size, a.batches * blocks * (rank + 1) // size
    while task < end:
        b = task // blocks
        following = min(end, (b + 1) * blocks)
        weights, turned = floats(item(a.held, b)), shift(a.turned, b * item(net.transposed, layers))
        errors = shift(a.errors, b * item(net.places, layers))
        activations = shift(a.activations, b * item(net.inside, layers - 1))
        m0, m1 = (task - b * blocks) * LEAVES, min((following - b * blocks) * LEAVES, mu)
        z, rows = shift(a.z, b * blocks * LEAVES * long), shift(a.rows, b * mu)
        first_layer(net, a.data, rows, m0, m1, weights, z, long)
        for k in range(m0 // LEAVES, (m1 + LEAVES - 1) // LEAVES):
            block, samples = shift(z, k * LEAVES * long), min(LEAVES, mu - k * LEAVES)
            upper_layers(net, weights, block, long, samples, activations, k)
        for m in range(m0, m1):
            last, to = (m + 1) * long - padded(classes), item(net.places, layers - 1) + m * padded(classes)
            label = item(a.data.labels, item(rows, m))
            put(a.losses, b * mu + m, softmax_cross_entropy(z, last, classes, label, errors, to))
            backward(net, turned, z, m * long, errors, m)
            if not errors_finite(errors, item(net.places, 0) + m * width, width, width, 1):
                group = b * groups + m // (GROUP * LEAVES)  # other threads may write the same bits to the same place
                activate(a.active, group * (inputs + 1), inputs + 1)
        task = following


@njit(error_model="numpy", forceinline=True)
def form_rows(rank, size, a, b, rule, table, coefficients, visit, sums, state):
    """Form this thread's rows of minibatch b's gradient, and apply the rule to them, or, without one, write them out.

    Threads divide the rows of every layer. Returns whether θ stayed finite. What is watched is summed up in state[1],
    its size in state[2].
    """
    net, tree = a.net, Tree(a.mu, a.tables, shift(a.scratch, rank * a.scratch_apart))
    errors = shift(a.errors, b * item(net.places, net.layers))
    activations = shift(a.activations, b * item(net.inside, net.layers - 1))
    blocks, groups = blocks_of(a.mu)
    some = shift(tree.nodes, 64 * 65)
    gradient = floats(item(a.out, b))
    finite, added = True, ZERO
    for layer in range(net.layers):
        tall, here = item(net.sizes, layer) + 1, item(net.sizes, layer + 1)
        d, stride, step = item(net.places, layer), padded(here), tall * LEAVES
        x, entering, which, mark, apart = b * blocks * step, a.factors, a.active, b * groups * tall, tall
        if layer > 0:
            x, entering, which = item(net.inside, layer - 1), activations, a.tables.every
            mark, apart = ZERO, a.tables.apart
        k, end = tall * rank // size, tall * (rank + 1) // size
        while k < end:
            start, stop, quiet = k, min(k + a.data.chunk, end), False
            k = stop
            if layer == 0:
                k, quiet = stretch(a.active, mark, tall, groups, start, stop)
            at, count = item(net.offsets, layer) + start * here, (k - start) * here
            if quiet and rule == 0:
                clear(gradient, at, count)
            elif quiet and visit:
                finite &= call_rule(rule, table, at, ZERO, count, coefficients, sums)
            elif not quiet:
                gradient_rows(
                    tree, entering, x + start * LEAVES, step, k - start, which, mark + (start if layer == 0 else ZERO),
                    apart, errors, d, stride, here, some, ZERO, here,
                )  # fmt: skip
                if rule == 0:
                    copy(some, count, shift(gradient, at))
                else:
                    finite &= call_rule(rule, table, at, address_of(some, ZERO), count, coefficients, sums)
            added += (count + 15) // 16
            if added >= DRAIN and sums != 0:
                drain(floats(sums), state)
                added = ZERO
    if sums != 0:
        drain(floats(sums), state)
    return finite


@njit(error_model="numpy")
def drain(sums, state):
    """Add what a rule has summed up in 16 lanes to float64 state[1], and the absolute values to state[2]."""
    for lane in range(16):
        put(state, 1, item(state, 1) + np.float64(item(sums, lane)))
        put(state, 2, item(state, 2) + np.float64(item(sums, 16 + lane)))
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
