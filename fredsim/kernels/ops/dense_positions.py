"""Kernels of dense layers at the positions of sequences: fredsim.numerics.ops.linear.Linear."""

from __future__ import annotations

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.tiles import tile_store, tile_store_part, tile_zeros
from fredsim.kernels.ops.products import (
    PANEL,
    STACK,
    ZERO,
    multiply,
    pack_columns,
    pack_rows,
    panels_of,
    sum_samples,
)
from fredsim.kernels.ops.program import GRADS, PARAMS

__all__ = ["form_gradient", "multiply_positions", "pack_weight", "pack_weight_transposed"]


@kernel(batch=int64s, begin=int, rows=int, columns=int, out=floats)
def pack_weight(rank, size, barrier, a):
    """Write the tensor (rows, columns) that begins at parameter `begin` in panels."""
    weight = shift(floats(item(a.batch, PARAMS)), a.begin)
    pack_rows(rank, size, weight, a.rows, a.columns, a.columns, a.out)


@kernel(batch=int64s, begin=int, rows=int, columns=int, out=floats)
def pack_weight_transposed(rank, size, barrier, a):
    """Write the transpose (rows, columns) of the tensor (columns, rows) that begins at parameter `begin` in panels."""
    weight = shift(floats(item(a.batch, PARAMS)), a.begin)
    pack_columns(rank, size, weight, a.rows, a.columns, a.rows, a.out)


@kernel(batch=int64s, x=floats, rows=int, depth=int, panels=floats, width=int, bias=int, zeros=floats, out=floats)
def multiply_positions(rank, size, barrier, a):
    """Write x·w + b, (rows, width), for x (rows, depth) and w in panels; `bias` is where b begins, or −1: none.

    `zeros` are as many +0 as a row of the panels has.
    """
    bias = shift(floats(item(a.batch, PARAMS)), a.bias) if a.bias >= 0 else a.zeros
    begin, end = a.rows * rank // size, a.rows * (rank + 1) // size
    x, out = shift(a.x, begin * a.depth), shift(a.out, begin * a.width)
    multiply(x, ZERO, a.depth, end - begin, a.depth, a.panels, a.width, bias, ZERO, out, ZERO, a.width)


@kernel(
    batch=int64s, factors=floats, step=int, rows=int, values=floats, columns=int, positions=int, samples=int,
    stacks=floats, begin=int,
)  # fmt: skip
def form_gradient(rank, size, barrier, a):
    """Write the mean gradient (rows, columns) of the tensor that begins at parameter `begin`.

    A sample's own is Σ factors[r]·values[c] over positions, from one to the next of which the factors are `step` floats
    apart: `rows`, or 0 for a factor of 1 in place of an input. `stacks` has STACK floats for each thread.
    """
    out, stack = shift(floats(item(a.batch, GRADS)), a.begin), shift(a.stacks, rank * STACK)
    blocks, panels = (a.rows + ROWS - 1) // ROWS, panels_of(a.columns)
    tasks = blocks * panels
    for task in range(tasks * rank // size, tasks * (rank + 1) // size):
        column, row = task // blocks * PANEL, task % blocks * ROWS
        end = min(row + ROWS, a.rows)
        while row < end:
            if row + ROWS <= end:
                gradient_tile(tile_zeros(ROWS, 16), a, row, column, stack, out)
                row += ROWS
            elif row + 4 <= end:
                gradient_tile(tile_zeros(4, 16), a, row, column, stack, out)
                row += 4
            else:
                gradient_tile(tile_zeros(1, 16), a, row, column, stack, out)
                row += 1


ROWS = 8  # of a tile of a gradient


@subroutine
def gradient_tile(like, a, row, column, stack, out):
    """Write as many rows of 16 columns of the gradient as the tile `like` has."""
    total = sum_samples(
        like, a.factors, row, a.step, a.values, column, a.columns, a.positions, a.samples, stack
    )
    at, left = row * a.columns + column, a.columns - column
    if left >= PANEL:
        tile_store(out, at, a.columns, total)
    else:
        tile_store_part(out, at, a.columns, total, left)
