"""Images whose pixels are repeated, as one node: a graph writes them as a product with ones, between two views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, shift
from fredsim.jit.vector import load, zeros
from fredsim.kernels.ops.operator import JoinedNodes, OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.rows import clear_halo, part_of, put_lanes
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.operator import Shape

__all__ = ["RepeatedPixels", "RepeatedPixelsKernels"]


@dataclass(frozen=True)
class RepeatedPixels(JoinedNodes):
    """From (C, H, W) to (C, H·rows, W·columns); the nodes that it stands for have its definition."""

    rows: int
    columns: int

    def shape(self, *shapes: Shape) -> Shape:
        channels, rows, columns = shapes[0]
        return channels, rows * self.rows, columns * self.columns


@kernel(x=floats, x_sample=int, x_row=int, channels=int, samples=int, rows=int, columns=int, down=int, across=int,
        sample=int, row=int, gap=int, out=floats)  # fmt: skip
def repeat_pixels(rank, size, barrier, a):
    """Write each pixel of images of so many rows and columns `down` times `across` times."""
    begin, end = part_of(rank, size, a.samples * a.rows * a.down)
    for t in range(begin, end):
        y, i = t % (a.rows * a.down), t // (a.rows * a.down)
        x, line = shift(a.x, i * a.x_sample + y // a.down * a.x_row), shift(a.out, i * a.sample + y * a.row)
        for column in range(a.columns):
            for c in range(0, a.channels, 16):
                value = load(zeros(16), x, column * a.channels + c)
                for k in range(a.across):
                    put_lanes(line, (column * a.across + k) * a.channels + c, value, a.channels - c)
        clear_halo(line, y == 0, a.columns * a.across * a.channels, a.gap)


@kernel(e=floats, e_sample=int, e_row=int, channels=int, samples=int, rows=int, columns=int, down=int, across=int,
        sample=int, row=int, gap=int, out=floats)  # fmt: skip
def sum_pixels(rank, size, barrier, a):
    """Write the sums of each pixel's errors, in row-major order from +0."""
    begin, end = part_of(rank, size, a.samples * a.rows)
    for t in range(begin, end):
        y, i = t % a.rows, t // a.rows
        e, line = shift(a.e, i * a.e_sample + y * a.down * a.e_row), shift(a.out, i * a.sample + y * a.row)
        for column in range(a.columns):
            for c in range(0, a.channels, 16):
                total = zeros(16)
                for r in range(a.down):
                    own = shift(e, r * a.e_row + column * a.across * a.channels + c)
                    for k in range(a.across):
                        total = total + load(zeros(16), own, k * a.channels)
                put_lanes(line, column * a.channels + c, total, a.channels - c)
        clear_halo(line, y == 0, a.columns * a.channels, a.gap)


class RepeatedPixelsKernels(OperatorKernels):
    """RepeatedPixels."""

    image = True

    def _sizes(self) -> dict[str, int]:
        channels, rows, columns = self.shapes[0]
        return {
            "channels": channels, "rows": rows, "columns": columns, "down": self.operator.rows,
            "across": self.operator.columns,
        }  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        (x,) = inputs
        plan.step(repeat_pixels, **x.read("x"), samples=x.samples, **self._sizes(), **out.written())
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].error()
        plan.step(sum_pixels, **error.read("e"), samples=sent.samples, **self._sizes(), **sent.written())
        return [sent]
