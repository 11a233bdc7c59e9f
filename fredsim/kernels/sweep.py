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

from numba import njit

from fredsim.jit.cache import kernel
from fredsim.jit.pointers import address_of, floats, integers, item, octets, put, shift, shorts
from fredsim.jit.team import cycles, fetch_add, meet
from fredsim.jit.vector import load, store, zeros  # fmt: skip
from fredsim.kernels.dense import ZERO, backward, combine, length, padded, softmax_cross_entropy, turn
from fredsim.kernels.rows import apply_rows
from fredsim.kernels.trees import GROUP, LEAVES, activate, errors_finite, lay_out, stretch, upper_layers
from fredsim.kernels.update import call_rule

__all__ = ["PIECE", "advance"]

PIECE = 64  # rows of an upper layer that a thread takes at once; whole blocks of 16


@kernel
def advance(rank, size, barrier, arguments):
    """Process events 0 … n − 1, as far as all parameters stay finite: bad[rank] is the first event where they do not.

    The arguments stand below, in their order. Event i is the arrival of the work in slot arriving[i], begun at event
    source[i] (negative: before these events), which the rule applies with coefficients[i]; after it the forward and
    error pass of the samples rows[i] (µ,) is done and put in slot target[i]. Either slot may be −1: nothing arrives, or
    the client is never seen again.

    `bounds` (size + 1,): the columns of the first layer that each thread has, in whole vectors; that thread's strip of
    the layer's rows stands at (inputs + 1)·bounds[rank]. `tables` int64 (versions + 1, arrays): the addresses that the
    rule takes, for each version of the other layers and, last, for the first layer. `cuts` int32 (n, chunks + 1): where
    each `chunk` of columns begins in a sample's inputs. `room`: how many events a window has room for. `visit`: whether
    rows without any gradient are passed to the rule.
    """
    a = integers(arguments)
    layers, mu, n, room, versions, version = item(a, 0), item(a, 1), item(a, 2), item(a, 3), item(a, 4), item(a, 5)
    chunk, chunks, rule, visit, arrays, numbers = (
        item(a, 6),
        item(a, 7),
        item(a, 8),
        item(a, 9),
        item(a, 10),
        item(a, 11),
    )
    blocks = (mu + LEAVES - 1) // LEAVES
    groups = (blocks + GROUP - 1) // GROUP
    sizes, strides, offsets = integers(item(a, 12)), integers(item(a, 13)), integers(item(a, 14))
    places, inside, transposed = integers(item(a, 15)), integers(item(a, 16)), integers(item(a, 17))
    counts, found, closes = octets(item(a, 18)), octets(item(a, 19)), octets(item(a, 20))
    bounds, tables = integers(item(a, 21)), integers(item(a, 22))
    first, column, value = integers(item(a, 23)), shorts(item(a, 24)), floats(item(a, 25))
    labels, cuts = integers(item(a, 26)), shorts(item(a, 27))
    arriving, target, source = integers(item(a, 28)), integers(item(a, 29)), integers(item(a, 30))
    rows, coefficients, losses = shorts(item(a, 31)), item(a, 32), floats(item(a, 33))
    held_rows, held_losses = shorts(item(a, 34)), floats(item(a, 35))
    held_errors, held_activations = floats(item(a, 36)), floats(item(a, 37))
    factors, active, z, all_turned = floats(item(a, 38)), octets(item(a, 39)), floats(item(a, 40)), floats(item(a, 41))
    factors = shift(factors, rank * room * blocks * (item(sizes, 0) + 1) * LEAVES)
    active = shift(active, rank * room * groups * (item(sizes, 0) + 1))
    bad, spent = integers(item(a, 42)), shift(integers(item(a, 43)), 4 * rank)
    every, every_apart, nodes = octets(item(a, 44)), item(a, 45), shift(floats(item(a, 46)), rank * item(a, 47))
    tickets = integers(item(a, 48))
    each_errors, each_activations = item(places, layers), item(inside, layers - 1)
    hidden = shift(nodes, 64 * 65)
    long = length(layers, sizes)
    gradient = shift(hidden, LEAVES * long + 64)

    inputs, classes = item(sizes, 0), item(sizes, layers)
    stride, tall = padded(item(sizes, 1)), inputs + 1
    low = item(bounds, rank)
    width = item(bounds, rank + 1) - low
    strip = tall * low
    below = address_of(tables, versions * arrays)
    theta = floats(item(tables, versions * arrays))

    s = ZERO
    e = window_end(source, s, n, room)
    clock = cycles()
    while s < n:
        # Every thread lays the inputs out for itself: another's would come from another cache.
        for i in range(s, e):
            slot = item(arriving, i)
            if slot >= 0:
                samples = shift(held_rows, slot * mu)
                at, mark = (i - s) * blocks * tall * LEAVES, (i - s) * groups * tall
                sound = errors_finite(held_errors, slot * each_errors + low, stride, width, mu)
                for g in range(groups):
                    lay_out(first, column, value, samples, mu, g, inputs, factors, at, active, mark)
                    if not sound:
                        activate(active, mark + g * tall, tall)
        clock = charge(spent, 2, clock)

        # The first layer, by columns.
        for c in range(chunks if width > 0 else 0):
            begin, end = c * chunk, min((c + 1) * chunk, tall)
            for i in range(s, e):
                slot = item(arriving, i)
                if slot >= 0:
                    mark, x = (i - s) * groups * tall, (i - s) * blocks * tall * LEAVES
                    k = begin
                    while k < end:
                        start = k
                        k, quiet = stretch(active, mark, tall, groups, k, end)
                        finite = True
                        if not quiet:
                            finite = apply_rows(
                                rule, below, strip + start * width, width, coefficients + i * numbers, factors,
                                x + start * LEAVES, tall * LEAVES, k - start, counts, found, closes, active,
                                mark + start, tall, shift(held_errors, slot * each_errors), low, stride, mu, nodes,
                                gradient,
                            )  # fmt: skip
                        elif visit:
                            at, count = strip + start * width, (k - start) * width
                            finite = call_rule(rule, below, at, ZERO, count, coefficients + i * numbers, ZERO)
                        if not finite:
                            put(bad, rank, min(item(bad, rank), i))
                    clock = charge(spent, 0, clock)
                if item(target, i) >= 0:
                    for m in range(mu):
                        row = item(rows, i * mu + m)
                        cut = row * (chunks + 1) + c
                        start, stop = item(first, row) + item(cuts, cut), item(first, row) + item(cuts, cut + 1)
                        at = ((i - s) * mu + m) * stride + low
                        combine(column, value, start, stop, theta, strip, width, width, z, at, c == 0)
                        if end == tall:
                            for j in range(0, width, 16):
                                bias = load(zeros(16), theta, strip + inputs * width + j)
                                store(z, at + j, load(zeros(16), z, at + j) + bias)
                    clock = charge(spent, 1, clock)

        # The other layers, a new version each event. Whoever is free takes the next stretch of rows.
        if rank == 0:
            for i in range(s, e):
                if item(arriving, i) >= 0:
                    for m in range(mu):
                        put(losses, i * mu + m, item(held_losses, item(arriving, i) * mu + m))
        ticket, taken = fetch_add(tickets, 0, 1), ZERO
        for layer in range(1, layers):
            here, there, width_here = item(sizes, layer) + 1, item(strides, layer), item(sizes, layer + 1)
            for k in range(0, here, PIECE):
                if taken == ticket:
                    rows_here, current = min(PIECE, here - k), version
                    for i in range(s, e):
                        slot = item(arriving, i)
                        if slot >= 0:
                            finite = apply_rows(
                                rule, address_of(tables, current * arrays), item(offsets, layer) + k * there, there,
                                coefficients + i * numbers, shift(held_activations, slot * each_activations),
                                item(inside, layer - 1) + k * LEAVES, here * LEAVES, rows_here,
                                counts, found, closes, every, ZERO, every_apart,
                                shift(held_errors, slot * each_errors), item(places, layer), there, mu, nodes, gradient,
                            )  # fmt: skip
                            if not finite:
                                put(bad, rank, min(item(bad, rank), i))
                            current = (current + 1) % versions
                        if item(target, i) >= 0:
                            turned = shift(all_turned, (i - s) * item(transposed, layers))
                            turn(
                                floats(item(tables, current * arrays)), item(offsets, layer), there, k,
                                min(k + PIECE, here - 1), here - 1, width_here, turned, item(transposed, layer),
                            )  # fmt: skip
                    ticket = fetch_add(tickets, 0, 1)
                taken += 1
        clock = charge(spent, 0, clock)
        meet(size, barrier)
        clock = charge(spent, 3, clock)
        stop_here = False
        for other in range(size):
            stop_here |= item(bad, other) < n
        if stop_here:
            break

        # The forward and error passes of those that have fetched, by samples.
        if rank == 0:
            put(tickets, 0, ZERO)
        current, done = version, s
        tasks = (e - s) * blocks
        for task in range(tasks * rank // size, tasks * (rank + 1) // size):
            i, b = s + task // blocks, task % blocks
            while done <= i:
                current = (current + 1) % versions if item(arriving, done) >= 0 else current
                done += 1
            slot = item(target, i)
            if slot >= 0:
                weights, turned = (
                    floats(item(tables, current * arrays)),
                    shift(all_turned, (i - s) * item(transposed, layers)),
                )
                errors = shift(held_errors, slot * each_errors)
                activations = shift(held_activations, slot * each_activations)
                samples = min(LEAVES, mu - b * LEAVES)
                for m in range(samples):
                    at = ((i - s) * mu + b * LEAVES + m) * stride
                    for j in range(0, stride, 16):
                        store(hidden, m * long + j, load(zeros(16), z, at + j))
                upper_layers(layers, sizes, offsets, strides, weights, hidden, long, samples, activations, inside, b)
                for m in range(b * LEAVES, b * LEAVES + samples):
                    row = item(rows, i * mu + m)
                    at = (m - b * LEAVES) * long
                    last, to = at + long - padded(classes), item(places, layers - 1) + m * padded(classes)
                    loss = softmax_cross_entropy(hidden, last, classes, item(labels, row), errors, to)
                    put(held_losses, slot * mu + m, loss)
                    put(held_rows, slot * mu + m, row)
                    backward(layers, sizes, transposed, turned, hidden, at, errors, places, m)
        while done < e:
            current = (current + 1) % versions if item(arriving, done) >= 0 else current
            done += 1
        version = current
        clock = charge(spent, 1, clock)
        s, e = e, window_end(source, e, n, room)
        meet(size, barrier)
        clock = charge(spent, 3, clock)
    meet(size, barrier)


@njit(error_model="numpy")
def charge(spent, what, since):
    """Count the cycles since `since` as spent on `what`; return the clock."""
    now = cycles()
    put(spent, what, item(spent, what) + now - since)
    return now


@njit(error_model="numpy")
def window_end(source, s, n, room):
    """Return the end of the window that begins at event s: every work that arrives in it was begun before it."""
    e = s
    while e < n and e - s < room and item(source, e) < s:
        e += 1
    return e
