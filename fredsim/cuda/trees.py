"""Kernels of sums by the binary tree of docs/numerics.md: gradients over the minibatch, and means over a flat array.

The bits are those of fredsim.numerics.oracle: gradient, tree_sum and mean64. A missing leaf is +0: adding it leaves its
partner unchanged, as if it were left out. fredsim.cuda.engine and .operations launch these kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["BLOCK", "LEAVES", "sum_blocks", "sum_subtrees", "weight_gradient"]

#: The number of leaves that one program sums. In a larger minibatch, every LEAVES samples are a subtree; `sum_subtrees`
#: adds the sums of these.
LEAVES = 64
#: The number of elements of an array that one program sums.
BLOCK = 1024


@triton.jit(
    do_not_specialize=["mu"], do_not_specialize_on_alignment=["rows"]
)  # Triton would make an integer 1 a constant
def weight_gradient(
    x, rows, errors, out, stride, at, mu, inputs, width,
    FIRST: tl.constexpr, WHOLE: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write sums over COUNT samples of input × error, the bias's row last, for each minibatch and subtree.

    They are a layer's part, from element `at` on, of the results (B, subtrees), which are `stride` elements apart. `x`
    and `rows` are as in fredsim.cuda.dense.forward. If a minibatch is one subtree (WHOLE), its mean is written. Each
    program computes a tile of ROWS rows and COLUMNS columns.
    """
    b, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tiles = tl.cdiv(width, COLUMNS)
    k = tl.program_id(2) // tiles * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(2) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    if FIRST:
        rows += b * mu
    else:
        x += b * mu * inputs
    total = subtree(x, rows, errors + b * mu * width, s * COUNT, mu, inputs, width, k, j, FIRST, COUNT)
    if WHOLE:
        total = tl.div_rn(total + 0.0, mu.to(tl.float32))
    out += (b * tl.num_programs(1) + s) * stride + at
    tl.store(out + k[:, None] * width + j[None, :], total, mask=(k <= inputs)[:, None] & (j < width)[None, :])


@triton.jit
def subtree(x, rows, errors, m, mu, inputs, width, k, j, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """Return the sum of the leaves, input × error, of samples m … m + COUNT − 1."""
    if COUNT == 1:
        factor = tl.where(k == tl.where(m < mu, inputs, -1), 1.0, inputs_of(x, rows, m, mu, inputs, k, FIRST))
        error = tl.load(errors + m * width + j, mask=j < tl.where(m < mu, width, 0), other=0.0)
        return factor[:, None] * error[None, :]
    else:
        left = subtree(x, rows, errors, m, mu, inputs, width, k, j, FIRST, COUNT // 2)
        return left + subtree(x, rows, errors, m + COUNT // 2, mu, inputs, width, k, j, FIRST, COUNT // 2)


@triton.jit
def inputs_of(x, rows, m, mu, inputs, k, FIRST: tl.constexpr):
    """Return the inputs k of a layer from sample m; 0 beyond the minibatch and beyond the last input."""
    mask = k < tl.where(m < mu, inputs, 0)
    if FIRST:
        row = tl.load(rows + m, mask=m < mu, other=0).to(tl.int64)
        return tl.load(x + row * inputs + k, mask=mask, other=0.0)
    else:
        z = tl.load(x + m * inputs + k, mask=mask, other=0.0)
        return tl.where(z > 0.0, z, 0.0)


@triton.jit(do_not_specialize=["mu"])  # Triton would make an integer 1 a constant, which has no .to
def sum_subtrees(sums, out, count, size, mu, WHOLE: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Sum each COUNT rows of `sums` (B, count, size) to `out` (B, ⌈count/COUNT⌉, size); if WHOLE, write the mean.

    WHOLE says that one row is left, the sum over the whole minibatch of µ samples.
    """
    b, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    total = sum_rows(sums + b * count * size, s * COUNT, count, size, i, COUNT)
    if WHOLE:
        total = tl.div_rn(total + 0.0, mu.to(tl.float32))
    tl.store(out + (b * tl.num_programs(1) + s) * size + i, total, mask=i < size)


@triton.jit
def sum_rows(sums, s, count, size, i, COUNT: tl.constexpr):
    """Return the sum by the tree of the rows s … s + COUNT − 1."""
    if COUNT == 1:
        return tl.load(sums + s.to(tl.int64) * size + i, mask=i < tl.where(s < count, size, 0), other=0.0)
    else:
        left = sum_rows(sums, s, count, size, i, COUNT // 2)
        return left + sum_rows(sums, s + COUNT // 2, count, size, i, COUNT // 2)


@triton.jit
def sum_blocks(array, n, out, BLOCK: tl.constexpr):
    """Write the sum in float64 of each BLOCK elements of an array (n,), each a whole subtree."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(array + i, mask=i < n, other=0.0).to(tl.float64)
    tl.store(out + tl.program_id(0) + tl.arange(0, 1), tree_sum(values, BLOCK))


@triton.jit
def tree_sum(values, COUNT: tl.constexpr):
    """Return the sum (1,) of values (COUNT,) by the binary tree."""
    if COUNT == 1:
        return values
    else:
        even, odd = tl.split(tl.reshape(values, [COUNT // 2, 2]))
        return tree_sum(even + odd, COUNT // 2)
