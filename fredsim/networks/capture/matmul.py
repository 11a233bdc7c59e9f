"""Products of matrices, which may be dense layers or the end of an attention."""

from __future__ import annotations

from fredsim.networks.capture.attention import fused
from fredsim.networks.capture.products import linear, product_of, turned
from fredsim.networks.capture.tensors import (
    Given,
    Tensor,
    binary,
    named,
    traced,
    turned_matrix,
)
from fredsim.networks.capture.values import BATCH, Builder, Traced
from fredsim.numerics.ops.arithmetic import Add

__all__: list[str] = []


@named("matmul", "mm", "bmm")
def matmul(to: Builder, x: Tensor, other: Tensor) -> Traced:
    if isinstance(other, Given) and len(other.shape) == 2 and not other.rows:
        return linear(to, x, turned_matrix(other))
    if isinstance(x, Given) and len(x.shape) == 2 and isinstance(other, Traced) and BATCH in other.dims[-1]:
        return turned(linear(to, turned(other), x))
    return fused(to, x, other) or product_of(to, traced(to, x), traced(to, other))


@named("addmm")
def addmm(to: Builder, x: Tensor, mat1: Tensor, other: Tensor) -> Traced:
    if isinstance(other, Given):
        return linear(to, mat1, turned_matrix(other), x)
    return binary(to, Add(), matmul(to, mat1, other), x)


@named("baddbmm")
def baddbmm(to: Builder, x: Tensor, batch1: Tensor, batch2: Tensor) -> Traced:
    return binary(to, Add(), matmul(to, batch1, batch2), x)
