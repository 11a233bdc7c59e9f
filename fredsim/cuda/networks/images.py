"""Convolutions and pooling of images on a device: sources/networks/convolution.cu and pooling.cu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.buffers import Buffer
from fredsim.cuda.networks.operator import MOST_BANDS, OperatorKernels
from fredsim.cuda.networks.steps import Choice, Given, Steps, Value, blocks_for
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fredsim.numerics.ops.sums import BAND

__all__ = ["ConvolutionKernels", "PoolingKernels"]

FAMILY = "networks/convolution"
#: The blocks for positions, and fields.
Part = tuple[int, dict[str, Any]]
#: The tiles of a pass, the largest first: rows and columns, by which they are named; and the rows of a gradient's.
TILES, ROWS = ((64, 64), (64, 32), (64, 16), (32, 16)), 64


class ConvolutionKernels(OperatorKernels):
    """fredsim.numerics.ops.conv2d.Conv2d."""

    def _fields(self) -> dict[str, Any]:
        operator, (channels, rows, columns) = self.operator, self.shapes[0]
        outputs, out_rows, out_columns = operator.shape(*self.shapes)
        weight, bias = self.tensors["weight"], self.tensors.get("bias")
        return {
            "held": Given.HELD, "weight": weight.begin, "bias": -1 if bias is None else bias.begin,
            "channels": channels, "rows": rows, "columns": columns, "outputs": outputs, "out_rows": out_rows,
            "out_columns": out_columns, "groups": operator.groups, "each": weight.size // outputs,
            "stride_rows": operator.stride[0], "stride_columns": operator.stride[1],
            "pad_rows": operator.padding[0], "pad_columns": operator.padding[1],
        }  # fmt: skip

    def _taps(self, channels: int) -> Sequence[NDArray[np.int64]]:
        """Return r, c, and channel of the terms of a sum, in their order."""
        return [one.reshape(-1) for one in np.indices((*self.operator.kernel, channels))]

    def _of_inputs(self) -> NDArray[np.int32]:
        """Return (length, 4): of each term r, c, how far what it meets is from the first, and so its weight."""
        channels, rows, columns = self.shapes[0]
        r, c, channel = self._taps(channels // self.operator.groups)
        height, width = self.operator.kernel
        places = channel * height * width + r * width + c
        r, c = r * self.operator.dilation[0], c * self.operator.dilation[1]
        return np.stack([r, c, (channel * rows + r) * columns + c, places], axis=1).astype(np.int32)

    def _classes(
        self, plan: Steps, fields: dict[str, Any], tile: int
    ) -> tuple[int, NDArray[np.int32], NDArray[np.int32]]:
        """Return the blocks for the positions of x, and their classes (n, 5) and terms, as Convolution has them.

        x at (stride·y + first row, …) meets the place (r, c) of the kernel at the output (y + (first row + padding −
        r)/stride, …), if that is whole.
        """
        (step, across), (pad, beside), width = self.operator.stride, self.operator.padding, self.operator.kernel[1]
        r, c, channel = self._taps(fields["outputs"] // fields["groups"])
        blocks, first, classes, terms = 0, 0, [], []
        for row, column in np.ndindex(step, across):
            down, right = row + pad - r * self.operator.dilation[0], column + beside - c * self.operator.dilation[1]
            meet = (down % step == 0) & (right % across == 0)
            y, x = down[meet] // step, right[meet] // across
            offset = (channel[meet] * fields["out_rows"] + y) * fields["out_columns"] + x
            places = channel[meet] * fields["each"] + (r * width + c)[meet]
            terms.append(np.stack([y, x, offset, places], axis=1))
            rows, columns = (fields["rows"] - row - 1) // step + 1, (fields["columns"] - column - 1) // across + 1
            classes.append((blocks, first, len(y), rows, columns))
            blocks, first = blocks + -(-plan.mu * rows * columns // tile), first + len(y)
        return blocks, np.array(classes, np.int32), np.concatenate(terms).astype(np.int32)

    @classmethod
    def why_not(cls, operator: Operator, shapes: Sequence[Shape]) -> str:
        """Return that the output has too many rows, if so: the sums of their bands would have no room."""
        return f"more than {MOST_BANDS * BAND} rows" if operator.shape(*shapes)[1] > MOST_BANDS * BAND else ""

    def _add(self, plan: Steps, name: str, columns: int, part: Callable[[int], Part], /, **fields: Any) -> None:
        """Add a pass with so many columns in each group; `part` gives what depends on how many rows a tile has."""
        choices = []
        for rows, width in TILES:
            if width < 2 * columns or width == TILES[-1][1]:
                tiles, (blocks, own) = -(-columns // width), part(rows)
                whole = blocks, self.operator.groups * tiles
                choices.append(Choice(FAMILY, f"{name}_{rows}_{width}", whole, own | {"tiles": tiles}))
        plan.choose(choices, **fields)

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        fields = self._fields() | {"x": inputs[0], "out": out, "mu": plan.mu, "terms": plan.table(self._of_inputs())}
        positions = plan.mu * fields["out_rows"] * fields["out_columns"]
        self._add(
            plan, "convolve", fields["outputs"] // fields["groups"], lambda rows: (-(-positions // rows), {}), **fields
        )
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        fields = self._fields() | {"errors": error, "mu": plan.mu}
        groups, x = fields["groups"], self.inputs[0]
        own = fields["outputs"] // groups
        width = 16 if own <= 16 else 32
        tiles, tensors, terms = -(-own // width), list(self.tensors.values()), self._of_inputs()
        across = -(-(fields["each"] + len(tensors) - 1) // ROWS)
        plan.sum_samples(
            FAMILY, f"convolution_weights_{width}", across * tiles * groups, tensors,
            of=fields | {"x": x, "terms": plan.table(terms[np.argsort(terms[:, 3])]), "tiles": tiles},
        )  # fmt: skip
        if not wanted[0]:
            return [None]
        sent = x.like()

        def part(rows: int) -> Part:
            blocks, classes, terms = self._classes(plan, fields, rows)
            return blocks, {"classes": plan.table(classes), "terms": plan.table(terms)}

        self._add(plan, "convolve_back", fields["channels"] // groups, part, **fields, out=sent)
        return [sent]


class PoolingKernels(OperatorKernels):
    """MaxPool2d, AvgPool2d and AdaptiveAvgPool2d of fredsim.numerics.ops.pooling."""

    operator: MaxPool2d | AvgPool2d | AdaptiveAvgPool2d
    _places: Buffer | None = None

    def _fields(self, plan: Steps) -> dict[str, Any]:
        shape = self.shapes[0]
        channels, out_rows, out_columns = self.operator.shape(shape)
        windows = np.array(self.operator._windows(shape)).reshape(out_rows, out_columns, 4)
        rows, columns = windows[:, 0, :2], windows[0, :, 2:]
        spans = [rows, columns, *(_covering(one, size) for one, size in zip((rows, columns), shape[1:], strict=True))]
        divisor = 0
        if isinstance(self.operator, AvgPool2d) and self.operator.count_padding:
            divisor = self.operator.kernel[0] * self.operator.kernel[1]
        return {
            "spans": plan.table(np.concatenate(spans).astype(np.int32)), "images": plan.mu * channels,
            "rows": shape[1], "columns": shape[2], "out_rows": out_rows, "out_columns": out_columns,
            "divisor": divisor,
        }  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add the windows' numbers; of the largest, keep where they are."""
        fields = self._fields(plan) | {"x": inputs[0], "out": out}
        name = "mean_of_windows"
        if isinstance(self.operator, MaxPool2d):
            name, self._places = "largest_of_windows", Buffer(out.size)
            fields["places"] = self._places
        plan.step("networks/pooling", name, blocks_for(out.size), **fields)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Add the sums over the windows that an element is in."""
        sent = self.inputs[0].like()
        fields = self._fields(plan) | {"errors": error, "out": sent}
        name = "mean_of_windows_back"
        if self._places is not None:
            name = "largest_of_windows_back"
            fields["places"] = self._places
        plan.step("networks/pooling", name, blocks_for(sent.size), **fields)
        return [sent]


def _covering(spans: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return, for each of `size` places, the first span (n, 2) that covers it, and the one behind the last."""
    places = np.arange(size)[:, None]
    covers = (spans[:, 0] <= places) & (places < spans[:, 1])
    first = np.where(covers.any(axis=1), covers.argmax(axis=1), 0)
    behind: NDArray[np.int64] = np.stack([first, first + covers.sum(axis=1)], axis=1)
    return behind
