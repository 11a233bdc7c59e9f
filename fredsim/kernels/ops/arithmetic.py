"""Kernels of what is made of two inputs, of which one may be repeated: fredsim.numerics.ops.arithmetic.

Values are walked by axes in the order in which they lie in memory, neighbours being joined where both inputs allow it.
An input that is repeated along an axis has the stride 0 there; its error is summed along such axes, in row-major order
from +0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fredsim.compute.buffers import Tensor
from fredsim.jit.kernel import Fields, Kernel, with_functions
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import broadcast, load, zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.pointwise import (
    OF_TWO,
    add_rows,
    combine_rows,
    combined,
    multiply_rows,
    plus,
    select_rows,
    times,
    where_positive,
)
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import part_of, put_lanes
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.arithmetic import Add, Keep, Maximum, Minimum, Mul
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.rules import where

__all__ = ["AddKernels", "BothKernels"]

ZERO = np.float32(0)
PIECE = 64  # the most elements of an axis whose sums are one task

#: Two operands and what is made of them. `sizes`, and the strides x_at, y_at and out_at, are those of `axes` outer
#: axes, `count` elements in all; within each there are `rows` rows, whose strides are x_row, y_row and `row`, of
#: `width` elements; x_step and y_step are 1, or 0 where the operand is repeated.
ALONG = Fields(
    x=floats, y=floats, out=floats, axes=int, count=int, sizes=int64s, x_at=int64s, y_at=int64s, out_at=int64s,
    rows=int, x_row=int, y_row=int, row=int, width=int, x_step=int, y_step=int,
)  # fmt: skip
#: The error of an operand, `out`: of function(x, y), the sums over three axes of `sums` elements, with strides x_sums
#: and y_sums, the first being the slowest. Beside the outer axes, as above, there is one of `width` elements, whose
#: strides are x_step, y_step and `step`; if x_step is 1, sixteen of them are summed together.
SUMS = Fields(
    x=floats, y=floats, out=floats, axes=int, count=int, sizes=int64s, x_at=int64s, y_at=int64s, out_at=int64s,
    sums=int64s, x_sums=int64s, y_sums=int64s, width=int, x_step=int, y_step=int, step=int,
)  # fmt: skip

function: Any = None  # a placeholder: each kernel has its own, which needs none of the numbers that it is given


@subroutine
def places_of(a, t):
    """Return where the outer element t begins in x, y and out."""
    x, y, out = 0, 0, 0
    for axis in range(a.axes - 1, -1, -1):
        length = item(a.sizes, axis)
        place = t % length
        t //= length
        x += place * item(a.x_at, axis)
        y += place * item(a.y_at, axis)
        out += place * item(a.out_at, axis)
    return x, y, out


@subroutine(forceinline=True)
def lanes_of(x, at, step):
    """Return 16 elements, or 16 times the only one if the step is 0."""
    return load(zeros(16), x, at) if step else broadcast(16, item(x, at))


def combine_along(rank, size, barrier, a):
    """Write function(x, y), of vectors, for this thread's rows."""
    begin, end = part_of(rank, size, a.count)
    for t in range(begin, end):
        x_at, y_at, out_at = places_of(a, t)
        for _ in range(a.rows):
            for c in range(0, a.width, 16):
                x = lanes_of(a.x, x_at + c * a.x_step, a.x_step)
                y = lanes_of(a.y, y_at + c * a.y_step, a.y_step)
                put_lanes(shift(a.out, out_at), c, function(x, y, a.sizes), a.width - c)
            x_at, y_at, out_at = x_at + a.x_row, y_at + a.y_row, out_at + a.row


def sum_along(rank, size, barrier, a):
    """Write sums of function(x, y)."""
    pieces = (a.width + PIECE - 1) // PIECE
    begin, end = part_of(rank, size, a.count * pieces)
    p, q, r = item(a.sums, 0), item(a.sums, 1), item(a.sums, 2)
    x_step, y_step = item(a.x_sums, 2), item(a.y_sums, 2)
    for t in range(begin, end):
        x_at, y_at, out_at = places_of(a, t // pieces)
        out, c = shift(a.out, out_at), t % pieces * PIECE
        width = min(c + PIECE, a.width)
        if a.x_step == 1:
            while c < width:
                total = zeros(16)
                for i in range(p):
                    for j in range(q):
                        x = x_at + c + i * item(a.x_sums, 0) + j * item(a.x_sums, 1)
                        y = y_at + c * a.y_step + i * item(a.y_sums, 0) + j * item(a.y_sums, 1)
                        for k in range(r):
                            one = load(zeros(16), a.x, x + k * x_step)
                            total = total + function(one, lanes_of(a.y, y + k * y_step, a.y_step), a.sizes)
                put_lanes(out, c, total, width - c)
                c += 16
        else:
            while c < width:
                last = width - 1 - c  # four are summed at once, the last perhaps several times
                c1, c2, c3 = c + min(1, last), c + min(2, last), c + min(3, last)
                s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
                for i in range(p):
                    for j in range(q):
                        x = x_at + i * item(a.x_sums, 0) + j * item(a.x_sums, 1)
                        y = y_at + i * item(a.y_sums, 0) + j * item(a.y_sums, 1)
                        for _ in range(r):
                            s0 = s0 + function(item(a.x, x + c * a.x_step), item(a.y, y + c * a.y_step), a.sizes)
                            s1 = s1 + function(item(a.x, x + c1 * a.x_step), item(a.y, y + c1 * a.y_step), a.sizes)
                            s2 = s2 + function(item(a.x, x + c2 * a.x_step), item(a.y, y + c2 * a.y_step), a.sizes)
                            s3 = s3 + function(item(a.x, x + c3 * a.x_step), item(a.y, y + c3 * a.y_step), a.sizes)
                            x, y = x + x_step, y + y_step
                put(out, c * a.step, s0)
                put(out, c1 * a.step, s1)
                put(out, c2 * a.step, s2)
                put(out, c3 * a.step, s3)
                c += 4


@subroutine(forceinline=True)
def first(x, y, numbers):
    """Return x."""
    return x


@subroutine(forceinline=True)
def larger(x, y, numbers):
    """Return the larger one, y if they are equal, a NaN if one is."""
    return where(x > y, x, where(x == x, y, x))


@subroutine(forceinline=True)
def smaller(x, y, numbers):
    """Return the smaller one, y if they are equal, a NaN if one is."""
    return where(x < y, x, where(x == x, y, x))


@subroutine(forceinline=True)
def share_of_larger(x, y, numbers):
    """Return by what the error of x is multiplied where the larger one is taken."""
    return where(x < y, 0.0, where(x == y, 0.5, 1.0))


@subroutine(forceinline=True)
def share_of_smaller(x, y, numbers):
    """Return by what the error of x is multiplied where the smaller one is taken."""
    return where(x > y, 0.0, where(x == y, 0.5, 1.0))


class Pair(NamedTuple):
    """The kernels of a function of two values: of values that are alike, and of others."""

    alike: Kernel
    along: Kernel


def of_two(function: Any, alike: Kernel | None = None) -> Pair:
    """Return the kernels of a function of two values."""
    alike = alike or Kernel(with_functions(combine_rows, function=function), OF_TWO)
    return Pair(alike, Kernel(with_functions(combine_along, function=function), ALONG))


PRODUCT = of_two(times, multiply_rows)
VALUES: dict[type[Operator], Pair] = {
    Add: of_two(plus, add_rows), Keep: of_two(where_positive, select_rows), Mul: PRODUCT, Maximum: of_two(larger),
    Minimum: of_two(smaller),
}  # fmt: skip
#: Of extremes: by what an input's error is multiplied, of that input and the other one.
SHARES: dict[type[Operator], Pair] = {Maximum: of_two(share_of_larger), Minimum: of_two(share_of_smaller)}
sum_errors = Kernel(with_functions(sum_along, function=first), SUMS)
sum_products = Kernel(with_functions(sum_along, function=times), SUMS)


class Axis(NamedTuple):
    """An axis of two operands and of what is made of them: its size, and the strides."""

    size: int
    x: int
    y: int
    out: int


def strides_of(value: Value) -> list[int]:
    """Return a value's strides along its axes, the samples' before them; 0 along those of one element."""
    if value.image:
        strides = [1, value.row, value.shape[0]]
    else:
        strides = [math.prod(value.shape[axis + 1 :]) for axis in range(len(value.shape))]
    return [value.sample, *(stride if size > 1 else 0 for size, stride in zip(value.shape, strides, strict=True))]


def axes_of(x: Value, y: Value, out: Value, sizes: Sequence[int]) -> list[Axis]:
    """Return the axes of values, the samples' being the first."""
    return [
        Axis(*each) for each in zip([x.samples, *sizes], strides_of(x), strides_of(y), strides_of(out), strict=True)
    ]


def joined(axes: Sequence[Axis]) -> list[Axis]:
    """Return axes, the slowest first, without those of one element; two of which one goes on in the other are one."""
    found: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        last = found[-1] if found else None
        if last is not None and last[1:] == tuple(axis.size * stride for stride in axis[1:]):
            found[-1] = axis._replace(size=last.size * axis.size)
        else:
            found.append(axis)
    return found


def outer(axes: Sequence[Axis]) -> dict[str, Any]:
    """Return the fields of outer axes."""
    given = list(axes) or [Axis(1, 0, 0, 0)]
    sizes, x_at, y_at, out_at = (np.array(column, np.int64) for column in zip(*given, strict=True))
    return {
        "axes": len(given), "count": math.prod(axis.size for axis in given), "sizes": sizes, "x_at": x_at,
        "y_at": y_at, "out_at": out_at,
    }  # fmt: skip


def combine(plan: Steps, kernels: Pair, x: Value, y: Value, out: Value) -> Value:
    """Add the step that writes function(x, y) to a value, without a halo unless x and y are alike; return that."""
    if x.shape == y.shape:
        return combined(plan, kernels.alike, x, y, out)
    out = out.like(halo=0)
    axes = axes_of(x, y, out, out.shape)
    if out.image:
        axes = [axes[0], axes[2], axes[3], axes[1]]
    axes = joined(axes)
    if axes and max(axes[-1].x, axes[-1].y) > 1:  # rows of one element, beside which there is a halo
        axes.append(Axis(1, 0, 0, 0))
    inner = axes.pop() if axes else Axis(1, 0, 0, 0)
    rows = axes.pop() if len(axes) > 1 else Axis(1, 0, 0, 0)
    plan.step(
        kernels.along, x=x, y=y, out=out, **outer(axes), rows=rows.size, x_row=rows.x, y_row=rows.y, row=rows.out,
        width=inner.size, x_step=inner.x, y_step=inner.y,
    )  # fmt: skip
    return out


def sum_up(plan: Steps, kernel: Kernel, x: Value, y: Value, out: Value) -> Value:
    """Add the step that sums function(x, y) over the axes along which `out`, without a halo, has one element."""
    axes = axes_of(x, y, out, x.shape)
    gone = [i + 1 for i, (own, all_of) in enumerate(zip(out.shape, x.shape, strict=True)) if own == 1 < all_of]
    sums = joined([axes[i] for i in gone])
    kept = [0, 2, 3, 1] if out.image else list(range(len(axes)))
    rest = joined([axes[i] for i in kept if i not in gone])
    inner = rest.pop() if rest else Axis(1, 0, 0, 0)
    sums = [*[Axis(1, 0, 0, 0)] * (3 - len(sums)), *sums]
    lengths, x_sums, y_sums, _ = (np.array(column, np.int64) for column in zip(*sums, strict=True))
    plan.step(
        kernel, x=x, y=y, out=out, **outer(rest), sums=lengths, x_sums=x_sums, y_sums=y_sums, width=inner.size,
        x_step=inner.x, y_step=inner.y, step=inner.out,
    )  # fmt: skip
    return out


class BothKernels(OperatorKernels):
    """An operator of fredsim.numerics.ops.arithmetic."""

    @classmethod
    def takes(cls, operator: object, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Take shapes of few axes."""
        return len(shapes[0]) <= 3 or all(_alternations(shape, other) <= 3 for shape, other in (shapes, shapes[::-1]))

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take images if one is."""
        return [any(given)] * 2, any(given)

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        return combine(plan, VALUES[type(self.operator)], *inputs, out)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Return the error, or its product with a factor, summed where an input was repeated."""
        if isinstance(self.operator, Keep):
            error, wanted = combine(plan, VALUES[Keep], error, self.inputs[1], error.like(halo=0)), [True, False]
        sent = list[Value | None]()
        for own, other, wants in zip(self.inputs, self.inputs[::-1], wanted, strict=True):
            if not wants:
                sent.append(None)
                continue
            factor = self._factor(plan, own, other, error)
            if own.shape != error.shape:
                out = own.like(halo=0, error_halo=0)
                sent.append(sum_up(plan, sum_products if factor else sum_errors, error, factor or error, out))
            else:
                sent.append(combine(plan, PRODUCT, error, factor, own.error()) if factor else error)
        return sent

    def _factor(self, plan: Steps, own: Value, other: Value, error: Value) -> Value | None:
        """Return by what the error of an input is multiplied: the other one, or a share of each; None if by nothing."""
        if (shares := SHARES.get(type(self.operator))) is not None:
            return combine(plan, shares, own, other, error.like(halo=0))
        return other if isinstance(self.operator, Mul) else None


class AddKernels(BothKernels):
    """fredsim.numerics.ops.arithmetic.Add."""

    def __init__(self, operator: Any, shapes: Sequence[Shape], tensors: dict[str, Tensor]) -> None:
        super().__init__(operator, shapes, tensors)
        self.passes_errors = shapes[0] == shapes[1]


def _alternations(shape: Sequence[int], other: Sequence[int]) -> int:
    """Return how many groups of neighbouring axes an input is repeated along."""
    repeated = [own == 1 < its for own, its in zip(shape, other, strict=True) if max(own, its) > 1]
    return sum(now and not before for before, now in zip([False, *repeated], repeated, strict=False))
