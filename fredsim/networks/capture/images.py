"""Convolutions, pooling and means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fredsim.networks.capture.elements import maximum, minimum, scaled
from fredsim.networks.capture.places import pad
from fredsim.networks.capture.tensors import (
    Fixed,
    Given,
    Tensor,
    binary,
    named,
    tensors_of,
    traced,
    whole,
)
from fredsim.networks.capture.values import BATCH, Builder, Dim, Size, Traced, UnsupportedError, count_of, shown
from fredsim.networks.capture.views import repeated
from fredsim.numerics.ops.arithmetic import Mul
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d

__all__ = ["amax", "mean", "scales_of", "total"]


@named("conv1d", "conv2d")
def convolution(
    to: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> Traced:
    names = tensors_of(weight, bias)
    assert isinstance(weight, Given)
    outputs, _, *kernel = weight.shape
    flat = len(kernel) == 1
    pads = _padding(padding, kernel, dilation)
    operator = Conv2d(
        outputs, pair(kernel, flat), pair(stride, flat), pair(pads, flat, 0), groups, bias is not None, flat,
        pair(dilation, flat),
    )  # fmt: skip
    return _of_image(to, x, flat, lambda image: whole(to, image, operator, names))


def _padding(padding: Sequence[int] | str, kernel: Sequence[int], dilation: Sequence[int]) -> Sequence[int]:
    """Return padding as numbers."""
    if padding == "valid":
        return [0] * len(kernel)
    if padding == "same":
        apart = [int(dilation[-1])] * len(kernel) if len(dilation) == 1 else dilation
        reach = [by * (size - 1) for size, by in zip(kernel, apart, strict=True)]
        if any(each % 2 for each in reach):
            raise UnsupportedError(
                f"has padding 'same' and a kernel of {'×'.join(map(str, kernel))}, which would pad one side more"
            )
        return [each // 2 for each in reach]
    assert not isinstance(padding, str)
    return padding


def _of_image(to: Builder, x: Tensor, flat: bool, function: Callable[[Traced], Traced]) -> Traced:
    """Return what a function of images makes of x; if `flat`, of (n, channels, positions) as images of one row."""
    found = traced(to, x)
    if not flat:
        return function(found)
    if len(found.dims) != 3:
        raise UnsupportedError(f"is called with {shown(found)}; samples have channels and positions")
    image = to.sample_first(replace(found, dims=(*found.dims[:2], (), found.dims[2])))
    result = function(to.traced(image, found.batch is not None))
    return to.viewed(result, [*result.sizes[:2], result.sizes[3]])


def pair(sizes: Sequence[int], flat: bool, rows: int = 1) -> tuple[int, int]:
    """Return a size for rows and columns; of one dimension, if `flat`, that of `rows` and its own."""
    return (rows if flat else int(sizes[0])), int(sizes[-1])


@named("max_pool1d", "max_pool2d")
def max_pool(
    to: Builder,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *,
    kind: str,
) -> Traced:
    flat = kind.endswith("1d")
    operator = MaxPool2d(pair(kernel_size, flat), pair(stride or kernel_size, flat), pair(padding, flat, 0))
    return _of_image(to, x, flat, lambda image: _pooled(to, image, operator, ceil_mode))


@named("avg_pool1d", "avg_pool2d")
def avg_pool(
    to: Builder,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
    *,
    kind: str,
    out: Sequence[Size],
) -> Tensor:
    flat = kind.endswith("1d")
    operator = AvgPool2d(
        pair(kernel_size, flat), pair(stride or kernel_size, flat), pair(padding, flat, 0), count_include_pad
    )
    if divisor_override is None:
        return _of_image(to, x, flat, lambda image: _pooled(to, image, operator, ceil_mode))
    found = _pooled(to, x, replace(operator, count_padding=True), False)
    if ceil_mode and found.sizes != tuple(out):
        raise UnsupportedError("has divisor_override, and windows that reach over the edge")
    return scaled(to, found, math.prod(operator.kernel) / divisor_override)


def _pooled(to: Builder, x: Tensor, operator: MaxPool2d | AvgPool2d, ceil_mode: bool) -> Traced:
    """Return the result of a pooling; windows that reach over the edge, with `ceil_mode`, have what lies inside."""
    image = traced(to, x)
    beyond = [_beyond(size.count, operator, i) if ceil_mode else 0 for i, size in enumerate(image.sizes[-2:])]
    if not any(beyond):
        return whole(to, image, operator)
    value = -math.inf if isinstance(operator, MaxPool2d) else 0.0
    padded = pad(to, image, (0, beyond[1], 0, beyond[0]), value=value)
    if isinstance(operator, MaxPool2d):
        return whole(to, padded, operator)
    found = whole(to, padded, replace(operator, count_padding=True))
    down, across = (
        [_inside(size.count, operator, i, at) for at in range(out.count)]
        for i, (size, out) in enumerate(zip(image.sizes[-2:], found.sizes[-2:], strict=True))
    )
    by = math.prod(operator.kernel) / np.outer(down, across)
    return binary(to, Mul(), found, Fixed(by.astype(np.float32)))


def _beyond(size: int, operator: MaxPool2d | AvgPool2d, axis: int) -> int:
    """Return how many pixels behind the padding the last window has; it begins in the image, or before it."""
    kernel, stride, padding = operator.kernel[axis], operator.stride[axis], operator.padding[axis]
    count = -(-(size + 2 * padding - kernel) // stride) + 1
    if (count - 1) * stride >= size + padding:
        count -= 1
    return max(0, (count - 1) * stride + kernel - size - 2 * padding)


def _inside(size: int, operator: AvgPool2d, axis: int, at: int) -> int:
    """Return how many pixels of a window count."""
    kernel, stride, padding = operator.kernel[axis], operator.stride[axis], operator.padding[axis]
    begin = at * stride - padding
    if operator.count_padding:
        return min(begin + kernel, size + padding) - begin
    return min(begin + kernel, size) - max(begin, 0)


@named("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def adaptive_avg_pool(to: Builder, x: Tensor, output_size: Sequence[int], kind: str) -> Traced:
    flat = kind.endswith("1d")
    operator = AdaptiveAvgPool2d(size=pair(output_size, flat))
    return _of_image(to, x, flat, lambda image: whole(to, image, operator))


def scales_of(given: Mapping[str, Any], count: int) -> Sequence[float | None]:
    """Return by what an image's `count` axes grow, as far as a call says it in one of PyTorch's two ways."""
    keys = ("scales", "scales_d", "scales_h", "scales_w")
    return given.get("scale_factors") or [given[key] for key in keys if key in given] or [None] * count


@named("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def upsample_nearest(to: Builder, x: Tensor, out: Sequence[Size], **given: Any) -> Tensor:
    """Return an image, each of whose pixels is repeated."""
    found = traced(to, x)
    for old, new, scale in zip(found.sizes[2:], out[2:], scales_of(given, len(out) - 2), strict=True):
        if scale is not None and scale * old.count != new.count:
            raise UnsupportedError(f"makes {new.count} of {old.count} pixels by {scale:g}, which is no whole factor")
    sizes, counts = [*found.sizes[:2]], [size.count for size in found.sizes[:2]]
    for old, new in zip(found.sizes[2:], out[2:], strict=True):
        if new.count % old.count:
            raise UnsupportedError(f"makes {new.count} of {old.count} pixels, which is no whole factor")
        sizes += [old, Size(1)]
        counts += [old.count, new.count // old.count]
    return to.viewed(repeated(to, to.viewed(found, sizes), counts), out)


def _reduced(
    to: Builder, x: Tensor, dim: Sequence[int] | None, keepdim: bool, make: Callable[[int, int], Operator]
) -> Traced:
    """Return what the operator that `make` returns, for images of so many rows and columns, makes of dimensions."""
    found = traced(to, x)
    count = len(found.dims)
    gone = sorted({i % count for i in dim} if dim else range(count))
    if any(BATCH in found.dims[i] for i in gone):
        raise UnsupportedError("is taken over samples")
    kept = [i for i in range(count) if i not in gone]
    own = [found.dims[i] for i in kept if found.dims[i] != (BATCH,)]
    image = gone == [2, 3] and count == 4 and found.dims[0] == (BATCH,)
    if image:
        value = to.arranged(found, found.dims[1:])
    else:
        flat: Dim = tuple(axis for d in own for axis in d if axis is not BATCH)
        value = to.arranged(found, [flat, tuple(axis for i in gone for axis in found.dims[i]), ()])
    _, rows, columns = to.shapes[value]
    value = to.add(make(rows, columns), value)
    sizes = [replace(size, count=1) if i in gone else size for i, size in enumerate(found.sizes)]
    lead = tuple(found.dims[i] for i in kept)
    value = to.reshaped(value, tuple(count_of(tuple(a for a in d if a is not BATCH)) for d in own))
    result = to.of_rows(value, lead, 0)
    return to.viewed(result, sizes) if keepdim else result


@named("mean")
def mean(to: Builder, x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Traced:
    """Return the means over dimensions, all if none is given."""
    return _reduced(to, x, dim, keepdim, lambda *_: AdaptiveAvgPool2d())


@named("amax")
def amax(to: Builder, x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Traced:
    """Return the largest elements over dimensions, all if none is given."""
    return _reduced(to, x, dim, keepdim, lambda *image: MaxPool2d(image, image))


@named("amin")
def amin(to: Builder, x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return scaled(to, amax(to, scaled(to, x, -1.0), dim, keepdim), -1.0)


@named("max", "min")
def extreme(
    to: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False, other: Tensor | None = None, *, kind: str
) -> Tensor | tuple[Tensor | None, ...]:
    if other is not None:
        return (maximum if kind == "max" else minimum)(to, x, other)
    if dim is None:
        raise UnsupportedError("is taken over samples", "amax")
    return (amax if kind == "max" else amin)(to, x, (dim,), keepdim), None


@named("adaptive_max_pool2d", "adaptive_max_pool1d")
def adaptive_max_pool(to: Builder, x: Tensor, output_size: Sequence[int], kind: str) -> tuple[Tensor | None, ...]:
    found = traced(to, x)
    sizes = [size.count for size in found.sizes[-len(output_size) :]]
    if any(size % int(new) for size, new in zip(sizes, output_size, strict=True)):
        raise UnsupportedError(
            f"makes {'×'.join(map(str, output_size))} windows of {'×'.join(map(str, sizes))}, not of one size",
            "max_pool2d",
        )
    kernel = [size // int(new) for size, new in zip(sizes, output_size, strict=True)]
    return max_pool(to, found, kernel, kind=kind), None


@named("sum")
def total(to: Builder, x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Return the sums over dimensions: the means times the number of elements."""
    found = traced(to, x)
    chosen = dim if dim else range(len(found.dims))
    count = math.prod(found.sizes[i].count for i in {i % len(found.dims) for i in chosen})
    return scaled(to, mean(to, found, dim, keepdim), float(count))
