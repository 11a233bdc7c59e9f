"""Kernels of least squares (the graph of fredsim.networks.linear) and of a quadratic (fredsim.numerics.squares).

fredsim.cuda.squares_engine launches them. `held` (B,) are the addresses of each minibatch's parameters, `rows` the
samples' indices, int32 (B, µ), as in fredsim.cuda.dense.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["quadratic_gradients", "squared_errors"]


@triton.jit(do_not_specialize_on_alignment=["held", "rows"])
def squared_errors(held, x, y, rows, losses, errors, mu, inputs, SAMPLES: tl.constexpr):
    """Write each sample's loss ½·e² and its error e = (Σ_k x_k w_k, k ascending from +0) − y, (B, µ) each."""
    b = tl.program_id(0)
    m = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
    in_m, sample = m < mu, b.to(tl.int64) * mu + m
    row = tl.load(rows + sample, mask=in_m, other=0).to(tl.int64)
    weights = tl.load(held + b).to(tl.pointer_type(tl.float32))
    x += row * inputs
    total = tl.zeros([SAMPLES], tl.float32)
    for k in range(inputs):
        total = total + tl.load(x + k, mask=in_m, other=0.0) * tl.load(weights + k)
    error = total - tl.load(y + row, mask=in_m, other=0.0)
    tl.store(losses + sample, error * error * 0.5, mask=in_m)
    tl.store(errors + sample, error, mask=in_m)


@triton.jit(do_not_specialize_on_alignment=["held"])
def quadratic_gradients(held, noise, out, size, NOISY: tl.constexpr, BLOCK: tl.constexpr):
    """Write gradients A·x − b of the quadratic, float32 (B, size); if NOISY, `noise` (B, size) is added."""
    b = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x, inside = tl.load(held + b).to(tl.pointer_type(tl.float32)), i < size
    total = 0.5 * tl.load(x + i, mask=inside, other=0.0)
    below = total - 0.25 * tl.load(x + i - 1, mask=inside & (i > 0), other=0.0)
    total = tl.where(i > 0, below, total)
    above = total - 0.25 * tl.load(x + i + 1, mask=i < size - 1, other=0.0)
    total = tl.where(i < size - 1, above, total)
    total = tl.where(i == 0, total + 0.25, total)
    place = b.to(tl.int64) * size + i
    if NOISY:
        total = total + tl.load(noise + place, mask=inside, other=0.0)
    tl.store(out + place, total, mask=inside)
