"""Sums over positions and samples that kernels of several operators share."""

from __future__ import annotations

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.ops.program import BATCH, GRADS, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Buffer, Tensor, Value

__all__ = ["channel_sums", "mean_of_samples"]

BAND = 8  # rows of an image, or positions of a sequence


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
        total = like
        for band in range(bands):
            total = like
            for y in range(BAND * band, min(BAND * band + BAND, a.rows)):
                x = shift(a.x, i * a.sample + y * a.row + c0)
                for _ in range(a.columns):
                    total = total + load(like, x, 0)
                    x = shift(x, a.channels)
            height = 0
            while (band >> height) & 1 or (band == bands - 1 and band >> height):
                if (band >> height) & 1:
                    total = load(like, stack, height * 16) + total
                height += 1
            if band < bands - 1:
                store(stack, height * 16, total)
        store(a.out, i * a.lanes + c0, total)


@kernel(batch=int64s, x=floats, samples=int, lanes=int, count=int, scratch=floats, begin=int)
def mean_samples(rank, size, barrier, a):
    """Write the tree over samples of x (samples, lanes), divided by their number, to the gradient: `count` numbers."""
    grads = floats(item(a.batch, GRADS))
    for c0 in range(16 * rank, a.count, 16 * size):
        left = a.samples
        source, stride = shift(a.x, c0), a.lanes
        while left > 1:
            half = left // 2
            for i in range(half):
                pair = load(zeros(16), source, 2 * i * stride) + load(zeros(16), source, (2 * i + 1) * stride)
                store(a.scratch, i * a.lanes + c0, pair)
            if left % 2:
                store(a.scratch, half * a.lanes + c0, load(zeros(16), source, (left - 1) * stride))
            source, left = shift(a.scratch, c0), half + left % 2
        mean = (load(zeros(16), source, 0) + 0.0) / float(a.samples)
        store(a.scratch, c0, mean)
        for c in range(c0, min(c0 + 16, a.count)):
            put(grads, a.begin + c, item(a.scratch, c))


def channel_sums(plan: Steps, value: Value, out: Buffer) -> None:
    """Add the step that sums each channel of an image over positions; out is (µ, padded channels)."""
    channels, rows, columns = value.shape
    stack, stride = plan.each_thread(16 * 16)
    plan.step(
        sum_channels, x=value, sample=value.sample, row=value.row, samples=value.samples, rows=rows, columns=columns,
        channels=channels, lanes=-(-channels // 16) * 16, stack=stack, stack_stride=stride, out=out,
    )  # fmt: skip


def mean_of_samples(plan: Steps, x: Buffer, lanes: int, tensor: Tensor) -> None:
    """Add the step that writes a tensor's gradient from the samples' own ones, (µ, lanes)."""
    scratch = plan.buffer((plan.mu + 1) // 2 * lanes + lanes)
    plan.step(
        mean_samples, batch=BATCH, x=x, samples=plan.mu, lanes=lanes, count=tensor.size, scratch=scratch,
        begin=plan.gradient(tensor),
    )  # fmt: skip
