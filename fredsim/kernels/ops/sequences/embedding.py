"""Kernels of embeddings, of whatever integers: rows of tables, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fredsim.errors import SimulationError
from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import floats, int32s, int64s, item, put, shift, uint8s
from fredsim.jit.subroutine import subroutine
from fredsim.jit.tiles import (
    tile_add,
    tile_add_number,
    tile_add_row,
    tile_divide,
    tile_load,
    tile_store,
    tile_zeros,
)
from fredsim.kernels.arrays.reductions import copy
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, GRADS, PARAMS, Batch, Steps
from fredsim.kernels.ops.rows import clear, part_of
from fredsim.kernels.ops.sequences.products import PANEL, ZERO, put_tile
from fredsim.kernels.ops.values import Value

__all__ = ["INTEGERS", "EmbeddingKernels"]

INTEGERS = {np.dtype(np.int64): 8, np.dtype(np.int32): 4, np.dtype(np.uint8): 1}  # what `integer` reads
LEVELS = 64  # the most sums that wait for their partners in a tree, and more
NONE = np.int32(-1)


@subroutine
def integer(numbers, size, i):
    """Return number i of those at an address, which take `size` bytes each."""
    if size == 8:
        return item(int64s(numbers), i)
    if size == 4:
        return np.int64(item(int32s(numbers), i))
    return np.int64(item(uint8s(numbers), i))


@kernel(batch=int64s, begin=int, width=int, numbers=int, size=int, places=int, out=floats)
def look_up(rank, size, barrier, a):
    """Write row x of the table, which begins at parameter `begin`, for each number x at `places` places."""
    table = shift(floats(item(a.batch, PARAMS)), a.begin)
    begin, end = part_of(rank, size, a.places)
    for i in range(begin, end):
        copy(shift(table, integer(a.numbers, a.size, i) * a.width), a.width, shift(a.out, i * a.width))


@kernel(numbers=int, size=int, places=int, rows=int, untrained=int, first=int32s, following=int32s)
def link_places(rank, size, barrier, a):
    """Write for each number its first place, and for each place the next one of its number; NONE if there is none.

    The places of the number `untrained` are left out.
    """
    if rank == 0:
        for row in range(a.rows):
            put(a.first, row, NONE)
        for i in range(a.places - 1, -1, -1):
            x = integer(a.numbers, a.size, i)
            if x != a.untrained:
                put(a.following, i, item(a.first, x))
                put(a.first, x, np.int32(i))


#: The errors (samples, positions, width) of rows of a table (rows, width); `first` and `following` are those of
#: link_places. The gradient is that of the tensor that begins at parameter `begin`, or, if `apart`, the samples' own
#: ones, (samples, rows, width), are written to `own`, or added, if `add`, to what is there. Each thread has
#: LEVELS·PANEL floats in `stacks` and LEVELS integers in `levels`.
TABLE = Fields(
    batch=int64s, begin=int, apart=int, own=floats, add=int, errors=floats, samples=int, positions=int, rows=int,
    width=int, first=int32s, following=int32s, stacks=floats, levels=int64s,
)  # fmt: skip


@kernel(TABLE)
def form_table(rank, size, barrier, a):
    """Write the table's mean gradient."""
    out = shift(floats(item(a.batch, GRADS)), a.begin)
    begin, end = part_of(rank, size, a.rows)
    for row in range(begin, end):
        if item(a.first, row) < 0:
            clear(out, row * a.width, a.width)
        else:
            for column in range(0, a.width, PANEL):
                total = sum_row(a, row, column, shift(a.stacks, rank * LEVELS * PANEL), shift(a.levels, rank * LEVELS))
                total = tile_divide(tile_add_number(total, 0.0), a.samples)
                put_tile(out, row * a.width + column, PANEL, total, a.width - column, PANEL)


@kernel(TABLE)
def form_own_tables(rank, size, barrier, a):
    """Write or add the samples' own gradients."""
    begin, end = part_of(rank, size, a.rows)
    for row in range(begin, end):
        if not a.add:
            for m in range(a.samples):
                clear(a.own, (m * a.rows + row) * a.width, a.width)
        for column in range(0, a.width, PANEL):
            place = np.int64(item(a.first, row))
            while place >= 0:
                m = place // a.positions
                total, place = sum_places(a, m, place, column)
                at = (m * a.rows + row) * a.width + column
                if a.add:
                    total = tile_add(tile_load(total, a.own, at, PANEL), total)
                put_tile(a.own, at, PANEL, total, a.width - column, PANEL)


@subroutine
def sum_places(a, m, place, column):
    """Return the sum of a panel of the errors at a number's places in sample m, from `place` on, and the next place."""
    total = tile_zeros(1, 16)
    end = (m + 1) * a.positions
    while ZERO <= place < end:
        total = tile_add_row(total, a.errors, place * a.width + column)
        place = np.int64(item(a.following, place))
    return total, place


@subroutine
def sum_row(a, row, column, stack, levels):
    """Return the sum of a panel of a row's errors over samples by the tree.

    Samples without the row are absent, so that their partners pass up. levels[k] is the level of the tree at which the
    sums k − 1 and k of the stack meet: that of the highest bit in which two of their samples' numbers differ.
    """
    depth, last, place = ZERO, ZERO, np.int64(item(a.first, row))
    while place >= 0:
        m = place // a.positions
        total, place = sum_places(a, m, place, column)
        level, differ = ZERO, m ^ last
        while differ > 0:
            differ >>= 1
            level += 1
        while depth > 1 and item(levels, depth - 1) < level:
            depth -= 1
            join_last(stack, depth)
        put(levels, depth, level)
        tile_store(stack, depth * PANEL, PANEL, total)
        depth += 1
        last = m
    while depth > 1:
        depth -= 1
        join_last(stack, depth)
    return tile_load(tile_zeros(1, 16), stack, ZERO, PANEL)


@subroutine
def join_last(stack, last):
    """Add the sums last − 1 and `last` of a stack."""
    at = (last - 1) * PANEL
    total = tile_load(tile_zeros(1, 16), stack, at, PANEL)
    tile_store(stack, at, PANEL, tile_add_row(total, stack, at + PANEL))


class EmbeddingKernels(OperatorKernels):
    """fredsim.numerics.ops.embedding.Embedding of plain values."""

    image = False
    shares = True

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Look up. Raises SimulationError for an integer that is no row's."""
        (x,), width = inputs, self.operator.width
        known = plan.ranges.get(id(x.buffer))
        if known is not None and id(x.buffer) in plan.parts and not 0 <= known[0] <= known[1] < self.operator.rows:
            known = None  # that of the whole samples
        if known is not None:
            self._check(*known)
        if known is None or np.dtype(x.dtype) not in INTEGERS:
            x = self._checked(plan, x)
        self._numbers, self._size = x, INTEGERS[np.dtype(x.dtype)]
        plan.step(
            look_up, batch=BATCH, begin=self.tensors["weight"].begin, width=width, numbers=x, size=self._size,
            places=x.samples * x.size, out=out,
        )  # fmt: skip
        return out

    def _check(self, low: int, high: int) -> None:
        if low < 0 or high >= self.operator.rows:
            raise SimulationError(f"embedding: {low} … {high} are no rows of 0 … {self.operator.rows - 1}")

    def _checked(self, plan: Steps, x: Value) -> Value:
        """Return the numbers as int64; add the step that makes them so, and looks whether all are rows."""
        numbers = x.like(dtype=np.int64)

        def check(batch: Batch) -> None:
            given = x.view(batch.arena)
            self._check(int(given.min()), int(given.max()))
            numbers.view(batch.arena)[:] = given

        plan.call(check, x, numbers)
        return numbers

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Sum up errors by row."""
        x, tensor, rows = self._numbers, self.tensors["weight"], self.operator.rows
        places = x.samples * x.size
        first, following = plan.buffer(rows), plan.buffer(places)
        untrained = -1 if self.operator.untrained is None else self.operator.untrained
        plan.step(
            link_places, numbers=x, size=self._size, places=places, rows=rows, untrained=untrained, first=first,
            following=following,
        )  # fmt: skip
        fields = plan.gradient_fields(tensor)
        plan.step(
            form_own_tables if fields["apart"] else form_table, batch=BATCH, **fields, errors=error, samples=x.samples,
            positions=x.size, rows=rows, width=self.operator.width, first=first, following=following,
            stacks=plan.buffer(LEVELS * PANEL * plan.threads), levels=plan.buffer(LEVELS * plan.threads, 8),
        )  # fmt: skip
        return [None]
