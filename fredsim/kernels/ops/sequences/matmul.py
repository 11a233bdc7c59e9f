"""Kernels of products of two matrices that both depend on the sample: fredsim.numerics.ops.products.MatMul."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, shift
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sequences.attention import ALL, ONE, ZERO, combine
from fredsim.kernels.ops.sequences.products import PANEL, multiply, pack_columns
from fredsim.kernels.ops.values import Value

__all__ = ["MatMulKernels"]

BLOCK = 64  # rows of a product that are one task

#: So many pairs of matrices, and their products (rows, columns), sums of `depth` terms: term k of row r is
#: a[r·a_row + k·a_term]·b[k, column], or times b[column, k] where the columns of b are packed. `blocks` of BLOCK rows
#: are tasks. `nothing` is +0 for each column; `work` is each thread's workspace, of `work_stride` floats.
PAIRS = Fields(
    a=floats, a_row=int, a_term=int, b=floats, pairs=int, rows=int, depth=int, columns=int, blocks=int, out=floats,
    nothing=floats, work=floats, work_stride=int,
)  # fmt: skip


@kernel(PAIRS)
def multiply_pairs(rank, size, barrier, a):
    """Write a·b of this thread's blocks."""
    begin, end = part_of(rank, size, a.pairs * a.blocks)
    for task in range(begin, end):
        pair, first = task // a.blocks, task % a.blocks * BLOCK
        left = shift(a.a, pair * a.rows * a.depth + first * a.a_row)
        right, out = shift(a.b, pair * a.depth * a.columns), shift(a.out, (pair * a.rows + first) * a.columns)
        count = min(a.rows - first, ZERO + BLOCK)
        combine(ZERO + ALL, left, a.a_row, a.a_term, count, a.depth, right, a.columns, a.columns, out, a.columns)


@kernel(PAIRS)
def multiply_turned(rank, size, barrier, a):
    """Write a·bᵀ of this thread's blocks; b is (columns, depth)."""
    panels, packed = shift(a.work, rank * a.work_stride), -ONE
    begin, end = part_of(rank, size, a.pairs * a.blocks)
    for task in range(begin, end):
        pair, first = task // a.blocks, task % a.blocks * BLOCK
        if pair != packed:
            right = shift(a.b, pair * a.depth * a.columns)
            pack_columns(ZERO, ONE, right, a.depth, a.columns, a.depth, panels)
            packed = pair
        left, out = shift(a.a, (pair * a.rows + first) * a.depth), shift(a.out, (pair * a.rows + first) * a.columns)
        count = min(a.rows - first, ZERO + BLOCK)
        multiply(left, ZERO, a.depth, count, a.depth, panels, a.columns, a.nothing, ZERO, out, ZERO, a.columns)


class MatMulKernels(OperatorKernels):
    """MatMul of plain values."""

    image = False

    @staticmethod
    def _multiply(plan: Steps, a: Value, b: Value, out: Value, *, turned: str = "") -> Value:
        """Add the step that writes a·b; `turned`: aᵀ·b ("left") or a·bᵀ ("right")."""
        rows, columns = out.shape[-2:]
        depth = a.shape[-2] if turned == "left" else a.shape[-1]
        row, term = (1, rows) if turned == "left" else (depth, 1)
        work, stride = plan.each_thread(depth * -(-columns // PANEL) * PANEL if turned == "right" else 0)
        plan.step(
            multiply_turned if turned == "right" else multiply_pairs, a=a, a_row=row, a_term=term, b=b,
            pairs=plan.mu * math.prod(out.shape[:-2]), rows=rows, depth=depth, columns=columns,
            blocks=-(-rows // BLOCK), out=out, nothing=np.zeros(columns + PANEL, np.float32),
            work=work, work_stride=stride,
        )  # fmt: skip
        return out

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        a, b = inputs
        return self._multiply(plan, a, b, out)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        a, b = self.inputs
        left = self._multiply(plan, error, b, a.error(), turned="right") if wanted[0] else None
        right = self._multiply(plan, a, error, b.error(), turned="left") if wanted[1] else None
        return [left, right]
