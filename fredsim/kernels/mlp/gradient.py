"""Kernels of the mean gradients of many minibatches at once, each at its own parameters.

The results have the same bits as those of fredsim.networks.graph.Graph.gradient. Conventions are those of
fredsim.kernels.mlp.dense. Parameters and gradients are flat (P,), and their rows are not padded. NumbaEngine calls
`gradients`; executors of the paths `hand` and `fused` call the other kernels (fredsim.kernels.mlp.pending).
"""

from __future__ import annotations

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift, uint8s
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import barrier_wait
from fredsim.kernels.arrays.reductions import copy
from fredsim.kernels.mlp.dense import (
    ZERO,
    backward,
    first_layer,
    padded,
    sample_floats,
    softmax_cross_entropy,
    transpose,
)
from fredsim.kernels.mlp.sparse_rows import DATA
from fredsim.kernels.mlp.trees import (
    LEAVES,
    activate_all,
    activity_run,
    blocks_of,
    errors_finite,
    gradient_rows,
    lay_out,
    thread_space,
)
from fredsim.kernels.mlp.upper import upper_layers
from fredsim.kernels.mlp.workspace import GROUP, NETWORK, SCRATCH, TABLES
from fredsim.kernels.ops.rows import clear

__all__ = [
    "PASSES",
    "form_gradient",
    "form_layer_rows",
    "forward_backward",
    "gradients",
    "lay_out_pending",
    "next_run",
]

#: The arguments of all kernels here. Minibatch b consists of the samples rows[b] of `data`, `rows` (batches, µ); its
#: parameters are at the address held[b]; its mean gradient is written to the address out[b]. It has row slots[b] of
#: `losses` (…, µ), of `errors` (back-propagated, layer by layer), and of `activations`, the upper layers' inputs in
#: blocks. Workspace of each minibatch: `factors`, the inputs in blocks, and `active`, which of these blocks are active
#: (fredsim.kernels.mlp.trees); `z`, sample by sample; `transposed`, the upper layers' weights. Workspace of each
#: thread: `scratch`.
PASSES = Fields(
    net=NETWORK, data=DATA, tables=TABLES, mu=int, batches=int, rows=int64s, held=int64s, slots=int64s, losses=floats,
    out=int64s, factors=floats, active=uint8s, z=floats, errors=floats, activations=floats, transposed=floats,
    scratch=SCRATCH,
)  # fmt: skip


@kernel(PASSES)
def gradients(rank, size, barrier, a):
    """Do the passes of all minibatches, then write their mean gradients."""
    lay_out_inputs(rank, size, a)
    transpose_upper(rank, size, a)
    barrier_wait(size, barrier)
    run_passes(rank, size, a)
    barrier_wait(size, barrier)
    for b in range(a.batches):
        form_rows(rank, size, a, b)


@kernel(PASSES)
def forward_backward(rank, size, barrier, a):
    """Do only the passes of all minibatches; gradients are formed later, when the parameters may have changed."""
    transpose_upper(rank, size, a)
    barrier_wait(size, barrier)
    run_passes(rank, size, a)


@kernel(PASSES)
def form_gradient(rank, size, barrier, a):
    """Write the mean gradient of minibatch 0, whose passes are done."""
    lay_out_pending(rank, size, a)
    barrier_wait(size, barrier)
    form_rows(rank, size, a, ZERO)


@subroutine(forceinline=True)
def lay_out_inputs(rank, size, a):
    """Write this thread's share of the minibatches' inputs in blocks."""
    inputs, (blocks, groups) = item(a.net.sizes, 0), blocks_of(a.mu)
    tasks = a.batches * groups
    for task in range(tasks * rank // size, tasks * (rank + 1) // size):
        b, group = task // groups, task % groups
        at, active_at = b * blocks * (inputs + 1) * LEAVES, b * groups * (inputs + 1)
        lay_out(a.data, shift(a.rows, b * a.mu), a.mu, group, inputs, a.factors, at, a.active, active_at)


@subroutine(forceinline=True)
def lay_out_pending(rank, size, a):
    """Write this thread's share of the inputs in blocks, for minibatches whose passes are done."""
    net, mu, (_, groups) = a.net, a.mu, blocks_of(a.mu)
    rows, width = item(net.sizes, 0) + 1, padded(item(net.sizes, 1))
    lay_out_inputs(rank, size, a)
    tasks = a.batches * groups
    for task in range(tasks * rank // size, tasks * (rank + 1) // size):
        first = task % groups * GROUP * LEAVES
        errors = shift(a.errors, item(a.slots, task // groups) * item(net.error_offsets, net.layers))
        at = item(net.error_offsets, 0) + first * width
        if not errors_finite(errors, at, width, width, min(GROUP * LEAVES, mu - first)):
            activate_all(a.active, task * rows, rows)


@subroutine(forceinline=True)
def transpose_upper(rank, size, a):
    """Transpose this thread's share of the weights above the first layer, for the backward pass."""
    net = a.net
    for b in range(a.batches):
        weights, transposed = floats(item(a.held, b)), shift(a.transposed, b * item(net.transposed_offsets, net.layers))
        for layer in range(1, net.layers):
            below, width = item(net.sizes, layer), item(net.sizes, layer + 1)
            start = padded(below * rank // size)
            stop, to = min(padded(below * (rank + 1) // size), below), item(net.transposed_offsets, layer)
            transpose(weights, item(net.offsets, layer), width, start, stop, below, width, transposed, to)


@subroutine(forceinline=True)
def run_passes(rank, size, a):
    """Do the forward and backward passes of this thread's blocks of samples."""
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
                group = b * groups + m // (GROUP * LEAVES)  # other threads may write here, but the same bits
                activate_all(a.active, group * (inputs + 1), inputs + 1)
        task = following


@subroutine(forceinline=True)
def form_rows(rank, size, a, b):
    """Write this thread's rows, in every layer, of minibatch b's gradient."""
    gradient, (tree, _, buffer) = floats(item(a.out, b)), thread_space(rank, a)
    for layer in range(a.net.layers):
        rows, width = item(a.net.sizes, layer) + 1, item(a.net.sizes, layer + 1)
        k, end = rows * rank // size, rows * (rank + 1) // size
        while k < end:
            start = k
            k, inactive = next_run(a, b, layer, start, end)
            at, count = item(a.net.offsets, layer) + start * width, (k - start) * width
            if inactive:
                clear(gradient, at, count)
            elif (end - k) * width >= 16:  # what a row's last vector writes beyond the row is overwritten later
                form_layer_rows(a, tree, b, layer, start, k, shift(gradient, at))
            else:
                form_layer_rows(a, tree, b, layer, start, k, buffer)
                copy(buffer, count, shift(gradient, at))


@subroutine(forceinline=True)
def next_run(a, b, layer, start, end):
    """Return the end of the rows to form together, from `start` on, and whether minibatch b's gradient is +0 there."""
    stop = min(start + a.data.chunk, end)
    if layer > 0:
        return stop, False
    rows, (_, groups) = item(a.net.sizes, 0) + 1, blocks_of(a.mu)
    return activity_run(a.active, b * groups * rows, rows, groups, start, stop)


@subroutine(forceinline=True)
def form_layer_rows(a, tree, b, layer, start, end, out):
    """Write rows start … end − 1 of a layer of minibatch b's gradient."""
    net, slot, (blocks, groups) = a.net, item(a.slots, b), blocks_of(a.mu)
    rows, width = item(net.sizes, layer) + 1, item(net.sizes, layer + 1)
    errors = shift(a.errors, slot * item(net.error_offsets, net.layers))
    factors, factors_at = a.factors, (b * blocks * rows + start) * LEAVES
    active, active_at, group_stride = a.active, b * groups * rows + start, rows
    if layer > 0:
        factors = shift(a.activations, slot * item(net.activation_offsets, net.layers - 1))
        factors_at = item(net.activation_offsets, layer - 1) + start * LEAVES
        active, active_at, group_stride = a.tables.all_active, ZERO, a.tables.stride
    gradient_rows(
        tree, factors, factors_at, rows * LEAVES, end - start, active, active_at, group_stride, errors,
        item(net.error_offsets, layer), padded(width), width, out, ZERO, width,
    )  # fmt: skip
