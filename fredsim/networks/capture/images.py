"""Convolutions, pooling and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fredsim.networks.capture.elements import scaled
from fredsim.networks.capture.tensors import (
    Given,
    Tensor,
    named,
    tensors_of,
    traced,
    whole,
)
from fredsim.networks.capture.values import BATCH, Builder, Dim, Traced, UnsupportedError, count_of
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d

__all__: list[str] = []


@named("conv2d")
def conv2d(
    to: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] | str = (0, 0),
    groups: int = 1,
) -> Traced:
    names = tensors_of(weight, bias)
    assert isinstance(weight, Given)
    outputs, _, rows, columns = weight.shape
    if padding == "valid":
        padding = (0, 0)
    elif padding == "same":
        if not (rows % 2 and columns % 2):
            raise UnsupportedError(
                f"has padding 'same' and a kernel of {rows}×{columns}, which would pad one side more"
            )
        padding = (rows // 2, columns // 2)
    assert not isinstance(padding, str)
    operator = Conv2d(outputs, (rows, columns), pair(stride), pair(padding), groups, bias is not None)
    return whole(to, x, operator, names)


def pair(sizes: Sequence[int]) -> tuple[int, int]:
    """Return a size for rows and columns."""
    return int(sizes[0]), int(sizes[-1])


@named("max_pool2d")
def max_pool2d(
    to: Builder,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
) -> Traced:
    operator = MaxPool2d(pair(kernel_size), pair(stride or kernel_size), pair(padding))
    return _pooled(to, x, operator, ceil_mode)


@named("avg_pool2d")
def avg_pool2d(
    to: Builder,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Traced:
    operator = AvgPool2d(pair(kernel_size), pair(stride or kernel_size), pair(padding), count_include_pad)
    return _pooled(to, x, operator, ceil_mode)


def _pooled(to: Builder, x: Tensor, operator: MaxPool2d | AvgPool2d, ceil_mode: bool) -> Traced:
    found = whole(to, x, operator)
    if ceil_mode:
        image = traced(to, x).sizes[-2:]
        for size, pad, kernel, stride in zip(image, operator.padding, operator.kernel, operator.stride, strict=True):
            if (size.count + 2 * pad - kernel) % stride:
                raise UnsupportedError("has ceil_mode=True, and a window that would reach over the edge")
    return found


@named("adaptive_avg_pool2d")
def adaptive_avg_pool2d(to: Builder, x: Tensor, output_size: Sequence[int]) -> Traced:
    return whole(to, x, AdaptiveAvgPool2d(size=pair(output_size)))


@named("mean")
def mean(to: Builder, x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Traced:
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
    value = to.add(AdaptiveAvgPool2d(), value)
    sizes = [replace(size, count=1) if i in gone else size for i, size in enumerate(found.sizes)]
    lead = tuple(found.dims[i] for i in kept)
    value = to.reshaped(value, tuple(count_of(tuple(a for a in d if a is not BATCH)) for d in own))
    result = to.of_rows(value, lead, 0)
    return to.viewed(result, sizes) if keepdim else result


@named("sum")
def total(to: Builder, x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    found = traced(to, x)
    chosen = dim if dim else range(len(found.dims))
    count = math.prod(found.sizes[i].count for i in {i % len(found.dims) for i in chosen})
    return scaled(to, mean(to, found, dim, keepdim), float(count))
