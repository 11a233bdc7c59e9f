"""Images of other sizes: pixels between others, and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fredsim.networks.capture.images import scales_of
from fredsim.networks.capture.places import pad
from fredsim.networks.capture.products import product_of
from fredsim.networks.capture.tensors import Fixed, Tensor, binary, named, traced
from fredsim.networks.capture.values import Builder, Size, Traced, UnsupportedError
from fredsim.networks.capture.views import moved, ordered
from fredsim.numerics.ops.arithmetic import Add

__all__: list[str] = []


def _along(to: Builder, x: Traced, dim: int, matrix: Any) -> Traced:
    """Return a tensor with each row along a dimension times a matrix."""
    last = len(x.dims) - 1
    values = matrix.detach().numpy().astype(np.float32)
    return moved(product_of(to, moved(x, dim, last), traced(to, Fixed(values))), last, dim)


@named("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d")
def upsample(to: Builder, x: Tensor, align_corners: bool, out: Sequence[Size], kind: str, **given: Any) -> Tensor:
    """Return an image whose pixels are sums of others: rows and columns times what PyTorch makes of single pixels."""
    import torch  # only here, so that the pages about operators are made without it

    found = traced(to, x)
    of_row = getattr(torch.ops.aten, "upsample_bilinear2d" if kind == "upsample_linear1d" else kind)
    for dim, scale in enumerate(scales_of(given, len(out) - 2), start=2):
        old, new = found.sizes[dim].count, out[dim].count
        ones = torch.eye(old).reshape(1, old, 1, old)
        found = _along(to, found, dim, of_row(ones, [1, new], align_corners, None, scale).reshape(old, new))
    return found


@named("conv_transpose2d")
def conv_transpose2d(
    to: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    groups: int = 1,
    *,
    out: Sequence[Size],
) -> Tensor:
    """Return the sum of what each pixel spreads: images of one part of the kernel each, as far apart as the stride."""
    found, w = traced(to, x), traced(to, weight)
    if groups != 1:
        raise UnsupportedError(f"has groups={groups}", "conv_transpose2d of one group")
    n, inputs, rows, columns = found.sizes
    _, outputs, *kernel = (size.count for size in w.sizes)
    down, right = (int(step) for step in (stride[0], stride[-1]))
    parts = -(-kernel[0] // down), -(-kernel[1] // right)
    w = traced(to, pad(to, w, (0, parts[1] * right - kernel[1], 0, parts[0] * down - kernel[0])))
    flat = to.viewed(w, [inputs, Size(outputs * parts[0] * down * parts[1] * right)])
    spread = product_of(to, traced(to, ordered(to, found, [0, 2, 3, 1])), flat)
    each = [Size(size) for size in (outputs, parts[0], down, parts[1], right)]
    apart = to.viewed(spread, [n, rows, columns, *each])
    turned = traced(to, ordered(to, apart, [4, 6, 0, 3, 1, 5, 2, 7]))  # parts down and right, n, outputs, rows, columns
    size = Size(rows.count * down), Size(columns.count * right)
    total: Tensor | None = None
    for i in range(parts[0]):
        for j in range(parts[1]):
            one = to.sliced(to.sliced(turned, 0, i, i + 1), 1, j, j + 1)
            image: Tensor = to.viewed(replace(one, dims=one.dims[2:]), [n, Size(outputs), *size])
            image = _placed(to, image, out, (i * down, j * right), padding)
            total = image if total is None else binary(to, Add(), total, image)
    assert total is not None
    if bias is None:
        return total
    return binary(to, Add(), total, to.viewed(traced(to, bias), [Size(outputs), Size(1), Size(1)]))


def _placed(to: Builder, x: Tensor, out: Sequence[Size], place: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return an image cut out of, or put into, one of the output's size, to which it begins at `place` − padding."""
    widths: list[int] = []
    for at, (begin, cut) in enumerate(zip(place, (padding[0], padding[-1]), strict=True)):
        before = begin - int(cut)
        widths = [before, out[2 + at].count - before - traced(to, x).sizes[2 + at].count, *widths]
    return pad(to, x, widths)
