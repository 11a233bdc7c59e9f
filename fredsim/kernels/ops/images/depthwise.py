"""Convolutions in which each channel is a group of its own: fredsim.numerics.ops.conv2d.Conv2d.

Sixteen channels are the lanes of a vector, so that a product has no broadcast number. A tile of the passes is P
neighbouring pixels, one of the gradient T rows × U columns of taps; its sums stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from fredsim.compute.buffers import Buffer
from fredsim.jit.cache import make_module
from fredsim.jit.kernel import Kernel, kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.processor import WIDE
from fredsim.jit.vector import broadcast, load, store, zeros
from fredsim.kernels.ops.images.conv2d import ConvKernels
from fredsim.kernels.ops.images.correlate import padded
from fredsim.kernels.ops.program import BATCH, GRADS, PARAMS, Steps
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sums import BAND, tree_of_vectors
from fredsim.kernels.ops.values import Value
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.operator import Operator, Shape

__all__ = ["DepthwiseKernels"]

PIXELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
MOST_SUMS = 24 if WIDE else 6  # vectors of sums that fit into registers
ZERO = np.float32(0)

PASS = """
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.vector import load, zeros
from fredsim.kernels.ops.program import PARAMS
from fredsim.kernels.ops.rows import clear_halo, part_of, put_lanes


@kernel(batch=int64s, x=floats, x_sample=int, x_row=int, x_rows=int, channels=int, lanes=int, samples=int, rows=int,
        columns=int, stride=int, stride_columns=int, first=int, first_column=int, apart=int, apart_columns=int,
        taps=int, tap_columns=int, w=floats, bias_begin=int, sample=int, row=int, gap=int, out=floats)
def forward(rank, size, barrier, a):
    like = zeros(16)
    params = floats(item(a.batch, PARAMS))
    begin, end = part_of(rank, size, a.samples * a.rows)
    step, run = a.stride_columns * a.channels, a.apart_columns * a.channels
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        r = a.stride * y + a.first
        line = shift(a.out, i * a.sample + y * a.row)
        for c0 in range(0, a.lanes, 16):
            bias, left = like, a.channels - c0
            if a.bias_begin >= 0:
                bias = load(like, params, a.bias_begin + c0)
            for j in range(0, a.columns, {P}):
                j0 = min(j, a.columns - {P})
                x = shift(a.x, i * a.x_sample + (a.stride_columns * j0 + a.first_column) * a.channels + c0)
                {clear}
                for tap in range(a.taps):
                    at = r + tap * a.apart
                    if at >= 0 and at < a.x_rows:
                        px, w = shift(x, at * a.x_row), shift(a.w, tap * a.tap_columns * a.lanes + c0)
                        for u in range(a.tap_columns):
                            b = load(like, w, u * a.lanes)
                            {forwards}
                            px = shift(px, run)
                out = shift(line, j0 * a.channels + c0)
                {write}
        clear_halo(line, y == 0, a.columns * a.channels, a.gap)


@kernel(e=floats, e_sample=int, e_row=int, e_rows=int, channels=int, lanes=int, samples=int, rows=int, columns=int,
        stride=int, stride_columns=int, first=int, first_column=int, apart=int, apart_columns=int, taps=int,
        tap_columns=int, w=floats, sample=int, row=int, gap=int, out=floats)
def backward(rank, size, barrier, a):
    like = zeros(16)
    begin, end = part_of(rank, size, a.samples * a.rows)
    step = a.stride_columns * a.channels
    for t in range(begin, end):
        i, y = t // a.rows, t % a.rows
        line = shift(a.out, i * a.sample + y * a.row)
        for c0 in range(0, a.lanes, 16):
            left = a.channels - c0
            for q in range(min(a.stride_columns, a.columns)):
                columns = (a.columns - q + a.stride_columns - 1) // a.stride_columns
                for j in range(0, columns, {P}):
                    j0 = min(j, columns - {P})
                    first = a.stride_columns * j0 + q - a.first_column
                    {clear_back}
                    for tap in range(a.taps):
                        at = y - a.first - tap * a.apart
                        if at % a.stride == 0 and at >= 0 and at < a.e_rows * a.stride:
                            e = shift(a.e, i * a.e_sample + at // a.stride * a.e_row + c0)
                            w = shift(a.w, tap * a.tap_columns * a.lanes + c0)
                            for u in range(a.tap_columns):
                                place = first - u * a.apart_columns
                                if place % a.stride_columns == 0:
                                    b = load(like, w, u * a.lanes)
                                    pe = shift(e, place // a.stride_columns * a.channels)
                                    {backwards}
                    out = shift(line, (a.stride_columns * j0 + q) * a.channels + c0)
                    {write_back}
        clear_halo(line, y == 0, a.columns * a.channels, a.gap)
"""

SUMS = """
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, shift
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.ops.rows import part_of
from fredsim.kernels.ops.sums import tree_of_vectors


@kernel(x=floats, x_sample=int, x_row=int, x_rows=int, channels=int, lanes=int, nothing=floats, e=floats, e_sample=int,
        e_row=int, rows=int, columns=int, stride=int, stride_columns=int, first=int, first_column=int, apart=int,
        apart_columns=int, taps=int, tap_columns=int, samples=int, stack=floats, stack_stride=int, out=floats)
def sums(rank, size, barrier, a):
    like = zeros(16)
    stack = shift(a.stack, rank * a.stack_stride)
    bands = (a.rows + {band} - 1) // {band}
    down, across, vectors = (a.taps + {T} - 1) // {T}, (a.tap_columns + {U} - 1) // {U}, a.lanes // 16
    begin, end = part_of(rank, size, a.samples * vectors * down * across)
    step, run = a.stride_columns * a.channels, a.apart_columns * a.channels
    for task in range(begin, end):
        u0, line = min(task % across * {U}, a.tap_columns - {U}), task // across
        t0, line = min(line % down * {T}, a.taps - {T}), line // down
        c0, i = line % vectors * 16, line // vectors
        begin_x = (a.first_column + u0 * a.apart_columns) * a.channels + c0
        for band in range(bands):
            {clear}
            for y in range({band} * band, min({band} * band + {band}, a.rows)):
                r = y * a.stride + a.first + t0 * a.apart
                {rows}
                e = shift(a.e, i * a.e_sample + y * a.e_row + c0)
                for _ in range(a.columns):
                    d = load(like, e, 0)
                    {products}
                    {onwards}
                    e = shift(e, a.channels)
            {keep}
        {write}
"""


def lines(form: str, indent: int, places: Sequence[Any]) -> str:
    """Return a line for each place, which are tuples or numbers."""
    made = [form.format(*(place if isinstance(place, tuple) else (place,))) for place in places]
    return ("\n" + " " * indent).join(made)


@cache
def passes(pixels: int) -> Any:
    """Return the module of the kernels for tiles of so many pixels."""
    each = range(pixels)
    source = PASS.format(
        P=pixels, clear=lines("a{0} = like", 16, each), clear_back=lines("a{0} = like", 20, each),
        forwards=lines("a{0} = a{0} + load(like, px, {0} * step) * b", 28, each),
        backwards=lines("a{0} = a{0} + load(like, pe, {0} * a.channels) * b", 36, each),
        write=lines("put_lanes(out, {0} * a.channels, a{0} + bias, left)", 16, each),
        write_back=lines("put_lanes(out, {0} * step, a{0}, left)", 20, each),
    )  # fmt: skip
    return make_module(source, f"convolutions of each channel, {pixels} pixels at a time")


@cache
def tap_sums(rows: int, columns: int) -> Kernel:
    """Return the kernel of the samples' own gradients, for tiles of so many taps."""
    places = [(t, u) for t in range(rows) for u in range(columns)]
    inside = "x{0} = shift(a.x, i * a.x_sample + (r + {0} * a.apart) * a.x_row + begin_x)"
    outside = "if r + {0} * a.apart < 0 or r + {0} * a.apart >= a.x_rows:\n" + " " * 20
    source = SUMS.format(
        T=rows, U=columns, band=BAND, clear=lines("s{0}_{1} = like", 12, places),
        rows=lines(f"{inside}\n                {outside}x{{0}} = a.nothing", 16, range(rows)),
        products=lines("s{0}_{1} = s{0}_{1} + load(like, x{0}, {1} * run) * d", 20, places),
        onwards=lines("x{0} = shift(x{0}, step)", 20, range(rows)),
        keep=lines("store(stack, ({2} * bands + band) * 16, s{0}_{1})", 12,
                   [(t, u, t * columns + u) for t, u in places]),
        write=lines("store(a.out, ((i * a.taps + t0 + {0}) * a.tap_columns + u0 + {1}) * a.lanes + c0, "
                    "tree_of_vectors(like, shift(stack, {2} * bands * 16), 16, bands))", 8,
                    [(t, u, t * columns + u) for t, u in places]),
    )  # fmt: skip
    found: Kernel = make_module(source, f"gradients of convolutions of each channel, {rows} × {columns} taps").sums
    return found


@kernel(batch=int64s, begin=int, channels=int, taps=int, lanes=int, out=floats)
def pack_taps(rank, size, barrier, a):
    """Write weights (channels, taps) as (taps, lanes); lanes from `channels` on are +0."""
    params = shift(floats(item(a.batch, PARAMS)), a.begin)
    begin, end = part_of(rank, size, a.taps)
    for tap in range(begin, end):
        for c in range(a.channels):
            put(a.out, tap * a.lanes + c, item(params, c * a.taps + tap))
        for c in range(a.channels, a.lanes):
            put(a.out, tap * a.lanes + c, ZERO)


@kernel(batch=int64s, begin=int, x=floats, samples=int, channels=int, taps=int, lanes=int, scratch=floats,
        scratch_stride=int, apart=int, add=int, own=floats)  # fmt: skip
def form_taps(rank, size, barrier, a):
    """Write the gradient (channels, taps) of the samples' own ones, x (samples, taps, lanes).

    If `apart`, the samples' own ones are written to `own`, (samples, channels, taps), or added to what is there.
    """
    grads = shift(floats(item(a.batch, GRADS)), a.begin)
    like, scratch, vectors = zeros(16), shift(a.scratch, rank * a.scratch_stride), a.lanes // 16
    begin, end = part_of(rank, size, a.taps * vectors)
    for t in range(begin, end):
        tap, c0 = t // vectors, t % vectors * 16
        for i in range(a.samples):
            at = (i * a.taps + tap) * a.lanes + c0
            store(scratch, 16 * i, load(like, a.x, at))
            if a.apart:
                for c in range(min(16, a.channels - c0)):
                    place = (i * a.channels + c0 + c) * a.taps + tap
                    value = item(a.x, at + c)
                    put(a.own, place, item(a.own, place) + value if a.add else value)
        if not a.apart:
            store(scratch, 0, tree_of_vectors(like, scratch, 16, a.samples) / broadcast(16, a.samples))
            for c in range(min(16, a.channels - c0)):
                put(grads, (c0 + c) * a.taps + tap, item(scratch, c))


class DepthwiseKernels(ConvKernels):
    """A convolution of images in which each channel has a kernel of its own."""

    @classmethod
    def takes(cls, operator: Operator, shapes: Sequence[Shape]) -> bool:
        """Take as many groups as inputs and outputs."""
        assert isinstance(operator, Conv2d)
        return operator.groups == operator.outputs == shapes[0][0] > 1

    def _fields(self) -> dict[str, Any]:
        op = self.operator
        return {
            "channels": op.outputs, "lanes": padded(op.outputs), "stride": op.stride[0], "stride_columns": op.stride[1],
            "first": -op.padding[0], "first_column": -op.padding[1], "apart": op.dilation[0],
            "apart_columns": op.dilation[1], "taps": op.kernel[0], "tap_columns": op.kernel[1],
        }  # fmt: skip

    def _pack_taps(self, plan: Steps) -> Buffer:
        op, taps = self.operator, math.prod(self.operator.kernel)
        packed = plan.buffer(taps * padded(op.outputs))
        plan.step(
            pack_taps, batch=BATCH, begin=self.tensors["weight"].begin, channels=op.outputs, taps=taps,
            lanes=padded(op.outputs), out=packed,
        )  # fmt: skip
        return packed

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Write the weights in the kernels' order, then correlate."""
        (x,), (_, rows, columns) = inputs, out.shape
        self.packed = self._pack_taps(plan)
        plan.step(
            passes(_pixels(columns)).forward, batch=BATCH, **x.read("x"), x_rows=x.shape[1], samples=x.samples,
            rows=rows, columns=columns, **self._fields(), w=self.packed,
            bias_begin=self.tensors["bias"].begin if self.operator.bias else -1, **out.written(),
        )  # fmt: skip
        return out

    def _input_error(self, plan: Steps, error: Value) -> Value:
        sent = self.inputs[0].error()
        packed = self._pack_taps(plan) if plan.two_vectors else self.packed
        _, rows, columns = sent.shape
        plan.step(
            passes(_pixels(max(1, columns // self.operator.stride[1]))).backward, **error.read("e"),
            e_rows=error.shape[1], samples=sent.samples, rows=rows, columns=columns, **self._fields(), w=packed,
            **sent.written(),
        )  # fmt: skip
        return sent

    def _weight_gradient(self, plan: Steps, error: Value) -> None:
        op, (x,) = self.operator, self.inputs
        (taps, tap_columns), lanes = op.kernel, padded(op.outputs)
        across = min(tap_columns, max(1, MOST_SUMS // 2))
        down = min(taps, max(1, (MOST_SUMS * 3 // 5) // across))
        _, rows, columns = error.shape
        stack, stack_stride = plan.each_thread(16 * down * across * -(-rows // BAND))
        own = plan.buffer(plan.mu * taps * tap_columns * lanes)
        read = (columns * op.stride[1] + tap_columns * op.dilation[1]) * op.outputs
        plan.step(
            tap_sums(down, across), **x.read("x"), x_rows=x.shape[1], nothing=np.zeros(read + MARGIN, np.float32),
            **error.read("e"), rows=rows, columns=columns, **self._fields(), samples=plan.mu, stack=stack,
            stack_stride=stack_stride, out=own,
        )  # fmt: skip
        scratch, scratch_stride = plan.each_thread(16 * plan.mu)
        plan.step(
            form_taps, batch=BATCH, x=own, samples=plan.mu, channels=op.outputs, taps=taps * tap_columns, lanes=lanes,
            scratch=scratch, scratch_stride=scratch_stride, **plan.gradient_fields(self.tensors["weight"]),
        )  # fmt: skip


def _pixels(columns: int) -> int:
    """Return how many pixels of a row take least time together."""
    return min((p for p in PIXELS if p <= min(columns, MOST_SUMS)), key=lambda p: (-(-columns // p) * (p + 1), p))
