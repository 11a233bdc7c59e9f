"""Products of matrices, and sums over positions, with their sums in registers; used by layers over positions.

The rows of a matrix begin `stride` floats apart. What a pointer's element is that is meant stands in the argument after
it: (factors, at). Access to a row's last vector may go beyond the row, but nothing is written there.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.pointers import item, put
from fredsim.jit.processor import WIDE
from fredsim.jit.shuffles import transpose16
from fredsim.jit.subroutine import subroutine
from fredsim.jit.tiles import (
    tile_add,
    tile_add_number,
    tile_add_products,
    tile_add_row,
    tile_divide,
    tile_load,
    tile_scale,
    tile_store,
    tile_store_part,
    tile_sum_products,
    tile_zeros,
)
from fredsim.jit.vector import load_part, store, zeros
from fredsim.numerics.ops.sums import BAND

__all__ = [
    "PANEL",
    "STACK",
    "TILE",
    "TILE_ROWS",
    "mean_of",
    "merge",
    "multiply",
    "pack_columns",
    "pack_rows",
    "panels_of",
    "sum_positions",
    "sum_rows",
]

PANEL = 16  # columns that are stored together
TILE_ROWS = 8 if WIDE else 4  # of a tile; so that its sums fit into registers
TILE = TILE_ROWS * PANEL  # the floats of the largest tile
STACK = 32 * TILE  # the floats of a stack of tiles for a tree of any height
TOGETHER = 2 if WIDE else 1  # bands that are summed before the next: as many as there are registers for
ROWS_TOGETHER = 64  # rows that are multiplied by all panels before the next: they should stay in the cache
ZERO, ONE = np.int64(0), np.int64(1)


@subroutine
def panels_of(columns):
    """Return how many panels so many columns fill."""
    return (columns + PANEL - 1) // PANEL


@subroutine
def pack_rows(rank, size, source, rows, columns, stride, out):
    """Write this thread's panels of a matrix (rows, columns), with +0 beyond: out[(panel·rows + r)·PANEL + c]."""
    panels = panels_of(columns)
    for panel in range(panels * rank // size, panels * (rank + 1) // size):
        begin = panel * PANEL
        for row in range(rows):
            values = load_part(zeros(16), source, row * stride + begin, columns - begin)
            store(out, (panel * rows + row) * PANEL, values)


@subroutine
def pack_columns(rank, size, source, rows, columns, stride, out):
    """Write this thread's panels of the transpose of a matrix (columns, rows), as pack_rows would."""
    panels = panels_of(columns)
    for panel in range(panels * rank // size, panels * (rank + 1) // size):
        begin, at = panel * PANEL, panel * rows * PANEL
        row = ZERO
        if begin + PANEL <= columns:
            while row + PANEL <= rows:
                transpose16(source, begin * stride + row, stride, out, at + row * PANEL, PANEL)
                row += PANEL
        while row < rows:
            for j in range(PANEL):
                inside = begin + j < columns
                value = item(source, (begin + j) * stride + row) if inside else np.float32(0.0)
                put(out, at + row * PANEL + j, value)
            row += 1


@subroutine(forceinline=True)
def put_tile(out, at, stride, tile, left, width):
    """Write a tile of `width` columns, of which so many are left."""
    if left >= width:
        tile_store(out, at, stride, tile)
    else:
        tile_store_part(out, at, stride, tile, left)


@subroutine(forceinline=True)
def multiply_tile(like, factors, at, stride, depth, panel, panel_at, bias, bias_at, out, out_at, out_stride, width):
    """Write as many rows of one panel's product as the tile `like`, of +0, has; see multiply."""
    total = like
    for k in range(depth):
        total = tile_add_products(total, factors, at + k, stride, panel, panel_at + k * PANEL)
    put_tile(out, out_at, out_stride, tile_add_row(total, bias, bias_at), width, PANEL)


@subroutine
def multiply(factors, at, stride, rows, depth, panels, width, bias, bias_at, out, out_at, out_stride):
    """Write out[i, j] = (Σ_k factors[i, k]·w[k, j], k ascending from +0) + bias[j] for so many rows i.

    `panels` are those of w (depth, width), as pack_rows writes them.
    """
    for first in range(0, rows, ROWS_TOGETHER):
        end = min(first + ROWS_TOGETHER, rows)
        for j in range(0, width, PANEL):
            w, b, to, left = j * depth, bias_at + j, out_at + j, width - j
            i = first
            while i + TILE_ROWS <= end:
                multiply_tile(
                    tile_zeros(TILE_ROWS, 16), factors, at + i * stride, stride, depth, panels, w, bias, b, out,
                    to + i * out_stride, out_stride, left,
                )  # fmt: skip
                i += TILE_ROWS
            while i < end:
                multiply_tile(
                    tile_zeros(1, 16), factors, at + i * stride, stride, depth, panels, w, bias, b, out,
                    to + i * out_stride, out_stride, left,
                )  # fmt: skip
                i += 1


@subroutine(forceinline=True)
def merge(total, stack, index, count):
    """Return the sum of the tiles that a tree of `count` leaves joins to leaf `index`, and keep it on the stack.

    Leaves come in ascending order. The stack has one tile for each level of the tree; the last leaf's sum is the
    tree's.
    """
    last, rest, level = index == count - 1, index, ZERO
    while rest > 0 and (last or rest & 1):
        if rest & 1:
            total = tile_add(tile_load(total, stack, level * TILE, PANEL), total)
        rest >>= 1
        level += 1
    if not last:
        tile_store(stack, level * TILE, PANEL, total)
    return total


@subroutine(forceinline=True)
def sum_positions(like, factors, at, step, values, values_at, values_step, positions, stack):
    """Return tile[p, j] = Σ factors[at + p]·values[values_at + j] over positions, in bands, the bands by the tree.

    From one position to the next, `at` grows by `step`, `values_at` by `values_step`. The stack has a tile for each
    level. `like` is a tile of +0.
    """
    size = TOGETHER * BAND
    parts = (positions + size - 1) // size
    total = like
    for part in range(parts):
        f, v = at + part * size * step, values_at + part * size * values_step
        left = positions - part * size
        if left >= size:
            total = tile_sum_products(like, 8, factors, f, step, values, v, values_step)
            if TOGETHER == 2:
                f, v = f + BAND * step, v + BAND * values_step
                total = tile_add(total, tile_sum_products(like, 8, factors, f, step, values, v, values_step))
        else:
            total = sum_some(like, factors, f, step, values, v, values_step, min(left, BAND))
            if left > BAND:
                f, v = f + BAND * step, v + BAND * values_step
                total = tile_add(total, sum_some(like, factors, f, step, values, v, values_step, left - BAND))
        total = merge(total, stack, part, parts)
    return total


@subroutine(forceinline=True)
def sum_some(like, factors, at, step, values, values_at, values_step, positions):
    """Return the sum of sum_positions over the positions of one band, which may not be whole."""
    total = like
    for p in range(positions):
        total = tile_add_products(total, factors, at + p * step, ONE, values, values_at + p * values_step)
    return total


@subroutine(forceinline=True)
def sum_rows(like, values, at, stride, positions, stack):
    """Return Σ values[at + position·stride + j] over positions, in bands, the bands by the tree; see sum_positions."""
    bands = (positions + BAND - 1) // BAND
    total = like
    for band in range(bands):
        total = like
        for p in range(band * BAND, min(band * BAND + BAND, positions)):
            total = tile_add_row(total, values, at + p * stride)
        total = merge(total, stack, band, bands)
    return total


@subroutine(forceinline=True)
def mean_of(total, samples):
    """Return the mean that a tree's sum over samples makes; +0 is added first, so that none is −0."""
    total = tile_add_number(total, np.float32(0.0))
    if samples & (samples - 1):
        return tile_divide(total, np.float32(samples))
    return tile_scale(total, np.float32(1.0) / np.float32(samples))  # exact
