"""Convolutions: fredsim.numerics.ops.conv2d.Conv2d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.compute.buffers import Buffer
from fredsim.jit.processor import WIDE
from fredsim.kernels.ops.images.conv_weights import (
    gradient_tile,
    pack_forward,
    pack_transposed,
    unpack_gradient,
    weight_gradient,
    write_panels,
)
from fredsim.kernels.ops.images.correlate import LANES, correlate, padded, spans, tile_of
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, Steps
from fredsim.kernels.ops.sums import BAND, gradient_of_channels
from fredsim.kernels.ops.values import Value
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.operator import Operator, Shape

__all__ = ["ConvKernels"]

Reach = tuple[int, int, int]

PANELS = not WIDE  # whether images are written as panels for the gradients of weights
CACHE_BYTES = 384 * 2**10  # of a block of samples, for the gradients of weights: part of the L2 cache


class ConvKernels(OperatorKernels):
    """A convolution of images."""

    image = True
    shares = True

    @classmethod
    def takes(cls, operator: Operator, shapes: Sequence[Shape]) -> bool:
        """Take strides or a dilation along an axis, not both."""
        assert isinstance(operator, Conv2d)
        return all(1 in pair for pair in zip(operator.stride, operator.dilation, strict=True))

    def __init__(self, operator: Conv2d, shapes: Sequence[Any], tensors: Any) -> None:
        super().__init__(operator, shapes, tensors)
        self.outer = operator.shape(*shapes)
        self.each_in, self.each_out = shapes[0][0] // operator.groups, operator.outputs // operator.groups
        self.in_lanes, self.out_lanes = padded(self.each_in), padded(self.each_out)
        self.taps = math.prod(operator.kernel)
        self.merged = operator.groups == 1 and operator.dilation[1] == 1  # a row's taps lie together
        self.work = math.prod(self.outer) * self.each_in * self.taps

    def halo(self) -> int:
        """Return the padding of columns."""
        return int(self.operator.padding[1])

    def error_halo(self) -> int:
        """Return how far taps reach beside the output's columns from the input's positions."""
        op, most, (_, _, columns) = self.operator, 0, self.outer
        for x in range(self.shapes[0][2]):
            for u in range(op.kernel[1]):
                place, rest = divmod(x + op.padding[1] - u * op.dilation[1], op.stride[1])
                if rest == 0:
                    most = max(most, -place, place - columns + 1)
        return most

    def _positions(self, axis: int) -> list[Reach]:
        """Return, for the input's positions p, p + stride, … of an axis, p < stride, what their errors are sums of.

        The first output that the first tap reaches, the number of taps, `stride` apart, and how many such positions.
        """
        op, size, found = self.operator, self.shapes[0][1 + axis], []
        kernel, stride, pad = op.kernel[axis], op.stride[axis], op.padding[axis]
        for p in range(stride):
            tap = (p + pad) % stride
            taps, positions = -(-(kernel - tap) // stride), -(-(size - p) // stride)
            found.append(((p + pad - tap) // stride, max(0, taps), max(0, positions)))
        return found

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Write the weights in the kernels' order, then correlate."""
        op, (x,) = self.operator, inputs
        row = self.each_in * self.taps
        self.packed, bias = self._pack(plan)
        _, rows, columns = self.outer
        reached = spans(1, op.stride[1], -op.padding[1], op.kernel[1], x.shape[2], columns, op.dilation[1])
        tile = tile_of(out.samples, reached, self.each_out, self.work * out.samples)
        w_column = self.each_in * LANES
        weights = {
            "w": self.packed, "w_begin": 0, "w_group": row * self.out_lanes, "w_tap": op.kernel[1] * w_column,
            "w_column": w_column, "w_panel": row * LANES, "bias": bias,
        }  # fmt: skip
        plan.step(
            correlate(tile), **self._input(x, self.each_in), samples=out.samples, rows=rows, columns=columns,
            scale=op.stride[0], scale_columns=op.stride[1], first=-op.padding[0], first_column=-op.padding[1],
            direction=1, taps=op.kernel[0], tap_columns=op.kernel[1], merged=self.merged, **weights,
            **self._output(out, self.each_out, tile.vectors), row=out.row, row_at=0, column=op.outputs, column_at=0,
            gap=out.halo * op.outputs, out=out,
        )  # fmt: skip
        return out

    def _pack(self, plan: Steps) -> tuple[Buffer, Buffer]:
        """Add the step that writes the weights, and the bias, in the kernels' order; return where they are."""
        op, row = self.operator, self.each_in * self.taps
        packed = plan.buffer(op.groups * row * self.out_lanes + LANES * self.out_lanes)
        bias = plan.buffer(op.groups * self.out_lanes)
        weight, block = self.tensors["weight"], plan.each_thread(256)
        plan.step(
            pack_forward, batch=BATCH, begin=weight.begin,
            bias_begin=self.tensors["bias"].begin if op.bias else -1, groups=op.groups, outputs=self.each_out,
            inputs=self.each_in, taps=self.taps, lanes=self.out_lanes, block=block[0], block_stride=block[1],
            out=packed, bias=bias,
        )  # fmt: skip
        return packed, bias

    def _input(self, x: Value, inputs: int) -> dict[str, Any]:
        channels, rows, columns = x.shape
        return x.read("x") | {"x_rows": rows, "x_columns": columns, "channels": channels, "inputs": inputs}

    def _output(self, out: Value, outputs: int, vectors: int) -> dict[str, Any]:
        group = padded(outputs) // (LANES * vectors)
        return {
            "group": group, "blocks": self.operator.groups * group, "outputs": outputs, "lanes": padded(outputs),
            "sample": out.sample, "width": out.shape[2] * out.shape[0], "batch": BATCH, "direct": 0, "bias_begin": -1,
            "w_input": LANES, "apart": self.operator.dilation[0], "apart_columns": self.operator.dilation[1],
        }  # fmt: skip

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Sum up the gradients of weight and bias; correlate the error with the transposed weights."""
        self._weight_gradient(plan, error)
        if self.operator.bias:
            gradient_of_channels(plan, error, self.tensors["bias"])
        return [self._input_error(plan, error) if wanted[0] else None]

    def _input_error(self, plan: Steps, error: Value) -> Value:
        op, sent = self.operator, self.inputs[0].error()
        turned = plan.buffer(op.groups * self.taps * self.out_lanes * self.in_lanes)
        packed = self._pack(plan)[0] if plan.two_vectors else self.packed
        plan.step(
            pack_transposed, packed=packed, groups=op.groups, taps=self.taps, inputs=self.each_in,
            in_lanes=self.in_lanes, out_lanes=self.out_lanes, out=turned,
        )  # fmt: skip
        for p, down in enumerate(self._positions(0)):
            for q, across in enumerate(self._positions(1)):
                if down[2] and across[2]:
                    self._error_of_positions(plan, error, sent, turned, (p, q), (down, across))
        return sent

    def _error_of_positions(
        self,
        plan: Steps,
        error: Value,
        sent: Value,
        turned: Buffer,
        position: tuple[int, int],
        reach: tuple[Reach, Reach],
    ) -> None:
        """Add the step for the input's positions strides apart from `position`; `reach` is what `_positions` says."""
        op, (p, q) = self.operator, position
        (first, taps, rows), (first_column, tap_columns, columns) = reach
        reached = spans(-1, 1, first_column, tap_columns, error.shape[2], columns, op.dilation[1])
        tile = tile_of(sent.samples, reached, self.each_in, self.work * sent.samples)
        (down, across), width, channels = op.stride, op.kernel[1], sent.shape[0]
        w_column = self.out_lanes * LANES
        begin = (p + op.padding[0]) % down * width + (q + op.padding[1]) % across
        weights = {
            "w": turned, "w_begin": begin * w_column, "w_group": self.taps * self.out_lanes * self.in_lanes,
            "w_tap": down * width * w_column, "w_column": across * w_column, "w_panel": self.taps * w_column,
            "bias": np.zeros(op.groups * self.in_lanes + LANES, np.float32),
        }  # fmt: skip
        plan.step(
            correlate(tile), **self._input(error, self.each_out), samples=sent.samples, rows=rows, columns=columns,
            scale=1, scale_columns=1, first=first, first_column=first_column, direction=-1, taps=taps,
            tap_columns=tap_columns, merged=0, **weights, **self._output(sent, self.each_in, tile.vectors),
            row=down * sent.row, row_at=p * sent.row, column=across * channels, column_at=q * channels,
            gap=0 if q else sent.halo * channels, out=sent,
        )  # fmt: skip

    def _weight_gradient(self, plan: Steps, error: Value) -> None:
        op, weight, mu = self.operator, self.tensors["weight"], plan.mu
        x, x_panels = self._in_panels(plan, self.inputs[0])
        e, e_panels = self._in_panels(plan, error, whole=True)
        _, rows, columns = self.outer
        if self.merged:
            run, runs, x_run = self.each_in // x_panels * op.kernel[1], x_panels, x.sample
        else:
            run, runs, x_run = self.each_in, op.kernel[1], op.dilation[1] * x.shape[0]
        tile = gradient_tile(run, self.each_out, self.work * mu)
        height, vectors, _ = tile
        heights = -(-run // height)
        lines = heights * height
        size = op.groups * op.kernel[0] * runs * lines * self.out_lanes
        apart = plan.shared(weight.name)
        at_once, sample = 1, x_panels * x.sample + e_panels * e.sample
        while at_once < mu and 8 * at_once * sample <= CACHE_BYTES and not apart:
            at_once *= 2
        level = (-(-mu // at_once) - 1).bit_length()
        total, levels = plan.buffer(size * (mu if apart else 1)), plan.buffer(1 if apart else size * level)
        band_levels, sample_levels = (-(-rows // BAND) - 1).bit_length(), (at_once - 1).bit_length()
        stack, stack_stride = plan.each_thread((band_levels + sample_levels) * height * vectors * LANES)
        nothing = np.zeros(columns * op.stride[1] * x.shape[0] + height + MARGIN, np.float32)
        plan.step(
            weight_gradient(tile), x=x, x_sample=x_panels * x.sample, x_row=x.row, x_rows=x.shape[1],
            x_run=x_run, channels=x.shape[0], nothing=nothing, e=e, e_sample=e_panels * e.sample, e_row=e.row,
            e_column=e.shape[0], e_panel=e.sample if e_panels > 1 else LANES, rows=rows, columns=columns,
            stride=op.stride[0], stride_columns=op.stride[1], first=-op.padding[0], first_column=-op.padding[1],
            apart=op.dilation[0], taps=op.kernel[0], runs=runs, heights=heights,
            widths=self.out_lanes // (LANES * vectors), groups=op.groups, inputs=self.each_in,
            group_outputs=self.each_out, lanes=self.out_lanes, samples=mu, at_once=at_once, own=apart, stack=stack,
            stack_stride=stack_stride, band_levels=band_levels, levels=levels, level=size, out=total,
        )  # fmt: skip
        block, block_stride = plan.each_thread(256)
        plan.step(
            unpack_gradient, batch=BATCH, groups=op.groups, outputs=self.each_out, inputs=self.each_in, taps=self.taps,
            tap_columns=op.kernel[1], tap_row=runs * lines, tap_column=x.shape[0] if self.merged else lines,
            panel=self.each_in // x_panels, panel_lines=lines, lanes=self.out_lanes, block=block,
            block_stride=block_stride, x=total, samples=mu if apart else 1, level=size, size=weight.size,
            **plan.gradient_fields(weight),
        )  # fmt: skip

    def _in_panels(self, plan: Steps, image: Value, *, whole: bool = False) -> tuple[Value, int]:
        """Return an image as panels of at most 16 channels and how many there are: the image itself if that is enough.

        What a tile reads lies together then, where tiles are small. If `whole`, all panels but the last have 16;
        otherwise all have as many.
        """
        channels, rows, columns = image.shape
        panels = -(-channels // LANES)
        if not PANELS or not self.merged or panels == 1 or (channels % panels and not whole):
            return image, 1
        width = LANES if whole else channels // panels
        out = image.like(samples=image.samples * panels, shape=(width, rows, columns))
        plan.step(
            write_panels, **image.read("x"), channels=channels, samples=image.samples, rows=rows, columns=columns,
            panels=panels, width=width, **out.written(),
        )  # fmt: skip
        return out, panels
