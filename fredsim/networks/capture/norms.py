"""Norms, variances, and lengths of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fredsim.networks.capture.elements import absolute, pointwise, reciprocal, scaled, square
from fredsim.networks.capture.images import mean, total
from fredsim.networks.capture.tensors import (
    Fixed,
    Given,
    Tensor,
    as_float,
    binary,
    dense,
    named,
    tensors_of,
    traced,
    whole,
)
from fredsim.networks.capture.values import Builder, Size, Traced, UnsupportedError
from fredsim.numerics.ops.arithmetic import Add, Mul
from fredsim.numerics.ops.norms import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import Sqrt

__all__: list[str] = []


def _affine(to: Builder, x: Traced, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Traced:
    """Return x·γ + β, for parameters of which one is missing, or that an operator does not take; `shape` is theirs."""
    for operator, given in ((Mul(), weight), (Add(), bias)):
        if given is not None:
            given = to.viewed(traced(to, given), [Size(size) for size in shape])
            x = binary(to, operator, x, given)
    return x


def _normalized(
    to: Builder, x: Tensor, operator: Any, weight: Tensor | None, bias: Tensor | None
) -> tuple[Traced, int]:
    """Return the result of a norm over channels, whose tensors have one element a channel, and the norm's own value.

    `operator` is affine.
    """
    both = isinstance(weight, Given) and isinstance(bias, Given) and not (weight.rows or bias.rows)
    if both:
        normal = whole(to, x, operator, tensors_of(weight, bias))
        return normal, normal.value
    found = traced(to, x)
    channels = (found.sizes[1].count, *[1] * (len(found.dims) - 2))
    normal = whole(to, found, replace(operator, affine=False))
    return _affine(to, normal, weight, bias, channels), normal.value


@named("group_norm")
def group_norm(
    to: Builder,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Traced:
    return _normalized(to, x, GroupNorm(num_groups, eps), weight, bias)[0]


@named("instance_norm")
def instance_norm(
    to: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    eps: float,
) -> Traced:
    if not use_input_stats:
        raise UnsupportedError("normalizes by running statistics", "group_norm")
    return _normalized(to, x, GroupNorm(traced(to, x).sizes[1].count, eps), weight, bias)[0]


@named("batch_norm")
def batch_norm(
    to: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Traced:
    if training:
        mean, variance = (getattr(one, "name", "") for one in (running_mean, running_var))
        found, norm = _normalized(to, x, BatchNorm(eps), weight, bias)
        to.running.setdefault(norm, []).append((mean, variance, momentum))
        return found
    if not isinstance(running_mean, Fixed) or not isinstance(running_var, Fixed):
        raise UnsupportedError("normalizes by statistics that are no buffers")
    found = traced(to, x)
    shape = (-1, *[1] * (len(found.dims) - 2))
    r = np.float32(1) / np.sqrt(as_float(running_var.values) + np.float32(eps))
    apart = binary(to, Add(), found, Fixed(-as_float(running_mean.values).reshape(shape)))
    normal = binary(to, Mul(), apart, Fixed(r.reshape(shape)))
    return _affine(to, normal, weight, bias, (found.sizes[1].count, *shape[1:]))


@named("layer_norm")
def layer_norm(
    to: Builder,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Traced:
    if len(normalized_shape) == 1 and isinstance(weight, Given) and isinstance(bias, Given):
        return dense(to, x, LayerNorm(eps), tensors_of(weight, bias))
    normal = _over_last(to, x, normalized_shape, LayerNorm(eps, affine=False))
    return _affine(to, normal, weight, bias, normalized_shape)


@named("rms_norm")
def rms_norm(
    to: Builder, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Traced:
    each = float(np.finfo(np.float32).eps) if eps is None else eps
    if len(normalized_shape) == 1 and isinstance(weight, Given):
        return dense(to, x, RmsNorm(each), tensors_of(weight, None))
    normal = _over_last(to, x, normalized_shape, RmsNorm(each, affine=False))
    return _affine(to, normal, weight, None, normalized_shape)


def _over_last(to: Builder, x: Tensor, shape: Sequence[int], operator: Operator) -> Traced:
    found = traced(to, x)
    lead = found.sizes[: len(found.dims) - len(shape)]
    flat = to.viewed(found, [*lead, Size(math.prod(shape))])
    return to.viewed(dense(to, flat, operator, {}), found.sizes)


@named("var")
def variance(
    to: Builder,
    x: Tensor,
    dim: Sequence[int] | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
) -> Tensor:
    """Return the mean of the squared differences from the mean, times N/(N − correction)."""
    found = traced(to, x)
    chosen = {i % len(found.dims) for i in (dim or range(len(found.dims)))}
    count = math.prod(found.sizes[i].count for i in chosen)
    lacks = float(unbiased) if correction is None else correction
    if count <= lacks:
        raise UnsupportedError(f"is of {count} numbers, too few")
    apart = binary(to, Add(), found, scaled(to, mean(to, found, dim, True), -1.0))
    return scaled(to, mean(to, square(to, apart), dim, keepdim), count / (count - lacks))


def _root(to: Builder, x: Tensor) -> Traced:
    """Return the root of a sum of squares, whose gradient is 0 where all are 0, as PyTorch's."""
    return pointwise(to, x, Sqrt(flat=True))


@named("std")
def deviation(to: Builder, x: Tensor, **given: Any) -> Tensor:
    known = ("dim", "unbiased", "keepdim", "correction")
    return _root(to, variance(to, x, **{key: given[key] for key in known if key in given}))


@named("linalg_vector_norm", "norm")
def norm(
    to: Builder,
    x: Tensor,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    p: float | None = None,
) -> Tensor:
    if (kind := order if p is None else p) not in {1, 2}:
        raise UnsupportedError(f"is the norm of order {kind}", "that of order 2")
    return total(to, absolute(to, x), dim, keepdim) if kind == 1 else _root(to, total(to, square(to, x), dim, keepdim))


@named("_weight_norm")
def weight_norm(to: Builder, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    others = [i for i in range(len(traced(to, v).dims)) if dim == -1 or i != dim]  # −1: PyTorch's number for none
    return binary(to, Mul(), v, binary(to, Mul(), g, reciprocal(to, norm(to, v, 2, others, True))))
