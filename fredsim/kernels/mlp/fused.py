"""Kernel of the path `fused`: applies a rule to a gradient row by row while it is formed; then a fetch gate decides.

fredsim.kernels.mlp.fused_executor calls it. Gradients have the bits of fredsim.networks.graph.Graph.gradient, updates
those of the rule's own function on NumPy arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import address_of, call, doubles, floats, int64s, item, put, shift, uint8s
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import barrier_wait
from fredsim.jit.vector import store, zeros
from fredsim.kernels.arrays.reductions import copy
from fredsim.kernels.arrays.steady import CHECK_EVERY, unsteady_end
from fredsim.kernels.arrays.update import FINITE, UNCHANGED
from fredsim.kernels.mlp.dense import ZERO
from fredsim.kernels.mlp.gradient import PASSES, form_layer_rows, lay_out_pending, next_run
from fredsim.kernels.mlp.trees import thread_space
from fredsim.numerics.verdicts import ALLOWED, DIVERGED, REFUSED, UNDECIDED

__all__ = ["DRAIN_EVERY", "apply"]

DRAIN_EVERY = 256  # after this many vectors, a sum in float32 is added to one in float64 and set to 0


class Step(NamedTuple):
    """What applying the rule to one minibatch's gradient needs: the fields are explained in `apply`.

    `table` and `coefficients` are addresses; `checking` says whether to look for rows that have become steady.
    """

    rule: int
    table: int
    coefficients: int
    apply_zeros: int
    sums: int
    totals: Any
    steady: Any
    steady_sums: Any
    checking: bool


@kernel(
    passes=PASSES, begin=int, end=int, rule=int, table=int64s, coefficients=int, coefficients_stride=int,
    apply_zeros=int, sums=int, partials=doubles, rounding=doubles, bounds=doubles, copies=int64s, verdicts=int64s,
    parameters=int, steady=uint8s, steady_sums=doubles, may_skip=int, applied=int,
)  # fmt: skip
def apply(rank, size, barrier, a):
    """Apply a rule, in place, row by row, to the mean gradients of minibatches begin … end − 1 whose passes are done.

    After minibatch b, the fetch gate decides by v̄, the mean of the state's watched array v. The fetch is refused if v̄
    is below bounds[b, 0]. It passes if v̄ is above bounds[b, 1]; then θ is copied to the address copies[b]. It always
    passes if bounds[b, 1] is −∞; else it is always refused if bounds[b, 0] is ∞, and it never passes if bounds[b, 1] is
    ∞. verdicts[b] is set to the decision (fredsim.numerics.verdicts); UNDECIDED and DIVERGED end the call.

    - `rule`, `table`, `coefficients`: addresses of the compiled rule and its arguments (fredsim.kernels.arrays.update);
      there is one row of coefficients per minibatch, `coefficients_stride` bytes apart.
    - `apply_zeros`: whether the rule is also applied to rows whose gradient is +0.
    - `rounding` (1,): a bound on the relative error of a sum in float32; `parameters`: their number P.
    - `steady` (inputs + 1,): whether a row of the first layer is steady (fredsim.kernels.arrays.steady); it is used
      only if `may_skip`. `steady_sums` (inputs + 1, 2): a steady row's sums of v and |v|.
    - `applied`: how many minibatches were applied before this call.

    Workspace: `sums`, the address of 32 floats per thread, or 0 if no array is watched; `partials` (end, size, 3), for
    each minibatch and thread whether its part of θ is finite, and its sums of v and |v|.
    """
    if a.begin == 0:
        lay_out_pending(rank, size, a.passes)
        barrier_wait(size, barrier)
    b, rounding, theta = a.begin, item(a.rounding, 0), floats(item(a.table, 0))
    sums = a.sums + 128 * rank if a.sums != 0 else a.sums
    while b < a.end:
        partial = shift(a.partials, (b * size + rank) * 3)
        totals = shift(partial, 1)
        clear_pair(totals)
        step = Step(
            a.rule, address_of(a.table, ZERO), a.coefficients + b * a.coefficients_stride, a.apply_zeros, sums, totals,
            a.steady, a.steady_sums, a.may_skip != 0 and (a.applied + b) % CHECK_EVERY == 0,
        )  # fmt: skip
        finite = update_rows(rank, size, a.passes, b, step)
        put(partial, 0, 1.0 if finite else 0.0)
        barrier_wait(size, barrier)  # one per minibatch is enough: a thread copies only rows that it alone changes
        verdict = decide_fetch(size, shift(a.partials, b * size * 3), shift(a.bounds, 2 * b), rounding, a.parameters)
        if rank == 0:
            put(a.verdicts, b, verdict)
        if verdict == ALLOWED:
            copy_rows(rank, size, a.passes.net, theta, floats(item(a.copies, b)))
        b = b + 1 if verdict in (REFUSED, ALLOWED) else a.end


@subroutine
def decide_fetch(size, partials, bounds, rounding, count):
    """Return the verdict on a fetch from all threads' `partials`; `count` is the number of parameters (see `apply`)."""
    total, magnitude = 0.0, 0.0
    for thread in range(size):
        if item(partials, 3 * thread) == 0.0:
            return DIVERGED
        total += item(partials, 3 * thread + 1)
        magnitude += item(partials, 3 * thread + 2)
    low, high = item(bounds, 0), item(bounds, 1)
    if high == -np.inf:
        return ALLOWED
    if low == np.inf:
        return REFUSED
    low_mean, high_mean = (total - rounding * magnitude) / count, (total + rounding * magnitude) / count
    if low_mean > 0.0 and low_mean > high:
        return ALLOWED
    if low_mean > 0.0 and high_mean < low:
        return REFUSED
    return UNDECIDED


@subroutine
def copy_rows(rank, size, net, theta, out):
    """Copy this thread's rows of every layer from `theta` to `out`."""
    for layer in range(net.layers):
        rows, width = item(net.sizes, layer) + 1, item(net.sizes, layer + 1)
        begin, end = rows * rank // size, rows * (rank + 1) // size
        at = item(net.offsets, layer) + begin * width
        copy(shift(theta, at), (end - begin) * width, shift(out, at))


@subroutine(forceinline=True)
def update_rows(rank, size, a, b, step):
    """Form this thread's rows, in every layer, of minibatch b's gradient, and apply the rule to them.

    `a` is PASSES (fredsim.kernels.mlp.gradient). Returns whether this thread's part of θ is finite.
    """
    net, (tree, _, buffer) = a.net, thread_space(rank, a)
    finite, added = True, ZERO
    for layer in range(net.layers):
        rows, width = item(net.sizes, layer) + 1, item(net.sizes, layer + 1)
        k, end = rows * rank // size, rows * (rank + 1) // size
        while k < end:
            start = k
            k, inactive = next_run(a, b, layer, start, end)
            if not inactive:
                at, count = item(net.offsets, layer) + start * width, (k - start) * width
                form_layer_rows(a, tree, b, layer, start, k, buffer)
                given = (step.table, at, address_of(buffer, ZERO), count, step.coefficients, step.sums)
                finite &= call(step.rule, given) & FINITE != 0
                for row in range(start, k if layer == 0 else start):
                    put(step.steady, row, np.uint8(0))
            elif step.apply_zeros:
                finite &= apply_zeros(width, start, k, step)
            added += ((k - start) * width + 15) // 16
            if added >= DRAIN_EVERY and step.sums != 0:
                drain(floats(step.sums), step.totals)
                added = ZERO
    if step.sums != 0:
        drain(floats(step.sums), step.totals)
    return finite


@subroutine
def apply_zeros(width, k, end, step):
    """Apply the rule with a gradient of +0 to rows k … end − 1 that are not steady; return whether θ stays finite.

    As fredsim.kernels.mlp.window.apply_zeros, but the known sums of v and |v| of a steady row are added to the totals.
    """
    finite = True
    while k < end:
        start = k
        k = unsteady_end(step.steady, start, end, step.checking)
        if k > start:
            if step.checking and step.sums != 0:
                drain(floats(step.sums), step.totals)  # so that the next sums are of this row alone
            given = (step.table, start * width, ZERO, (k - start) * width, step.coefficients, step.sums)
            outcome = call(step.rule, given)
            finite &= outcome & FINITE != 0
            if step.checking and outcome & UNCHANGED != 0:
                put(step.steady, start, np.uint8(1))
                if step.sums != 0:
                    clear_pair(shift(step.steady_sums, 2 * start))
                    drain(floats(step.sums), shift(step.steady_sums, 2 * start))
                k = start  # the loop below adds its sums, as for any steady row
        while k < end and item(step.steady, k) != 0:
            add_pair(step.totals, item(step.steady_sums, 2 * k), item(step.steady_sums, 2 * k + 1))
            k += 1
    return finite


@subroutine
def drain(sums, totals):
    """Add a rule's 16 sums, and its 16 sums of absolute values, to float64 totals (2,), and set them to 0."""
    for lane in range(16):
        add_pair(totals, np.float64(item(sums, lane)), np.float64(item(sums, 16 + lane)))
    store(sums, 0, zeros(16))
    store(sums, 16, zeros(16))


@subroutine
def add_pair(totals, one, other):
    """Add two numbers to totals (2,)."""
    put(totals, 0, item(totals, 0) + one)
    put(totals, 1, item(totals, 1) + other)


@subroutine
def clear_pair(totals):
    """Set totals (2,) to 0."""
    put(totals, 0, 0.0)
    put(totals, 1, 0.0)
