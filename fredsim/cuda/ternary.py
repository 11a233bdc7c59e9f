"""Kernels of ternary gradients: the draws, two bits a value, and back; as fredsim.numerics.ternary."""

from __future__ import annotations

import triton
import triton.language as tl

from fredsim.cuda.trees import pairs

__all__ = ["decode", "encode", "square_blocks"]


@triton.jit(do_not_specialize=["begin", "step", "client"])
def encode(g, n, s, key, begin, step, client, packed, BLOCK: tl.constexpr):
    """Pack sign(g)·b, b = 1 iff u·s < |g| in float64, u from the word of element begin + i; padding holds 01.

    `key` is Philox's: the stream in its upper half, the seed in its lower. `s` points to the scaler.
    """
    byte = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scaler = tl.load(s).to(tl.float64)
    total = tl.zeros([BLOCK], tl.int32)
    for slot in tl.static_range(4):
        i = 4 * byte + slot
        element = begin + i
        block = element >> 2
        w0, w1, w2, w3 = tl.philox(key, block, tl.zeros_like(block) + step, tl.zeros_like(block) + client, block * 0)
        lane = element & 3
        word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
        u = (word >> 8).to(tl.float64) * (1.0 / 16777216.0)
        x = tl.load(g + i, mask=i < n, other=0.0)
        taken = u * scaler < tl.abs(x).to(tl.float64)
        total |= tl.where(taken & (x > 0.0), 2, tl.where(taken & (x < 0.0), 0, 1)) << (2 * slot)
    tl.store(packed + byte, total.to(tl.uint8), mask=4 * byte < n)


@triton.jit
def decode(packed, n, s, out, BLOCK: tl.constexpr):
    """Write s times each value."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = (tl.load(packed + i // 4, mask=i < n, other=0).to(tl.int32) >> (2 * (i % 4))) & 3
    tl.store(out + i, tl.load(s) * (code - 1).to(tl.float32), mask=i < n)


@triton.jit
def square_blocks(array, n, centre, out, BLOCK: tl.constexpr):
    """Write the sum in float64 of (x − centre)² over each BLOCK elements, a whole subtree each."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    apart = tl.load(array + i, mask=i < n, other=0.0).to(tl.float64) - tl.load(centre)
    tl.store(out + tl.program_id(0) + tl.arange(0, 1), pairs(tl.where(i < n, apart * apart, 0.0), BLOCK))
