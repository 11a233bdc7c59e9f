"""Gradients of many minibatches at once, each with parameters of its own.

The same bits as fredsim.numerics.oracle.gradient. Conventions as in fredsim.kernels.dense; parameters and gradients are
flat, their rows not padded. A batch is `rows` int64 (B, µ): the samples of each of B minibatches, with its parameters
at the memory address `held[b]`.

The arguments stand in `run_passes` and `form_rows` in their order. After the data comes work space for each minibatch:
its inputs in blocks, hidden activations sample by sample, errors, activations in blocks, and the weights above the
first layer transposed; then scratch for each thread.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fredsim.jit.cache import kernel
from fredsim.jit.pointers import address_of, doubles, floats, integers, item, octets, put, shift, shorts
from fredsim.jit.team import meet
from fredsim.jit.vector import store, store_part, zeros
from fredsim.kernels.dense import ZERO, backward, first_layer, length, padded, softmax_cross_entropy, turn
from fredsim.kernels.reductions import copy
from fredsim.kernels.trees import (
    GROUP,
    LEAVES,
    activate,
    errors_finite,
    gradient_rows,
    lay_out,
    stretch,
    upper_layers,
)
from fredsim.kernels.update import call_rule
from fredsim.numerics.verdicts import DIVERGED, PASSED, REFUSED, UNDECIDED

__all__ = ["DRAIN", "apply", "gradients", "passes"]

DRAIN = 256  # vectors that are summed up in float32 before the sum goes to float64


@kernel
def passes(rank, size, barrier, arguments):
    """Do the forward and error passes of all minibatches; write their samples' losses (B, µ)."""
    run_passes(rank, size, barrier, arguments)


@kernel
def gradients(rank, size, barrier, arguments):
    """Do the passes, then write each minibatch's mean gradient to the float32 array at address out[b]."""
    run_passes(rank, size, barrier, arguments)
    a = integers(arguments)
    for b in range(item(a, 2)):
        form_rows(rank, size, a, b, ZERO, ZERO, ZERO, ZERO, ZERO, doubles(ZERO))
    meet(size, barrier)


@kernel
def apply(rank, size, barrier, arguments):
    """Apply a rule to the mean gradients of minibatches b … end − 1 whose passes are done, in place, row by row.

    After each, its client fetches, or not, by the mean v̄ of an array that the rule watches: not where v̄ is below
    bounds[b, 0], but where it is above bounds[b, 1]; then θ is copied to address copies[b]. verdicts[b] says what was
    done. Where sums in float32 cannot tell, or θ is not finite, b is the last minibatch.

    Takes the address of the passes' arguments, b and end, the rule's address, its table (fredsim.kernels.update),
    coefficients and the bytes from those of one minibatch to the next, whether the rule is to see rows without any
    gradient, room for 32 floats a thread, or 0 where nothing is watched, room for float64 (end, size, 3), the relative
    error of a sum of float32 terms of one sign, the bounds, copies and verdicts, and the number of parameters.
    """
    a = integers(arguments)
    data, b, end, rule, table = integers(item(a, 0)), item(a, 1), item(a, 2), item(a, 3), item(a, 4)
    coefficients, apart, visit, sums, states = item(a, 5), item(a, 6), item(a, 7), item(a, 8), doubles(item(a, 9))
    error, bounds = item(doubles(item(a, 10)), 0), doubles(item(a, 11))
    copies, verdicts, count = integers(item(a, 12)), integers(item(a, 13)), item(a, 14)
    theta, sums = floats(item(integers(table), 0)), (sums + 128 * rank if sums != 0 else sums)
    while b < end:
        state = shift(states, (b * size + rank) * 3)
        put(state, 1, 0.0)
        put(state, 2, 0.0)
        finite = form_rows(rank, size, data, b, rule, table, coefficients + b * apart, visit, sums, state)
        put(state, 0, 1.0 if finite else 0.0)
        meet(size, barrier)  # once a minibatch: what a thread copies, it alone will change
        verdict = judge(size, shift(states, b * size * 3), shift(bounds, 2 * b), error, count)
        if rank == 0:
            put(verdicts, b, verdict)
        if verdict == PASSED:
            copy_rows(rank, size, data, theta, floats(item(copies, b)))
        b = b + 1 if verdict <= PASSED else end
    meet(size, barrier)


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
def copy_rows(rank, size, a, theta, out):
    """Copy this thread's rows of every layer."""
    sizes, offsets = integers(item(a, 5)), integers(item(a, 7))
    for layer in range(item(a, 0)):
        tall, here = item(sizes, layer) + 1, item(sizes, layer + 1)
        begin, end = tall * rank // size, tall * (rank + 1) // size
        at = item(offsets, layer) + begin * here
        copy(shift(theta, at), (end - begin) * here, shift(out, at))


@njit(error_model="numpy")
def run_passes(rank, size, barrier, arguments):
    """Lay out inputs, run the network forward and its errors back; the threads have met at the end."""
    a = integers(arguments)
    layers, mu, batches, chunks = item(a, 0), item(a, 1), item(a, 2), item(a, 4)
    sizes, strides, offsets = integers(item(a, 5)), integers(item(a, 6)), integers(item(a, 7))
    places, inside, transposed = integers(item(a, 8)), integers(item(a, 9)), integers(item(a, 10))
    first, column, value = integers(item(a, 14)), shorts(item(a, 15)), floats(item(a, 16))
    labels, cuts = integers(item(a, 17)), shorts(item(a, 18))
    held, rows, losses = integers(item(a, 19)), integers(item(a, 21)), floats(item(a, 22))
    factors, active, z = floats(item(a, 23)), octets(item(a, 24)), floats(item(a, 25))
    all_errors, all_activations, all_turned = floats(item(a, 26)), floats(item(a, 27)), floats(item(a, 28))
    blocks = (mu + LEAVES - 1) // LEAVES
    inputs, width, classes, long = item(sizes, 0), item(sizes, 1), item(sizes, layers), length(layers, sizes)

    # Inputs in blocks; weights above the first layer transposed, so that errors are propagated along rows.
    groups = (blocks + GROUP - 1) // GROUP
    tasks = batches * groups
    for task in range(tasks * rank // size, tasks * (rank + 1) // size):
        b, samples = task // groups, shift(rows, task // groups * mu)
        at, mark = b * blocks * (inputs + 1) * LEAVES, b * groups * (inputs + 1)
        lay_out(first, column, value, samples, mu, task % groups, inputs, factors, at, active, mark)
    for b in range(batches):
        weights, turned = floats(item(held, b)), shift(all_turned, b * item(transposed, layers))
        for layer in range(1, layers):
            below, here = item(sizes, layer), item(sizes, layer + 1)
            start = padded(below * rank // size)
            stop = min(padded(below * (rank + 1) // size), below)
            turn(weights, item(offsets, layer), here, start, stop, below, here, turned, item(transposed, layer))
    meet(size, barrier)

    # Threads divide the blocks of samples.
    tasks = batches * blocks
    task, end = tasks * rank // size, tasks * (rank + 1) // size
    while task < end:
        b = task // blocks
        following = min(end, (b + 1) * blocks)
        weights, turned = floats(item(held, b)), shift(all_turned, b * item(transposed, layers))
        errors = shift(all_errors, b * item(places, layers))
        activations = shift(all_activations, b * item(inside, layers - 1))
        m0, m1 = (task - b * blocks) * LEAVES, min((following - b * blocks) * LEAVES, mu)
        here = shift(z, b * blocks * LEAVES * long)
        samples = shift(rows, b * mu)
        first_layer(first, column, value, cuts, chunks, samples, m0, m1, weights, inputs, width, width, here, long)
        for k in range(m0 // LEAVES, (m1 + LEAVES - 1) // LEAVES):
            block, count = shift(here, k * LEAVES * long), min(LEAVES, mu - k * LEAVES)
            upper_layers(layers, sizes, offsets, strides, weights, block, long, count, activations, inside, k)
        for m in range(m0, m1):
            last, to = (m + 1) * long - padded(classes), item(places, layers - 1) + m * padded(classes)
            label = item(labels, item(samples, m))
            put(losses, b * mu + m, softmax_cross_entropy(here, last, classes, label, errors, to))
            backward(layers, sizes, transposed, turned, here, m * long, errors, places, m)
            if not errors_finite(errors, item(places, 0) + m * padded(width), padded(width), padded(width), 1):
                group = b * groups + m // (GROUP * LEAVES)  # other threads may write the same bits to the same place
                activate(active, group * (inputs + 1), inputs + 1)
        task = following
    meet(size, barrier)


@njit(error_model="numpy")
def form_rows(rank, size, a, b, rule, table, coefficients, visit, sums, state):
    """Form this thread's rows of minibatch b's gradient, and apply the rule to them, or, without one, write them out.

    Threads divide the rows of every layer. Returns whether θ stayed finite. What is watched is summed up in state[1],
    its size in state[2].
    """
    layers, mu, chunk = item(a, 0), item(a, 1), item(a, 3)
    sizes, offsets, places, inside = (
        integers(item(a, 5)),
        integers(item(a, 7)),
        integers(item(a, 8)),
        integers(item(a, 9)),
    )
    counts, found, closes = octets(item(a, 11)), octets(item(a, 12)), octets(item(a, 13))
    out, factors, active = integers(item(a, 20)), floats(item(a, 23)), octets(item(a, 24))
    errors = shift(floats(item(a, 26)), b * item(places, layers))
    activations = shift(floats(item(a, 27)), b * item(inside, layers - 1))
    every, every_apart, nodes = octets(item(a, 29)), item(a, 30), shift(floats(item(a, 31)), rank * item(a, 32))
    blocks = (mu + LEAVES - 1) // LEAVES
    groups = (blocks + GROUP - 1) // GROUP
    some = shift(nodes, 64 * 65)
    gradient = floats(item(out, b))
    finite, added = True, ZERO
    for layer in range(layers):
        tall, here = item(sizes, layer) + 1, item(sizes, layer + 1)
        d, stride, step = item(places, layer), padded(here), tall * LEAVES
        x, entering, which, mark, apart = b * blocks * step, factors, active, b * groups * tall, tall
        if layer > 0:
            x, entering, which, mark, apart = item(inside, layer - 1), activations, every, ZERO, every_apart
        k, end = tall * rank // size, tall * (rank + 1) // size
        while k < end:
            start, stop, quiet = k, min(k + chunk, end), False
            k = stop
            if layer == 0:
                k, quiet = stretch(active, mark, tall, groups, start, stop)
            at, count = item(offsets, layer) + start * here, (k - start) * here
            if quiet and rule == 0:
                clear(gradient, at, count)
            elif quiet and visit:
                finite &= call_rule(rule, table, at, ZERO, count, coefficients, sums)
            elif not quiet:
                gradient_rows(
                    entering, x + start * LEAVES, step, k - start, counts, found, closes, which,
                    mark + (start if layer == 0 else ZERO), apart, errors, d, stride, here, mu, nodes, some, ZERO, here,
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
