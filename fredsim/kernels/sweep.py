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

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, integers, item, octets, put, shorts
from fredsim.jit.team import cycles, fetch_add, meet
from fredsim.kernels.data import DATA
from fredsim.kernels.dense import ZERO
from fredsim.kernels.shape import NETWORK, TABLES
from fredsim.kernels.trees import blocks_of
from fredsim.kernels.window import (
    PIECE,
    SPENT,
    add_columns,
    lay_out_window,
    own_of,
    part,
    pass_block,
    update_columns,
    update_piece,
)

__all__ = ["EVENTS", "PIECE", "SPENT", "advance"]

UPDATE, PASSES, INPUTS, WAITING = range(4)  # places in SPENT

#: Event i is the arrival of the work in slot arriving[i], begun at event source[i] (negative: before these events),
#: which the rule applies with the coefficients of row i, rows so many bytes apart; after it the forward and error pass
#: of the samples rows[i] (µ,) is done and put in slot target[i]. Either slot may be −1: nothing arrives, or the client
#: is never seen again. The losses (count, µ) are of what arrives; bad[rank] becomes the first event after which a
#: parameter is not finite. `version` is the current one of the layers above the first.
EVENTS = Fields(
    count=int, version=int, arriving=integers, target=integers, source=integers, rows=shorts, coefficients=int,
    coefficients_apart=int, losses=floats, bad=integers,
)  # fmt: skip


@kernel(
    net=NETWORK, data=DATA, tables=TABLES, events=EVENTS, mu=int, rule=int, visit=int, room=int, versions=int,
    arrays=int, addresses=integers, bounds=integers, held_rows=shorts, held_losses=floats, held_errors=floats,
    held_activations=floats, factors=floats, active=octets, z=floats, turned=floats, scratch=floats, scratch_apart=int,
    tickets=integers, cycles=integers,
)  # fmt: skip
def advance(rank, size, barrier, a):
    """Process all events, as far as all parameters stay finite.

    `visit`: whether rows without any gradient are passed to the rule. A window has room for `room` events. `bounds`
    (size + 1,): the columns of the first layer that each thread has, in whole vectors; that thread's strip of the
    layer's rows stands at (inputs + 1)·bounds[rank]. `addresses` (versions + 1, arrays): those that the rule takes, for
    each version of the other layers and, last, for the first layer. `held_…` is the work in hand, slot by slot.
    """
    own, n, version, s, e = own_of(rank, a), a.events.count, a.events.version, ZERO, window_end(a, ZERO)
    clock = cycles()
    while s < n:
        lay_out_window(a, own, s, e)
        clock = charge(own, INPUTS, clock)
        clock = sweep_first_layer(a, own, s, e, clock)
        sweep_upper_layers(a, own, s, e, version)
        clock = charge(own, UPDATE, clock)
        meet(size, barrier)
        clock = charge(own, WAITING, clock)
        if any_bad(a, size):
            break
        version = pass_fetched(a, own, size, s, e, version)
        clock = charge(own, PASSES, clock)
        s, e = e, window_end(a, e)
        meet(size, barrier)
        clock = charge(own, WAITING, clock)


@part
def sweep_first_layer(a, own, s, e, clock):
    """Update this thread's columns of the first layer, and add them up for who fetches; return the clock."""
    inputs = item(a.net.sizes, 0)
    for c in range(a.data.chunks if own.width > 0 else 0):
        begin, end = c * a.data.chunk, min((c + 1) * a.data.chunk, inputs + 1)
        for i in range(s, e):
            if item(a.events.arriving, i) >= 0:
                if not update_columns(a, own, s, i, begin, end):
                    put(a.events.bad, own.rank, min(item(a.events.bad, own.rank), i))
                clock = charge(own, UPDATE, clock)
            if item(a.events.target, i) >= 0:
                add_columns(a, own, s, i, c, end > inputs)
                clock = charge(own, PASSES, clock)
    return clock


@part
def sweep_upper_layers(a, own, s, e, version):
    """Make a new version of the other layers each event. Whoever is free takes the next stretch of rows."""
    if own.rank == 0:
        for i in range(s, e):
            if item(a.events.arriving, i) >= 0:
                for m in range(a.mu):
                    put(a.events.losses, i * a.mu + m, item(a.held_losses, item(a.events.arriving, i) * a.mu + m))
    ticket, taken = fetch_add(a.tickets, 0, 1), ZERO
    for layer in range(1, a.net.layers):
        for k in range(0, item(a.net.sizes, layer) + 1, PIECE):
            if taken == ticket:
                update_piece(a, own, s, e, version, layer, k)
                ticket = fetch_add(a.tickets, 0, 1)
            taken += 1


@part
def pass_fetched(a, own, size, s, e, version):
    """Do the forward and error passes of those that have fetched, by samples; return the version after the window."""
    if own.rank == 0:
        put(a.tickets, 0, ZERO)
    done, (blocks, _) = s, blocks_of(a.mu)
    tasks = (e - s) * blocks
    for task in range(tasks * own.rank // size, tasks * (own.rank + 1) // size):
        i = s + task // blocks
        while done <= i:
            version = (version + 1) % a.versions if item(a.events.arriving, done) >= 0 else version
            done += 1
        if item(a.events.target, i) >= 0:
            pass_block(a, own, s, i, task % blocks, version)
    while done < e:
        version = (version + 1) % a.versions if item(a.events.arriving, done) >= 0 else version
        done += 1
    return version


@part
def any_bad(a, size):
    """Return whether any thread has found a parameter that is not finite."""
    found = False
    for rank in range(size):
        found |= item(a.events.bad, rank) < a.events.count
    return found


@part
def charge(own, what, since):
    """Count the cycles since `since` as spent on `what`; return the clock."""
    now = cycles()
    put(own.cycles, what, item(own.cycles, what) + now - since)
    return now


@part
def window_end(a, s):
    """Return the end of the window that begins at event s: every work that arrives in it was begun before it."""
    e = s
    while e < a.events.count and e - s < a.room and item(a.events.source, e) < s:
        e += 1
    return e
