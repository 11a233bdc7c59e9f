"""Sums over positions and samples that kernels of several operators share."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

from fredsim.compute.buffers import Buffer, Tensor
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import broadcast, load, store, zeros
from fredsim.kernels.ops.program import BATCH, GRADS, Steps
from fredsim.kernels.ops.rows import part_of, put_lanes
from fredsim.kernels.ops.values import Value

__all__ = ["BAND", "gradient_of_channels", "gradient_of_samples", "mean_of_samples", "merging", "tree_of_vectors"]

PIECE = 2048  # elements of a sample's own gradient that are one task
BAND = 8  # rows of an image, or positions of a sequence

MERGE = """
height = 0
while (index >> height) & 1 or (last and index >> height):
    if (index >> height) & 1:
{add}
    height += 1
if not last:
{keep}
"""


def merging(places: Mapping[str, str], spaces: int) -> str:
    """Return lines of a generated kernel that merge the vectors of these names with those that wait on a stack.

    They are the `index`-th sums of a tree, and its result if it is the `last`. Each trailing 1 bit of the index is one
    merge; the last sums are merged with all that wait, and stay in their variables. Others are kept on the stack
    `waiting`, whose levels are `level` floats apart; `places` says for each name where in a level.
    """
    add = [f"{name} = load({name}, waiting, height * level + {at}) + {name}" for name, at in places.items()]
    keep = [f"store(waiting, height * level + {at}, {name})" for name, at in places.items()]
    lines = MERGE.format(add=indent("\n".join(add), " " * 8), keep=indent("\n".join(keep), " " * 4))
    return indent(lines, " " * spaces)


@subroutine
def tree_of_vectors(like, vectors, stride, count):
    """Return the tree sum of `count` vectors, `stride` floats apart, which are overwritten."""
    while count > 1:
        half = count // 2
        for i in range(half):
            store(vectors, i * stride, load(like, vectors, 2 * i * stride) + load(like, vectors, (2 * i + 1) * stride))
        if count % 2:
            store(vectors, half * stride, load(like, vectors, (count - 1) * stride))
        count = half + count % 2
    return load(like, vectors, 0) + 0.0


@kernel(x=floats, sample=int, row=int, samples=int, rows=int, columns=int, channels=int, lanes=int, stack=floats,
        stack_stride=int, out=floats)  # fmt: skip
def sum_channels(rank, size, barrier, a):
    """Write each sample's sums over positions to out[sample·lanes :], lane by lane; lanes are whole vectors."""
    like = zeros(16)
    stack = shift(a.stack, rank * a.stack_stride)
    vectors = a.lanes // 16
    bands = (a.rows + BAND - 1) // BAND
    begin, end = part_of(rank, size, a.samples * vectors)
    for t in range(begin, end):
        i, c0 = t // vectors, t % vectors * 16
        for band in range(bands):
            total = like
            for y in range(BAND * band, min(BAND * band + BAND, a.rows)):
                x = shift(a.x, i * a.sample + y * a.row + c0)
                for _ in range(a.columns):
                    total = total + load(like, x, 0)
                    x = shift(x, a.channels)
            store(stack, band * 16, total)
        store(a.out, i * a.lanes + c0, tree_of_vectors(like, stack, 16, bands))


@kernel(batch=int64s, x=floats, x_begin=int, samples=int, stride=int, count=int, scratch=floats, scratch_stride=int,
        begin=int)  # fmt: skip
def mean_samples(rank, size, barrier, a):
    """Write the tree over samples of `count` numbers of x, divided by the number of samples, to the gradient.

    A sample's numbers begin `stride` floats after those of the one before.
    """
    grads, x = floats(item(a.batch, GRADS)), shift(a.x, a.x_begin)
    like, scratch = zeros(16), shift(a.scratch, rank * a.scratch_stride)
    for c0 in range(16 * rank, a.count, 16 * size):
        for i in range(a.samples):
            store(scratch, 16 * i, load(like, x, i * a.stride + c0))
        mean = tree_of_vectors(like, scratch, 16, a.samples) / broadcast(16, a.samples)
        put_lanes(grads, a.begin + c0, mean, a.count - c0)


@kernel(x=floats, x_begin=int, stride=int, samples=int, count=int, add=int, own=floats)
def collect_samples(rank, size, barrier, a):
    """Write the samples' own gradients to `own`, (samples, count), or add them to what is there."""
    pieces = (a.count + PIECE - 1) // PIECE
    begin, end = part_of(rank, size, a.samples * pieces)
    for t in range(begin, end):
        i, first = t // pieces, t % pieces * PIECE
        x, own, last = shift(a.x, a.x_begin + i * a.stride), shift(a.own, i * a.count), min(first + PIECE, a.count)
        for c in range(first, last, 16):
            value = load(zeros(16), x, c)
            if a.add:
                value = load(zeros(16), own, c) + value
            put_lanes(own, c, value, last - c)


def mean_of_samples(plan: Steps, x: Buffer | Value, stride: int, tensor: Tensor, begin: int = 0) -> None:
    """Add the step that writes a tensor's gradient from the samples' own ones.

    Those of the first sample begin at x[begin], the next sample's `stride` floats later; whole vectors are read.
    """
    scratch, scratch_stride = plan.each_thread(16 * plan.mu)
    plan.step(
        mean_samples, batch=BATCH, x=x, x_begin=begin, samples=plan.mu, stride=stride, count=tensor.size,
        scratch=scratch, scratch_stride=scratch_stride, begin=plan.gradient(tensor),
    )  # fmt: skip


def gradient_of_samples(plan: Steps, x: Buffer | Value, stride: int, tensor: Tensor, begin: int = 0) -> None:
    """Add the step that writes a tensor's gradient, as mean_of_samples does.

    If several nodes have the tensor, the samples' own gradients are added to those of the other nodes instead.
    """
    if not plan.shared(tensor.name):
        mean_of_samples(plan, x, stride, tensor, begin)
        return
    plan.gradient(tensor)
    own, first = plan.own(tensor)
    plan.step(
        collect_samples, x=x, x_begin=begin, stride=stride, samples=plan.mu, count=tensor.size, add=not first, own=own,
    )  # fmt: skip


def gradient_of_channels(plan: Steps, error: Value, tensor: Tensor) -> None:
    """Add the steps that write the gradient of one number a channel, the error's sums over positions."""
    channels, rows, columns = error.shape
    lanes = -(-channels // 16) * 16
    sums, (stack, stride) = plan.buffer(error.samples * lanes), plan.each_thread(16 * -(-rows // BAND))
    plan.step(
        sum_channels, x=error, sample=error.sample, row=error.row, samples=error.samples, rows=rows, columns=columns,
        channels=channels, lanes=lanes, stack=stack, stack_stride=stride, out=sums,
    )  # fmt: skip
    gradient_of_samples(plan, sums, lanes, tensor)
