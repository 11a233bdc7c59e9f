"""Kernels of dense layers at the positions of sequences: fredsim.numerics.ops.linear.Linear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fredsim.compute.buffers import Tensor
from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.tiles import tile_add, tile_load, tile_zeros
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, GRADS, PARAMS, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sequences.products import (
    PANEL,
    STACK,
    TILE,
    TILE_ROWS,
    ZERO,
    mean_of,
    merge,
    multiply,
    pack_columns,
    pack_rows,
    panels_of,
    put_tile,
    sum_positions,
    sum_rows,
)
from fredsim.kernels.ops.values import Value

__all__ = ["PositionsKernels", "sum_products"]


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


#: Factors (…, rows) and values (…, columns) at the positions of all samples; a gradient (rows, columns) is the sum of
#: their products. In `form_sums` there are no factors, and one row. The gradient is that of the tensor that begins at
#: parameter `begin`; or, if `apart`, the samples' own ones, (samples, rows, columns), are written to `own`, or added,
#: if `add`, to what is there. It is divided into blocks of TILE_ROWS rows of a panel; `blocks` times `panels` of them
#: are summed over one sample before the next. For these, `work` has for each thread, `work_stride` floats apart, a
#: stack for bands, stacks of `levels` tiles for samples, and copies of a sample's factors and values.
PRODUCTS = Fields(
    batch=int64s, factors=floats, rows=int, values=floats, columns=int, positions=int, samples=int, blocks=int,
    panels=int, levels=int, work=floats, work_stride=int, begin=int, apart=int, own=floats, add=int,
)  # fmt: skip


@kernel(PRODUCTS)
def form_gradient(rank, size, barrier, a):
    """Write the gradient. A sample's factors and values, and sums that wait for others, stay in the cache."""
    down, across = (a.rows + TILE_ROWS - 1) // TILE_ROWS, panels_of(a.columns)
    stack = shift(a.work, rank * a.work_stride)
    waiting = shift(stack, STACK)
    factors = shift(waiting, a.levels * TILE * a.blocks * a.panels)
    values = shift(factors, a.blocks * block_floats(a))
    strips = (down + a.blocks - 1) // a.blocks
    begin, end = part_of(rank, size, strips * ((across + a.panels - 1) // a.panels))
    for task in range(begin, end):
        block, panel = task % strips * a.blocks, task // strips * a.panels
        end_block, end_panel = min(block + a.blocks, down), min(panel + a.panels, across)
        for m in range(a.samples):
            pack_factors(a, m, block, end_block, factors)
            pack_values(a, m, panel, end_panel, values)
            for p in range(panel, end_panel):
                for b in range(block, end_block):
                    place = shift(waiting, ((p - panel) * a.blocks + b - block) * a.levels * TILE)
                    f = shift(factors, (b - block) * block_floats(a))
                    v = shift(values, (p - panel) * a.positions * PANEL)
                    if (b + 1) * TILE_ROWS <= a.rows:
                        gradient_tile(tile_zeros(TILE_ROWS, 16), a, m, f, 0, v, b * TILE_ROWS, p, stack, place)
                    else:
                        for row in range(a.rows - b * TILE_ROWS):
                            at = shift(place, row * PANEL)
                            gradient_tile(tile_zeros(1, 16), a, m, f, row, v, b * TILE_ROWS + row, p, stack, at)


@subroutine
def block_floats(a):
    """Return how many floats a block of a sample's factors takes: behind the last position, a vector's rest."""
    return a.positions * TILE_ROWS + PANEL - TILE_ROWS


@subroutine
def pack_factors(a, m, block, end, out):
    """Write a sample's factors of some blocks: out[block·block_floats + position·TILE_ROWS + row].

    Whole vectors are copied: what they have beyond a position's rows, the next positions' overwrite.
    """
    for position in range(a.positions):
        at, to = (m * a.positions + position) * a.rows, position * TILE_ROWS
        for b in range(block, end):
            store(out, to, load(zeros(16), a.factors, at + b * TILE_ROWS))
            to += block_floats(a)


@subroutine
def pack_values(a, m, panel, end, out):
    """Write a sample's values of some panels: out[(panel·positions + position)·PANEL + column].

    Whole vectors are copied: behind the last column they have what is not used.
    """
    for position in range(a.positions):
        at = (m * a.positions + position) * a.columns
        for p in range(panel, end):
            store(out, ((p - panel) * a.positions + position) * PANEL, load(zeros(16), a.values, at + p * PANEL))


@subroutine(forceinline=True)
def gradient_tile(like, a, m, factors, at, values, row, panel, stack, waiting):
    """Sum sample m's part of as many rows of a panel as the tile `like` has, from `row` on, and write what is done."""
    total = sum_positions(like, factors, at, TILE_ROWS, values, 0, PANEL, a.positions, stack)
    write_tile(a, m, total, row, panel * PANEL, PANEL, waiting)


@subroutine(forceinline=True)
def write_tile(a, m, total, row, column, width, waiting):
    """Write a tile of sample m's own gradient; or add it to those of other samples, and write the mean at the end."""
    place, left = row * a.columns + column, a.columns - column
    if a.apart:
        place += m * a.rows * a.columns
        if a.add:
            total = tile_add(tile_load(total, a.own, place, a.columns), total)
        put_tile(a.own, place, a.columns, total, left, width)
    else:
        total = merge(total, waiting, m, a.samples)
        if m == a.samples - 1:
            out = shift(floats(item(a.batch, GRADS)), a.begin)
            put_tile(out, place, a.columns, mean_of(total, a.samples), left, width)


@kernel(PRODUCTS)
def form_sums(rank, size, barrier, a):
    """Write the gradient that is the sum of the values alone."""
    stack = shift(a.work, rank * a.work_stride)
    waiting = shift(stack, STACK)
    begin, end = part_of(rank, size, (a.columns + 63) // 64)
    for column in range(begin * 64, end * 64, 64):
        for m in range(a.samples):
            at = m * a.positions * a.columns + column
            total = sum_rows(tile_zeros(1, 64), a.values, at, a.columns, a.positions, stack)
            write_tile(a, m, total, 0, column, 64, waiting)


def sum_products(plan: Steps, tensor: Tensor, factors: Value | None, values: Value) -> None:
    """Add the step for a tensor's gradient, Σ factors·values over positions; no factors: they are 1."""
    rows, columns = 1 if factors is None else factors.shape[-1], values.shape[-1]
    positions, levels = values.size // columns, (values.samples - 1).bit_length()
    down, across = -(-rows // TILE_ROWS), -(-columns // PANEL)
    blocks = min(down, max(8, 1024 * TILE_ROWS // positions))
    panels = min(max(1, 256 // blocks), max(1, 4096 // positions), -(-across // plan.threads))
    if across < plan.threads:
        blocks = min(blocks, -(-down * across // plan.threads))
    copies = (blocks * TILE_ROWS + panels * PANEL) * positions + (blocks + 1) * PANEL
    work, work_stride = plan.each_thread(STACK + levels * TILE * blocks * panels + copies)
    plan.step(
        form_sums if factors is None else form_gradient, batch=BATCH, factors=0 if factors is None else factors,
        rows=rows, values=values, columns=columns, positions=positions, samples=values.samples, blocks=blocks,
        panels=panels, levels=levels, work=work, work_stride=work_stride,
        **plan.gradient_fields(tensor),
    )  # fmt: skip


class PositionsKernels(OperatorKernels):
    """Linear over positions: at each, a product with the weight."""

    image = False

    shares = True

    def _multiply(self, plan: Steps, x: Value, out: Value, *, turned: bool, bias: int) -> Value:
        """Add the steps that multiply by the weight (depth, width), the transpose of the tensor's axes if `turned`."""
        depth, width = x.shape[-1], out.shape[-1]
        panels = plan.buffer(depth * -(-width // PANEL) * PANEL)
        pack = pack_weight_transposed if turned else pack_weight
        plan.step(pack, batch=BATCH, begin=self.tensors["weight"].begin, rows=depth, columns=width, out=panels)
        plan.step(
            multiply_positions, batch=BATCH, x=x, rows=x.samples * x.size // depth, depth=depth, panels=panels,
            width=width, bias=bias, zeros=np.zeros(width + PANEL, np.float32), out=out,
        )  # fmt: skip
        return out

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        bias = self.tensors["bias"].begin if "bias" in self.tensors else -1
        return self._multiply(plan, inputs[0], out, turned=self.operator.layout == "out_in", bias=bias)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Multiply the error by the transpose; sum products over positions."""
        turned = self.operator.layout == "in_out"
        (x,) = self.inputs
        sent = self._multiply(plan, error, x.error(), turned=turned, bias=-1) if wanted[0] else None
        sum_products(plan, self.tensors["weight"], x if turned else error, error if turned else x)
        if "bias" in self.tensors:
            sum_products(plan, self.tensors["bias"], None, error)
        return [sent]
