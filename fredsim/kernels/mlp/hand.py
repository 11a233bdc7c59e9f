"""Kernel of the path `hand`: clients hold no parameters, but the pending passes of their next minibatch.

If it is known at the fetch which minibatch the client will push a gradient of, the forward and backward pass of that
minibatch are done at once, and only activations and errors are kept until the client's push arrives
(fredsim.kernels.mlp.pending). Then one sweep over the rows of the first layer forms each row of the gradient, applies
the rule to it, and adds the updated row to the forward passes of the clients that fetch right after. Neither a gradient
nor a snapshot of the parameters ever exists as a whole.

A window is a sequence of consecutive events whose passes were all done before it. Within a window, threads first divide
the columns of the first layer, so that every sum over inputs stays within one thread, and the rows of the other layers,
of which a version is kept for each event of the window; then they divide the samples.
"""

from __future__ import annotations

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, int32s, int64s, item, put, uint8s
from fredsim.jit.processor import ticks
from fredsim.jit.team import barrier_wait, fetch_add
from fredsim.kernels.mlp.dense import ZERO
from fredsim.kernels.mlp.sparse_rows import DATA
from fredsim.kernels.mlp.trees import blocks_of
from fredsim.kernels.mlp.window import (
    ACTIVITIES,
    ROWS_AT_ONCE,
    add_columns,
    inlined,
    lay_out_window,
    run_block_passes,
    thread_local,
    update_columns,
    update_rows,
)
from fredsim.kernels.mlp.workspace import NETWORK, SCRATCH, TABLES

__all__ = ["ACTIVITIES", "EVENTS", "ROWS_AT_ONCE", "advance"]

UPDATE, PASSES, INPUTS, WAITING = range(4)  # indices of ACTIVITIES

#: At event i the passes in slot arriving[i] arrive, which were done at event source[i] (negative: before these events).
#: The rule is applied to their gradient with row i of `coefficients`, rows `coefficients_stride` bytes apart; then the
#: passes of the samples rows[i] (µ,) are done, and kept in slot target[i]. Either slot may be −1: nothing arrives, or
#: the client never arrives again. `losses` (count, µ) are those of the arrivals; diverged_at[rank], `count` before the
#: call, is set to the first event after which the thread found a parameter that is not finite. `version` is the current
#: version of the layers above the first, 0 … versions − 1.
EVENTS = Fields(
    count=int, version=int, arriving=int64s, target=int64s, source=int64s, rows=int32s, coefficients=int,
    coefficients_stride=int, losses=floats, diverged_at=int64s,
)  # fmt: skip


@kernel(
    net=NETWORK, data=DATA, tables=TABLES, events=EVENTS, mu=int, rule=int, apply_zeros=int, capacity=int, versions=int,
    array_count=int, addresses=int64s, bounds=int64s, pending_rows=int32s, pending_losses=floats, pending_errors=floats,
    pending_activations=floats, factors=floats, active=uint8s, z=floats, transposed=floats, scratch=SCRATCH,
    steady=uint8s, may_skip=int, arrived=int, tickets=int64s, ticks=int64s,
)  # fmt: skip
def advance(rank, size, barrier, a):
    """Process all events, as long as all parameters stay finite; fredsim.kernels.mlp.hand_executor calls it.

    Gradients have the bits of fredsim.networks.graph.Graph.gradient, updates those of the rule's own function in NumPy.

    - `rule`: the address of the compiled rule (fredsim.kernels.arrays.update); `apply_zeros`: whether it is also
      applied to rows whose gradient is +0.
    - `capacity`: the most events of a window; `versions`: how many versions of the upper layers are kept.
    - `bounds` (size + 1,): thread `rank` has the first layer's columns from bounds[rank] to bounds[rank + 1], whole
      vectors; its strip of that layer's rows begins at (inputs + 1)·bounds[rank].
    - `addresses` (versions + 1, array_count): the rule's arrays (θ to read, θ to write, state), for each version of the
      upper layers and, last, for the first layer.
    - `pending_…`: the pending passes, one row per slot.
    - `steady` (size, inputs + 1): whether a row of a thread's columns is steady (fredsim.kernels.arrays.steady); it is
      used only if `may_skip`. `arrived`: how many events there were before this call.
    - `factors`, `active`, `z`, `transposed`, `scratch`: workspace; `tickets` (1,): how many groups of rows of the upper
      layers have been taken; `ticks` (size, 4): the time spent on each of ACTIVITIES.
    """
    local, n, version, s, e = thread_local(rank, a), a.events.count, a.events.version, ZERO, window_end(a, ZERO)
    clock = ticks()
    while s < n:
        lay_out_window(a, local, s, e)
        clock = count_ticks(local, INPUTS, clock)
        clock = sweep_first_layer(a, local, s, e, clock)
        sweep_upper_layers(a, local, s, e, version)
        clock = count_ticks(local, UPDATE, clock)
        barrier_wait(size, barrier)
        clock = count_ticks(local, WAITING, clock)
        if any_diverged(a, size):
            break
        version = run_passes(a, local, size, s, e, version)
        clock = count_ticks(local, PASSES, clock)
        s, e = e, window_end(a, e)
        barrier_wait(size, barrier)
        clock = count_ticks(local, WAITING, clock)


@inlined
def sweep_first_layer(a, local, s, e, clock):
    """Update this thread's columns of the first layer, and sum z of the events' next minibatches; return the clock."""
    inputs = item(a.net.sizes, 0)
    for c in range(a.data.chunks if local.width > 0 else 0):
        begin, end = c * a.data.chunk, min((c + 1) * a.data.chunk, inputs + 1)
        for i in range(s, e):
            if item(a.events.arriving, i) >= 0:
                if not update_columns(a, local, s, i, begin, end):
                    put(a.events.diverged_at, local.rank, min(item(a.events.diverged_at, local.rank), i))
                clock = count_ticks(local, UPDATE, clock)
            if item(a.events.target, i) >= 0:
                add_columns(a, local, s, i, c, end > inputs)
                clock = count_ticks(local, PASSES, clock)
    return clock


@inlined
def sweep_upper_layers(a, local, s, e, version):
    """Make a new version of the other layers at each event; a thread that is free takes the next ROWS_AT_ONCE rows."""
    if local.rank == 0:
        for i in range(s, e):
            if item(a.events.arriving, i) >= 0:
                for m in range(a.mu):
                    put(a.events.losses, i * a.mu + m, item(a.pending_losses, item(a.events.arriving, i) * a.mu + m))
    ticket, taken = fetch_add(a.tickets, 0, 1), ZERO
    for layer in range(1, a.net.layers):
        for k in range(0, item(a.net.sizes, layer) + 1, ROWS_AT_ONCE):
            if taken == ticket:
                update_rows(a, local, s, e, version, layer, k)
                ticket = fetch_add(a.tickets, 0, 1)
            taken += 1


@inlined
def version_after(a, version, event):
    """Return the version after an event, given the one before: it only changes if a gradient arrives."""
    return (version + 1) % a.versions if item(a.events.arriving, event) >= 0 else version


@inlined
def run_passes(a, local, size, s, e, version):
    """Do the passes of the events' next minibatches, divided by samples; return the version after the window."""
    if local.rank == 0:
        put(a.tickets, 0, ZERO)
    done, (blocks, _) = s, blocks_of(a.mu)
    tasks = (e - s) * blocks
    for task in range(tasks * local.rank // size, tasks * (local.rank + 1) // size):
        i = s + task // blocks
        while done <= i:
            version = version_after(a, version, done)
            done += 1
        if item(a.events.target, i) >= 0:
            run_block_passes(a, local, s, i, task % blocks, version)
    while done < e:
        version = version_after(a, version, done)
        done += 1
    return version


@inlined
def any_diverged(a, size):
    """Return whether any thread has found a parameter that is not finite."""
    found = False
    for rank in range(size):
        found |= item(a.events.diverged_at, rank) < a.events.count
    return found


@inlined
def count_ticks(local, what, since):
    """Add the ticks since `since` to those of ACTIVITIES[what]; return the present tick."""
    now = ticks()
    put(local.ticks, what, item(local.ticks, what) + now - since)
    return now


@inlined
def window_end(a, s):
    """Return the end of the longest window that begins at event s."""
    e = s
    while e < a.events.count and e - s < a.capacity and item(a.events.source, e) < s:
        e += 1
    return e
