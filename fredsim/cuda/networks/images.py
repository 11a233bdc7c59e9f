"""Convolutions and pooling of images on a device: sources/networks/convolution.cu and pooling.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.networks.operator import OperatorKernels
from fredsim.cuda.networks.steps import Buffer, Choice, Given, Steps, Value, blocks_for
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d

__all__ = ["ConvolutionKernels", "PoolingKernels"]

#: The rows of a tile, and its widths, the largest first.
ROWS, WIDTHS = 64, (64, 32, 16)
#: The samples of a group whose gradients one block sums.
EACH = 4


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

    def _terms(self, channels: int, step: int, columns: int, apart: int) -> NDArray[np.int32]:
        """Return (length, 4): of each term r, c, and how far what it meets, and its weight, are from the first's.

        `channels` are `step` apart in an image of so many columns, and their weights `apart`. Terms are in the order of
        the sums: the kernel's row, its column, the channel ascending. With no columns, r and c are left out of how far.
        """
        height, width = self.operator.kernel
        r, c, channel = (one.reshape(-1) for one in np.indices((height, width, channels)))
        meets = channel * step + (r * columns + c if columns else 0)
        return np.stack([r, c, meets, channel * apart + r * width + c], axis=1).astype(np.int32)

    def _of_inputs(self, channels: int) -> NDArray[np.int32]:
        _, rows, columns = self.shapes[0]
        height, width = self.operator.kernel
        return self._terms(channels, rows * columns, columns, height * width)

    def _add(self, plan: Steps, name: str, rows: int, columns: int, /, **fields: Any) -> None:
        """Add a pass whose sums are `rows` by `columns` in each group."""
        groups, choices = self.operator.groups, []
        for width in WIDTHS:
            if width < 2 * columns or width == WIDTHS[-1]:
                tiles = -(-columns // width)
                blocks = -(-rows // ROWS), groups * tiles
                choices.append(Choice("networks/convolution", f"{name}_{width}", blocks, {"tiles": tiles}))
        plan.choose(choices, **fields)

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add the sums over kernels and channels."""
        fields, own = self._fields(), self.shapes[0][0] // self.operator.groups
        fields |= {"x": inputs[0], "out": out, "mu": plan.mu, "terms": plan.table(self._of_inputs(own))}
        rows = plan.mu * fields["out_rows"] * fields["out_columns"]
        self._add(plan, "convolve", rows, fields["outputs"] // fields["groups"], **fields)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Add the gradients of weights, then the error of the input."""
        fields = self._fields() | {"errors": error, "mu": plan.mu}
        groups, x = fields["groups"], self.inputs[0]
        own = fields["outputs"] // groups
        terms = self._of_inputs(fields["channels"] // groups)
        in_memory = terms[np.argsort(terms[:, 3])]
        width = 16 if own <= 16 else 32
        tiles, tensors = -(-own // width), list(self.tensors.values())
        across = -(-(fields["each"] + len(tensors) - 1) // ROWS)
        plan.sum_samples(
            "networks/convolution", f"convolution_weights_{width}", across * tiles * groups, tensors, EACH,
            of=fields | {"x": x, "terms": plan.table(in_memory), "tiles": tiles},
        )  # fmt: skip
        if not wanted[0]:
            return [None]
        sent = x.like()
        strides = "" if self.operator.stride == (1, 1) else "_strides"
        terms = self._terms(own, fields["out_rows"] * fields["out_columns"], 0, fields["each"])
        fields |= {"out": sent, "terms": plan.table(terms)}
        rows = plan.mu * fields["rows"] * fields["columns"]
        self._add(plan, f"convolve_back{strides}", rows, fields["channels"] // groups, **fields)
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
        if not wanted[0]:
            return [None]
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

