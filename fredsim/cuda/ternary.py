"""Kernels of ternary gradients: quantise and pack (two bits per value), unpack, and the variance's sums.

The bits are those of fredsim.numerics.ternary; fredsim.cuda.operations launches these kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fredsim.cuda.trees import tree_sum

__all__ = ["decode", "encode", "square_blocks"]


@triton.jit(do_not_specialize=["begin", "step", "client"])
def encode(g, n, s, key, begin, step, client, packed, BLOCK: tl.constexpr):
    """Pack sign(g[i])·b, i < n, at two bits each; b = 1 iff u·s < |g[i]| in float64, else 0.

    u is uniform in [0, 1), from the word of element begin + i of the stream; `s` points to the scaler. Codes: 00 is −1,
    01 is 0, 10 is +1; the unused slots of the last byte hold 01. `key` is that of Philox: the stream in its upper half,
    the seed in its lower half.
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
    """Write s times each of the n packed values to `out`, float32 (n,)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = (tl.load(packed + i // 4, mask=i < n, other=0).to(tl.int32) >> (2 * (i % 4))) & 3
    tl.store(out + i, tl.load(s) * (code - 1).to(tl.float32), mask=i < n)


@triton.jit
def square_blocks(array, n, centre, out, BLOCK: tl.constexpr):
    """Write the sum in float64 of (x − centre)² over each BLOCK elements of an array (n,), each a whole subtree."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    apart = tl.load(array + i, mask=i < n, other=0.0).to(tl.float64) - tl.load(centre)
    tl.store(out + tl.program_id(0) + tl.arange(0, 1), tree_sum(tl.where(i < n, apart * apart, 0.0), BLOCK))
