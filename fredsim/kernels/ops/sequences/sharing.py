"""Tensors that several nodes have: the mean over samples of what the nodes' own gradients of each add up to."""

from __future__ import annotations

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.tiles import tile_add_number, tile_divide, tile_load, tile_store, tile_store_part, tile_zeros
from fredsim.kernels.ops.program import BATCH, GRADS, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sequences.products import PANEL, STACK, merge
from fredsim.kernels.ops.values import Buffer, Tensor

__all__ = ["add_mean", "mean_of_samples"]

MOST = 2**24  # the most numbers of samples' own gradients of a tensor that are in memory at once


@kernel(batch=int64s, own=floats, samples=int, count=int, stacks=floats, begin=int)
def mean_of_samples(rank, size, barrier, a):
    """Write the mean over samples, by the tree, of `own` (samples, count) to the gradient, from parameter `begin` on.

    `stacks` has STACK floats for each thread.
    """
    out, stack = shift(floats(item(a.batch, GRADS)), a.begin), shift(a.stacks, rank * STACK)
    begin, end = part_of(rank, size, (a.count + PANEL - 1) // PANEL)
    for at in range(begin * PANEL, end * PANEL, PANEL):
        total = tile_zeros(1, 16)
        for m in range(a.samples):
            total = merge(tile_load(total, a.own, m * a.count + at, PANEL), stack, m, a.samples)
        total = tile_divide(tile_add_number(total, 0.0), a.samples)
        if at + PANEL <= a.count:
            tile_store(out, at, PANEL, total)
        else:
            tile_store_part(out, at, PANEL, total, a.count - at)


def add_mean(plan: Steps, tensor: Tensor, own: Buffer) -> None:
    """Add the step that writes a tensor's gradient from its samples' own ones."""
    plan.step(
        mean_of_samples, batch=BATCH, own=own, samples=plan.mu, count=tensor.size,
        stacks=plan.buffer(STACK * plan.threads), begin=plan.gradient(tensor),
    )  # fmt: skip
