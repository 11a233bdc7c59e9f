"""Kernels of dense layers at the positions of sequences: fredsim.numerics.ops.linear.Linear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.tiles import tile_add, tile_load, tile_store, tile_store_part, tile_zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.products import (
    PANEL,
    STACK,
    ZERO,
    multiply,
    pack_columns,
    pack_rows,
    panels_of,
    sum_positions,
    sum_samples,
)
from fredsim.kernels.ops.program import BATCH, GRADS, PARAMS, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.values import Tensor, Value

__all__ = ["PositionsKernels", "sum_products"]

ROWS = 8  # of a gradient that are summed together


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


@subroutine
def put_tile(out, at, stride, tile, left):
    """Write a tile of a panel of whose columns so many are left."""
    if left >= PANEL:
        tile_store(out, at, stride, tile)
    else:
        tile_store_part(out, at, stride, tile, left)


@kernel(batch=int64s, x=floats, rows=int, depth=int, panels=floats, width=int, bias=int, zeros=floats, out=floats)
def multiply_positions(rank, size, barrier, a):
    """Write x·w + b, (rows, width), for x (rows, depth) and w in panels; `bias` is where b begins, or −1: none.

    `zeros` are as many +0 as a row of the panels has.
    """
    bias = shift(floats(item(a.batch, PARAMS)), a.bias) if a.bias >= 0 else a.zeros
    begin, end = a.rows * rank // size, a.rows * (rank + 1) // size
    x, out = shift(a.x, begin * a.depth), shift(a.out, begin * a.width)
    multiply(x, ZERO, a.depth, end - begin, a.depth, a.panels, a.width, bias, ZERO, out, ZERO, a.width)


#: Factors (…, rows) and values (…, columns) at the positions of all samples, whose products a gradient is the sum of.
#: From one position to the next, factors are `step` floats apart: `rows`, or 0 for a factor of 1 in place of an input.
#: `stacks` has STACK floats for each thread. The gradient is that of the tensor that begins at parameter `begin`, or the
#: samples' own ones, (samples, rows, columns), are written to `own`, or added, if `add`, to what is there.
PRODUCTS = Fields(
    batch=int64s, factors=floats, step=int, rows=int, values=floats, columns=int, positions=int, samples=int,
    stacks=floats, begin=int, own=floats, add=int,
)  # fmt: skip


@kernel(PRODUCTS)
def form_gradient(rank, size, barrier, a):
    """Write the mean gradient (rows, columns)."""
    out, stack = shift(floats(item(a.batch, GRADS)), a.begin), shift(a.stacks, rank * STACK)
    begin, end = part_of(rank, size, tasks_of(a))
    for task in range(begin, end):
        row, end_row, column = place_of(a, task)
        while row + ROWS <= end_row:
            gradient_tile(tile_zeros(ROWS, 16), a, row, column, stack, out)
            row += ROWS
        while row < end_row:
            gradient_tile(tile_zeros(1, 16), a, row, column, stack, out)
            row += 1


@kernel(PRODUCTS)
def form_own(rank, size, barrier, a):
    """Write or add the samples' own gradients."""
    stack = shift(a.stacks, rank * STACK)
    begin, end = part_of(rank, size, tasks_of(a) * a.samples)
    for task in range(begin, end):
        m = task % a.samples
        row, end_row, column = place_of(a, task // a.samples)
        while row + ROWS <= end_row:
            own_tile(tile_zeros(ROWS, 16), a, m, row, column, stack)
            row += ROWS
        while row < end_row:
            own_tile(tile_zeros(1, 16), a, m, row, column, stack)
            row += 1


@subroutine
def tasks_of(a):
    """Return into how many blocks, of ROWS rows and PANEL columns at most, a gradient is divided."""
    return (a.rows + ROWS - 1) // ROWS * panels_of(a.columns)


@subroutine
def place_of(a, task):
    """Return a block's first row, the end of its rows, and its first column."""
    blocks = (a.rows + ROWS - 1) // ROWS
    row = task % blocks * ROWS
    return row, min(row + ROWS, a.rows), task // blocks * PANEL


@subroutine
def gradient_tile(like, a, row, column, stack, out):
    """Write as many rows of a panel of the mean gradient as the tile `like` has."""
    total = sum_samples(like, a.factors, row, a.step, a.values, column, a.columns, a.positions, a.samples, stack)
    put_tile(out, row * a.columns + column, a.columns, total, a.columns - column)


@subroutine
def own_tile(like, a, m, row, column, stack):
    """Write as many rows of a panel of sample m's own gradient as the tile `like` has, or add them."""
    factors, values = shift(a.factors, m * a.positions * a.step), shift(a.values, m * a.positions * a.columns)
    total = sum_positions(like, factors, row, a.step, values, column, a.columns, a.positions, stack)
    at = (m * a.rows + row) * a.columns + column
    if a.add:
        total = tile_add(tile_load(total, a.own, at, a.columns), total)
    put_tile(a.own, at, a.columns, total, a.columns - column)


def sum_products(plan: Steps, tensor: Tensor, factors: Value | None, values: Value) -> None:
    """Add the step for a tensor's gradient, Σ factors·values over positions; no factors: they are 1."""
    rows = 1 if factors is None else factors.shape[-1]
    columns = values.shape[-1]
    own, first = plan.own(tensor) if plan.shared(tensor.name) else (0, True)
    plan.step(
        form_gradient if own == 0 else form_own, batch=BATCH, factors=np.ones(1, np.float32) if factors is None
        else factors, step=0 if factors is None else rows, rows=rows, values=values, columns=columns,
        positions=values.size // columns, samples=values.samples, stacks=plan.buffer(STACK * plan.threads),
        begin=plan.gradient(tensor), own=own, add=not first,
    )  # fmt: skip


class PositionsKernels(OperatorKernels):
    """Linear over positions: at each, a product with the weight."""

    shares = True

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take and give plain values."""
        return [False], False

    @property
    def _inputs(self) -> int:
        return self.shapes[0][-1]

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
        """Multiply, and add the bias."""
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
