"""What a thread does in a window of events whose clients hold no parameters: the parts of fredsim.kernels.sweep."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from fredsim.jit.pointers import address_of, floats, item, put, shift
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.dense import ZERO, backward, chunk_of, combine, length, padded, softmax_cross_entropy, turn
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

__all__ = [
    "PIECE",
    "SPENT",
    "add_columns",
    "lay_out_window",
    "own_of",
    "part",
    "pass_block",
    "update_columns",
    "update_piece",
]

PIECE = 64  # rows of an upper layer that a thread takes at once; whole blocks of 16
#: On what a thread spends its cycles.
SPENT = ("gradient and update", "forward and error", "inputs", "waiting")

part = njit(error_model="numpy", forceinline=True)  # of the kernel: one function, written as several


class Own(NamedTuple):
    """What belongs to one thread: `width` columns of the first layer from `low` on, and work space."""

    rank: int
    low: int
    width: int
    factors: Any  # the window's inputs in blocks, and which are active
    active: Any
    tree: Tree
    hidden: Any  # activations of one block of samples
    gradient: Any
    cycles: Any


@part
def own_of(rank, a):
    """Return what belongs to a thread."""
    inputs, low = item(a.net.sizes, 0), item(a.bounds, rank)
    blocks, groups = blocks_of(a.mu)
    factors = shift(a.factors, rank * a.room * blocks * (inputs + 1) * LEAVES)
    active = shift(a.active, rank * a.room * groups * (inputs + 1))
    nodes = shift(a.scratch, rank * a.scratch_apart)
    hidden = shift(nodes, 64 * 65)
    gradient, spent = shift(hidden, LEAVES * length(a.net) + 64), shift(a.cycles, len(SPENT) * rank)
    tree = Tree(a.mu, a.tables, nodes)
    return Own(rank, low, item(a.bounds, rank + 1) - low, factors, active, tree, hidden, gradient, spent)


@part
def inputs_of(a, i):
    """Return where the inputs of a window's event i stand in `factors`, and their activity in `active`."""
    (blocks, groups), tall = blocks_of(a.mu), item(a.net.sizes, 0) + 1
    return i * blocks * tall * LEAVES, i * groups * tall


@part
def lay_out_window(a, own, s, e):
    """Lay out the inputs of what arrives. Every thread does so for itself: another's would come from another cache."""
    inputs, stride, (_, groups) = item(a.net.sizes, 0), item(a.net.strides, 0), blocks_of(a.mu)
    for i in range(s, e):
        slot = item(a.events.arriving, i)
        if slot >= 0:
            samples, (at, mark) = shift(a.held_rows, slot * a.mu), inputs_of(a, i - s)
            begin = slot * item(a.net.places, a.net.layers) + own.low
            sound = errors_finite(a.held_errors, begin, stride, own.width, a.mu)
            for g in range(groups):
                lay_out(a.data, samples, a.mu, g, inputs, own.factors, at, own.active, mark)
                if not sound:
                    activate(own.active, mark + g * (inputs + 1), inputs + 1)


@part
def update_columns(a, own, s, i, k, end):
    """Apply event i's gradient to columns of the first layer's rows k … end − 1; return whether they are finite."""
    tall, stride, slot = item(a.net.sizes, 0) + 1, item(a.net.strides, 0), item(a.events.arriving, i)
    _, groups = blocks_of(a.mu)
    table, (x, mark) = address_of(a.addresses, a.versions * a.arrays), inputs_of(a, i - s)
    coefficients = a.events.coefficients + i * a.events.coefficients_apart
    errors = shift(a.held_errors, slot * held_errors(a))
    finite = True
    while k < end:
        start = k
        k, quiet = stretch(own.active, mark, tall, groups, k, end)
        at = tall * own.low + start * own.width
        if not quiet:
            finite &= apply_rows(
                a.rule, table, at, own.width, coefficients, own.tree, own.factors, x + start * LEAVES, tall * LEAVES,
                k - start, own.active, mark + start, tall, errors, own.low, stride, own.gradient,
            )  # fmt: skip
        elif a.visit:
            finite &= call_rule(a.rule, table, at, ZERO, (k - start) * own.width, coefficients, ZERO)
    return finite


@part
def add_columns(a, own, s, i, c, last):
    """Add chunk c of the inputs, weighted, to z of the samples that event i fetches for; the bias with the last."""
    inputs, stride, width = item(a.net.sizes, 0), item(a.net.strides, 0), own.width
    theta, strip = floats(item(a.addresses, a.versions * a.arrays)), (inputs + 1) * own.low
    for m in range(a.mu):
        start, stop = chunk_of(a.data, item(a.events.rows, i * a.mu + m), c)
        at = ((i - s) * a.mu + m) * stride + own.low
        combine(a.data.column, a.data.value, start, stop, theta, strip, width, width, a.z, at, c == 0)
        if last:
            for j in range(0, width, 16):
                bias = load(zeros(16), theta, strip + inputs * width + j)
                store(a.z, at + j, load(zeros(16), a.z, at + j) + bias)


@part
def update_piece(a, own, s, e, version, layer, k):
    """Apply all events' gradients to PIECE rows of a layer from row k on; transpose them for who fetches."""
    net = a.net
    tall, stride, width = item(net.sizes, layer) + 1, item(net.strides, layer), item(net.sizes, layer + 1)
    for i in range(s, e):
        slot = item(a.events.arriving, i)
        if slot >= 0:
            finite = apply_rows(
                a.rule, address_of(a.addresses, version * a.arrays), item(net.offsets, layer) + k * stride, stride,
                a.events.coefficients + i * a.events.coefficients_apart, own.tree,
                shift(a.held_activations, slot * item(net.inside, net.layers - 1)),
                item(net.inside, layer - 1) + k * LEAVES, tall * LEAVES, min(PIECE, tall - k), a.tables.every, ZERO,
                a.tables.apart, shift(a.held_errors, slot * held_errors(a)), item(net.places, layer), stride,
                own.gradient,
            )  # fmt: skip
            if not finite:
                put(a.events.bad, own.rank, min(item(a.events.bad, own.rank), i))
            version = (version + 1) % a.versions
        if item(a.events.target, i) >= 0:
            weights = floats(item(a.addresses, version * a.arrays))
            turned = shift(a.turned, (i - s) * item(net.transposed, net.layers))
            stop, to = min(k + PIECE, tall - 1), item(net.transposed, layer)
            turn(weights, item(net.offsets, layer), stride, k, stop, tall - 1, width, turned, to)


@part
def pass_block(a, own, s, i, b, version):
    """Do the passes of block b of the samples that event i fetches for."""
    net, mu, slot, hidden = a.net, a.mu, item(a.events.target, i), own.hidden
    stride, classes, long = item(net.strides, 0), item(net.sizes, net.layers), length(net)
    weights = floats(item(a.addresses, version * a.arrays))
    turned = shift(a.turned, (i - s) * item(net.transposed, net.layers))
    errors = shift(a.held_errors, slot * held_errors(a))
    activations = shift(a.held_activations, slot * item(net.inside, net.layers - 1))
    samples = min(LEAVES, mu - b * LEAVES)
    for m in range(samples):
        at = ((i - s) * mu + b * LEAVES + m) * stride
        for j in range(0, stride, 16):
            store(hidden, m * long + j, load(zeros(16), a.z, at + j))
    upper_layers(net, weights, hidden, long, samples, activations, b)
    for m in range(b * LEAVES, b * LEAVES + samples):
        row = item(a.events.rows, i * mu + m)
        at = (m - b * LEAVES) * long
        last, to = at + long - padded(classes), item(net.places, net.layers - 1) + m * padded(classes)
        loss = softmax_cross_entropy(hidden, last, classes, item(a.data.labels, row), errors, to)
        put(a.held_losses, slot * mu + m, loss)
        put(a.held_rows, slot * mu + m, row)
        backward(net, turned, hidden, at, errors, m)


@njit(error_model="numpy")
def apply_rows(
    rule, table, at, width, coefficients, tree, factors, x, step, rows, active, mark, apart, errors, d, stride, gradient
):
    """Form rows of a layer's gradient and apply the rule to them, at element `at` on; return whether θ is finite."""
    gradient_rows(
        tree, factors, x, step, rows, active, mark, apart, errors, d, stride, width, gradient, ZERO, width
    )  # fmt: skip
    return call_rule(rule, table, at, address_of(gradient, ZERO), rows * width, coefficients, ZERO)


@part
def held_errors(a):
    """Return what the errors of one work in hand take."""
    return item(a.net.places, a.net.layers)
