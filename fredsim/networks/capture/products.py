"""Dense layers, and products of two tensors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fredsim.networks.capture.tensors import (
    Fixed,
    Given,
    Tensor,
    binary,
    dense,
    named,
    traced,
)
from fredsim.networks.capture.values import BATCH, Builder, Traced, UnsupportedError, shown
from fredsim.networks.capture.views import moved, repeated
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.products import MatMul

__all__ = ["linear", "product_of", "turned"]


@named("linear")
def linear(to: Builder, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Traced:
    """Return x·weightᵀ + bias, as torch.nn.functional.linear does."""
    if isinstance(weight, Given) and weight.rows:
        own = bias.rows if isinstance(bias, Given) else None
        if bias is not None and own != weight.rows:
            return linear(to, x, traced(to, weight), bias)
        wide = linear(to, x, replace(weight, rows=None), replace(bias, rows=None) if isinstance(bias, Given) else None)
        return to.sliced(wide, len(wide.dims) - 1, *weight.rows)
    if not isinstance(weight, Given):
        found = product_of(to, traced(to, x), turned(traced(to, weight)))
        return found if bias is None else binary(to, Add(), found, bias)
    if bias is not None and (not isinstance(bias, Given) or bias.rows):
        return binary(to, Add(), linear(to, x, weight), bias)
    names = {"weight": weight.name} | ({"bias": bias.name} if isinstance(bias, Given) else {})
    outputs = weight.shape[0]
    operator = Linear(outputs, bias is not None, "in_out" if weight.turned else "out_in")
    return dense(to, x, operator, names)


@named("cumsum")
def cumsum(to: Builder, x: Tensor, dim: int) -> Traced:
    """Return the products of rows with a triangle of ones."""
    found = traced(to, x)
    last, at = len(found.dims) - 1, dim % len(found.dims)
    count = found.sizes[at].count
    triangle = Fixed(np.triu(np.ones((count, count), np.float32)))
    return moved(product_of(to, moved(found, at, last), traced(to, triangle)), last, at)


def product_of(to: Builder, a: Traced, b: Traced) -> Traced:
    """Return a·b of traced tensors, as torch.matmul does."""
    if len(a.dims) < 2 or len(b.dims) < 2:
        raise UnsupportedError(
            f"takes a vector: {shown(a)} and {shown(b)}", "a matrix of one row or column, as v[:, None]"
        )
    if BATCH in a.dims[-1] or BATCH in b.dims[-2]:
        raise UnsupportedError(f"sums over samples: {shown(a)} and {shown(b)}")
    if BATCH in b.dims[-1]:
        if a.batch is not None:
            raise UnsupportedError(f"multiplies samples with one another: {shown(a)} and {shown(b)}")
        return turned(product_of(to, turned(b), turned(a)))
    if b.batch is None and len(b.dims) == 2:
        rows, kept_dims = to.rows(a)
        shape = to.shapes[rows]
        found = to.add(MatMul(), to.reshaped(rows, (math.prod(shape[:-1]), shape[-1])), to.sample_first(b))
        return to.of_rows(to.reshaped(found, (*shape[:-1], to.shapes[found][-1])), kept_dims)
    count = max(len(a.dims), len(b.dims))
    a, b = (replace(x, dims=((),) * (count - len(x.dims)) + x.dims) for x in (a, b))
    lead = [max(one.count, other.count) for one, other in zip(a.sizes[:-2], b.sizes[:-2], strict=True)]
    a, b = (repeated(to, x, [*lead, *(size.count for size in x.sizes[-2:])]) for x in (a, b))
    # Together as with one more dimension, which the other lacks, so that all but the last two are alike.
    values, dims, kept = to.together(replace(a, dims=(*a.dims, ())), replace(b, dims=(*b.dims[:-2], (), *b.dims[-2:])))
    (*rows_of, k, _), shape = (to.shapes[value] for value in values)
    of_sample = () if count - 2 in kept else (1,)  # each sample is a row
    left = to.reshaped(values[0], (*rows_of, *of_sample, k))
    right = to.reshaped(values[1], shape if of_sample else (*shape[:-3], *shape[-2:]))
    product = to.add(MatMul(), left, right)
    product = to.reshaped(product, (*rows_of, to.shapes[product][-1]))
    return to.of_together(product, (*dims[:-2], ()), [i for i in kept if i < len(dims) - 1])


def turned(x: Traced) -> Traced:
    """Return a tensor whose last two dimensions have changed places."""
    return replace(x, dims=(*x.dims[:-2], *x.dims[:-3:-1]))
