"""Events whose clients hold no parameters: what a client holds is the work it has in hand.

Where it is known at the fetch which minibatch a client's next arrival takes, the forward and the error pass of that
minibatch are done at once, and only activations and errors are kept until the client arrives. One sweep over the rows
of the first layer then forms a row of the gradient, applies the rule to it and adds it to the forward passes of the
clients that fetch right after: no gradient and no snapshot ever exists as a whole.

Events are processed in windows whose work was in hand before the window began. In a window threads divide the columns
of the first layer, so that every sum over inputs stays within a thread, and the rows of the other layers, of which a
version is kept for each event of the window; then they divide the samples.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fredsim.kernels.cache import kernel
from fredsim.kernels.dense import ZERO, backward, combine, padded, softmax_cross_entropy, turn, upper_layers
from fredsim.kernels.team import meet
from fredsim.kernels.trees import LEAVES, finish_lists, gradient_rows, lay_out, list_blocks
from fredsim.kernels.vector import floats, item, load, store, zeros

__all__ = ["advance"]


@intrinsic
def call_rule(typingctx, rule, table, at, gradient, count, coefficients):
    """Call a compiled rule by its address (fredsim.kernels.update)."""

    def generate(context, builder, sig, args):
        function = ir.FunctionType(ir.IntType(8), [ir.IntType(64)] * 5)
        result = builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])
        return builder.icmp_unsigned("!=", result, ir.Constant(result.type, 0))

    return types.boolean(*[types.int64] * 6), generate


@intrinsic
def address_of(typingctx, array, index):
    """Return the memory address of array[index]."""

    def generate(context, builder, sig, args):
        data = context.make_array(array)(context, builder, args[0]).data
        return builder.ptrtoint(builder.gep(data, [args[1]]), ir.IntType(64))

    return types.int64(array, types.intp), generate


@njit(error_model="numpy")
def apply_rows(
    rule, table, at, width, begin, end, state, coefficients,
    factors, x, step, lists, found, merges, errors, d, stride, mu, nodes, gradient,
):  # fmt: skip
    """Form rows begin … end − 1 of a layer's gradient and apply the rule to them, run by run; return whether θ is finite.

    `lists` tells the blocks of each row, from `begin` on. Rows without any are quiet: where the rule says that a zero
    gradient keeps θ, only their state changes.
    """
    finite = True
    k = begin
    while k < end:
        first = k
        quiet = item(lists, k - begin) == item(lists, k - begin + 1)
        while k < end and (item(lists, k - begin) == item(lists, k - begin + 1)) == quiet:
            k += 1
        if not quiet:
            gradient_rows(
                factors, x + first * LEAVES, step, k - first, lists[first - begin :], found, merges, errors, d, stride,
                width, mu, nodes, gradient, ZERO, width,
            )  # fmt: skip
            place = address_of(gradient, ZERO)
            finite &= call_rule(rule, table, at + first * width, place, (k - first) * width, coefficients)
        elif state:
            finite &= call_rule(rule, table, at + first * width, ZERO, (k - first) * width, coefficients)
    return finite


@kernel(nogil=True, error_model="numpy")
def advance(
    rank, size, barrier, sizes, mu, chunk, room, bounds, offsets, rule, state, tables, version,
    first, column, value, labels, cuts, arriving, target, source, rows, coefficients, losses,
    held_rows, held_losses, held_errors, held_activations, factors, active, z, turned, bad,
):  # fmt: skip
    """Process events 0 … n − 1, as far as all parameters stay finite: bad[rank] is the first event where they do not.

    Event i is the arrival of the work in slot arriving[i], begun at event source[i] (negative: before these events),
    which the rule applies with coefficients[i]; after it the forward and error pass of the samples rows[i] (µ,) is done
    and put in slot target[i]. Either slot may be −1: nothing arrives, or the client is never seen again.

    `bounds` (size + 1,): the columns of the first layer that each thread has, in whole vectors: that thread's strip of
    the layer's rows stands at (inputs + 1)·bounds[rank]. `tables` int64 (versions + 1, arrays): the addresses that the
    rule takes, for each version of the other layers and, last, for the first layer. `cuts` int32 (n, chunks + 1): where
    each `chunk` of columns begins in a sample's inputs. `room`: how many events a window has room for.
    """
    layers = len(sizes) - 1
    inputs, width = sizes[0], sizes[1]
    n = len(arriving)
    stride = padded(width)
    blocks = (mu + LEAVES - 1) // LEAVES
    step = (inputs + 1) * LEAVES
    versions = len(tables) - 1
    widest = sizes[1:].max()

    strip = (inputs + 1) * bounds[rank]
    low, high = bounds[rank], bounds[rank + 1]
    theta = floats(tables[versions, 1], (inputs + 1) * stride)

    # Where each layer's errors and activations stand in a slot, and its transposed weights.
    places = np.zeros(layers + 1, np.int64)
    inside = np.zeros(layers + 1, np.int64)
    transposed = np.zeros(layers + 1, np.int64)
    samples = blocks * LEAVES
    for layer in range(layers):
        places[layer + 1] = places[layer] + samples * padded(sizes[layer + 1])
        inside[layer + 1] = inside[layer] + blocks * (sizes[layer + 1] + 1) * LEAVES
        if layer > 0:
            transposed[layer + 1] = transposed[layer] + padded(sizes[layer]) * padded(sizes[layer + 1])
    at_sample = np.empty(layers, np.int64)
    strides = (sizes[1:] + 15) // 16 * 16

    # Scratch of this thread.
    tall = max(chunk + 1, sizes[1:].max() + 1)
    lists = np.zeros(tall + 1, np.int64)
    found = np.zeros(tall * blocks + 1, np.int64)
    merges = np.zeros(tall * blocks + 1, np.int64)
    open_blocks = np.empty(65, np.int64)
    full_lists = np.arange(tall + 1) * blocks  # of rows in which every block is active
    full_found = np.empty(tall * blocks, np.int64)
    full_merges = np.empty(tall * blocks, np.int64)
    for k in range(tall):
        for b in range(blocks):
            full_found[k * blocks + b] = b
        finish_lists(full_found, k * blocks, (k + 1) * blocks, full_merges, open_blocks)
    nodes = np.empty(64 * 65, np.float32)
    gradient = np.empty(tall * padded(widest) + 64, np.float32)
    scratch_column = np.empty(widest + 1, np.int32)
    scratch_value = np.empty(widest + 1, np.float32)
    long = ZERO
    for layer in range(layers):
        long += padded(sizes[layer + 1])
    hidden = np.zeros(long + 64, np.float32)

    s = ZERO
    e = window_end(source, s, n, room)
    prepare(rank, size, s, e, blocks, inputs, first, column, value, arriving, source, rows, held_rows, factors, active)
    meet(size, barrier)
    while s < n:
        # The first layer, by columns.
        if high > low:
            for c in range((inputs + 1 + chunk - 1) // chunk):
                begin, end = c * chunk, min((c + 1) * chunk, inputs + 1)
                for i in range(s, e):
                    slot = arriving[i]
                    if slot >= 0:
                        mark = (i - s) * blocks * (inputs + 1)
                        lists[0] = ZERO
                        for k in range(begin, end):
                            lists[k - begin + 1] = list_blocks(
                                active, mark, inputs + 1, blocks, k, lists[k - begin], found, merges, open_blocks
                            )
                        finite = apply_rows(
                            rule, address_of(tables, versions * tables.shape[1]), strip, high - low, begin, end, state,
                            address_of(coefficients, i * coefficients.shape[1]), factors, (i - s) * blocks * step, step,
                            lists, found, merges, held_errors[slot], low, stride, mu, nodes, gradient,
                        )  # fmt: skip
                        if not finite:
                            bad[rank] = min(bad[rank], i)
                    if target[i] >= 0:
                        for m in range(mu):
                            row = rows[i, m]
                            at = ((i - s) * mu + m) * stride + low
                            combine(
                                column, value, first[row] + cuts[row, c], first[row] + cuts[row, c + 1], theta, strip,
                                high - low, high - low, z, at, c == 0,
                            )  # fmt: skip
                            if end == inputs + 1:
                                for j in range(high - low):
                                    z[at + j] = item(z, at + j) + item(theta, strip + inputs * (high - low) + j)

        # The other layers, by rows, a new version each event.
        current = version
        for i in range(s, e):
            slot = arriving[i]
            following = current
            if slot >= 0:
                following = (current + 1) % versions
                for layer in range(1, layers):
                    rows_here = sizes[layer] + 1
                    begin = padded(rows_here * rank // size)
                    end = min(padded(rows_here * (rank + 1) // size), rows_here)
                    if begin < end:
                        finite = apply_rows(
                            rule, address_of(tables, current * tables.shape[1]), offsets[layer], padded(sizes[layer + 1]),
                            begin, end, True, address_of(coefficients, i * coefficients.shape[1]),
                            held_activations[slot], inside[layer - 1], rows_here * LEAVES,
                            full_lists, full_found, full_merges,
                            held_errors[slot], places[layer], padded(sizes[layer + 1]), mu, nodes, gradient,
                        )  # fmt: skip
                        if not finite:
                            bad[rank] = min(bad[rank], i)
            if target[i] >= 0:
                weights = floats(tables[following, 0], offsets[layers])
                for layer in range(1, layers):
                    rows_here = sizes[layer] + 1
                    begin = padded(rows_here * rank // size)
                    end = min(padded(rows_here * (rank + 1) // size), sizes[layer])
                    turn(
                        weights, offsets[layer], padded(sizes[layer + 1]), begin, end, sizes[layer], sizes[layer + 1],
                        turned[i - s], transposed[layer],
                    )  # fmt: skip
            current = following
            if rank == 0 and slot >= 0:
                losses[i] = held_losses[slot]
        meet(size, barrier)
        stop = False
        for other in range(size):
            stop |= bad[other] < n
        if stop:
            break

        # The forward and error passes of those that have fetched, by samples.
        tasks = (e - s) * blocks
        current = version
        done = s
        for task in range(tasks * rank // size, tasks * (rank + 1) // size):
            i, b = s + task // blocks, task % blocks
            while done <= i:
                current = (current + 1) % versions if arriving[done] >= 0 else current
                done += 1
            slot = target[i]
            if slot < 0:
                continue
            weights = floats(tables[current, 0], offsets[layers])
            for m in range(b * LEAVES, min((b + 1) * LEAVES, mu)):
                row = rows[i, m]
                at = ((i - s) * mu + m) * stride
                for j in range(0, stride, 16):
                    store(hidden, j, load(zeros(16), z, at + j))
                upper_layers(sizes, offsets, strides, weights, hidden, ZERO, scratch_column, scratch_value)
                last = long - padded(sizes[layers])
                for layer in range(layers):
                    at_sample[layer] = places[layer] + m * padded(sizes[layer + 1])
                errors = held_errors[slot]
                loss = softmax_cross_entropy(hidden, last, sizes[layers], labels[row], errors, at_sample[layers - 1])
                backward(
                    sizes, transposed, turned[i - s], hidden, ZERO, errors, at_sample, scratch_column, scratch_value
                )
                at = ZERO
                for layer in range(layers - 1):
                    keep = inside[layer] + b * (sizes[layer + 1] + 1) * LEAVES + m - b * LEAVES
                    for k in range(sizes[layer + 1]):
                        held_activations[slot, keep + k * LEAVES] = item(hidden, at + k)
                    held_activations[slot, keep + sizes[layer + 1] * LEAVES] = np.float32(1.0)
                    at += padded(sizes[layer + 1])
                held_rows[slot, m] = row
                held_losses[slot, m] = loss
        while done < e:
            current = (current + 1) % versions if arriving[done] >= 0 else current
            done += 1
        version = current
        following_end = window_end(source, e, n, room)
        prepare(
            rank, size, e, following_end, blocks, inputs, first, column, value, arriving, source, rows, held_rows,
            factors, active,
        )  # fmt: skip
        s, e = e, following_end
        meet(size, barrier)
    meet(size, barrier)


@njit(error_model="numpy")
def window_end(source, s, n, room):
    """Return the end of the window that begins at event s: every work that arrives in it was begun before it."""
    e = s
    while e < n and e - s < room and item(source, e) < s:
        e += 1
    return e


@njit(error_model="numpy")
def prepare(rank, size, s, e, blocks, inputs, first, column, value, arriving, source, rows, held_rows, factors, active):
    """Lay out the inputs of the works that arrive in a window, block by block; threads divide the blocks."""
    tasks = (e - s) * blocks
    for task in range(tasks * rank // size, tasks * (rank + 1) // size):
        i, b = s + task // blocks, task % blocks
        if arriving[i] < 0:
            continue
        # A slot that may be written in this very moment is not read.
        chosen = rows[source[i]] if source[i] >= 0 else held_rows[arriving[i]]
        lay_out(first, column, value, chosen, b, inputs, factors, active, task)
