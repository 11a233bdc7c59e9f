"""Kernel of a quadratic's gradients, with their noise; it has the same bits as fredsim.numerics.squares."""

from __future__ import annotations

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.kernels.reductions import fold
from fredsim.kernels.streams import normal_quantile, philox
from fredsim.numerics.streams import Stream

__all__ = ["CHUNK", "gradients"]

CHUNK = 256  # the number of elements that a thread takes at once
HALF, QUARTER = np.float32(0.5), np.float32(0.25)
NOISE = np.uint64(Stream.NOISE)


@kernel(
    works=int64s, held=int64s, batches=int, size=int, seed=int, noise=doubles, losses=floats, out=floats,
    out_stride=int, scratch=doubles, scratch_stride=int,
)  # fmt: skip
def gradients(rank, size, barrier, a):
    """Write the gradients of `works` with parameters at the addresses `held`, and the quadratic's values as losses.

    A work is a client and its number, as one integer. `noise` (1,) is the standard deviation. Work space of each
    thread: `scratch`, somewhat more than 2·(size + 1) numbers.
    """
    chunks = (a.size + CHUNK - 1) // CHUNK
    for task in range(a.batches * chunks * rank // size, a.batches * chunks * (rank + 1) // size):
        b, begin = task // chunks, task % chunks * CHUNK
        end, out = min(begin + CHUNK, a.size), shift(a.out, b * a.out_stride)
        slopes(floats(item(a.held, b)), begin, end, a.size, out)
        if item(a.noise, 0) != 0.0:
            add_noise(item(a.works, b), np.uint64(a.seed), item(a.noise, 0), begin, end, out)
    for b in range(a.batches * rank // size, a.batches * (rank + 1) // size):
        value = value_of(floats(item(a.held, b)), a.size, shift(a.scratch, rank * a.scratch_stride))
        put(a.losses, b, np.float32(value))


@subroutine
def slopes(x, begin, end, size, out):
    """Write elements begin … end − 1 of A·x − b."""
    for i in range(begin, end):
        total = HALF * item(x, i)
        if i > 0:
            total = total - QUARTER * item(x, i - 1)
        if i < size - 1:
            total = total - QUARTER * item(x, i + 1)
        put(out, i, total + QUARTER if i == 0 else total)


@subroutine
def add_noise(work, seed, sd, begin, end, out):
    """Add the noise of a work's gradient to elements begin … end − 1; `begin` is a multiple of 4."""
    client, number = work >> 32, work & 0xFFFF_FFFF
    for i in range(begin, end, 4):
        for lane, word in enumerate(philox(i // 4, number, client, 0, seed, NOISE)):
            if i + lane < end:
                put(out, i + lane, item(out, i + lane) + np.float32(normal_quantile(word) * sd))


@subroutine
def value_of(x, size, scratch):
    """Return the value: the tree sum in float64 of the squared differences of (0, x, 0), divided by 8, plus ¼·x[0]."""
    before = 0.0
    for i in range(size):
        here = np.float64(item(x, i))
        put(scratch, i, (here - before) * (here - before))
        before = here
    put(scratch, size, before * before)
    return fold(scratch, shift(scratch, size + 1), size + 1) / 8.0 + 0.25 * np.float64(item(x, 0))
