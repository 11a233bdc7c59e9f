"""Embedding, softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fredsim.networks.capture.elements import LARGEST, SHARED, clamp, detach, dropout, exp, log, scaled
from fredsim.networks.capture.images import amax, total
from fredsim.networks.capture.products import product_of, turned
from fredsim.networks.capture.tensors import (
    Fixed,
    Given,
    Tensor,
    binary,
    dense,
    named,
    parameter,
    traced,
)
from fredsim.networks.capture.values import BATCH, Builder, Size, Traced, UnsupportedError, shown
from fredsim.networks.capture.views import moved
from fredsim.numerics.ops.arithmetic import Add, Keep, Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.operator import Array
from fredsim.numerics.ops.pointwise import Scale
from fredsim.numerics.ops.products import LogSoftmax, MatMul, Softmax

__all__ = ["fused"]


@named("softmax", "log_softmax")
def softmax(to: Builder, x: Tensor, dim: int, kind: str = "softmax") -> Traced:
    found, operator = traced(to, x), Softmax() if kind == "softmax" else LogSoftmax()
    last = moved(found, dim, len(found.dims) - 1)
    return moved(dense(to, last, operator, {}), len(found.dims) - 1, dim)


@named("logsumexp")
def logsumexp(to: Builder, x: Tensor, dim: Sequence[int], out: Sequence[Size], keepdim: bool = False) -> Traced:
    """Return log Σ exp(x − m) + m, where m is the largest; it is finite, so that −∞ alone gives −∞."""
    del keepdim  # the result's sizes say it
    found = traced(to, x)
    most = clamp(to, detach(to, amax(to, found, dim, True)), -LARGEST, LARGEST)
    apart = binary(to, Add(), found, scaled(to, most, -1.0))
    return to.viewed(binary(to, Add(), log(to, total(to, exp(to, apart), dim, True)), most), out)


@named("embedding")
def embedding(to: Builder, weight: Tensor, indices: Tensor, padding_idx: int = -1) -> Traced:
    name = parameter(weight, "weight")
    assert isinstance(weight, Given)
    rows, width = weight.shape
    operator = Embedding(rows, width, padding_idx if padding_idx >= 0 else None)
    value, lead = to.rows(traced(to, indices), 0)
    return to.of_rows(to.add(operator, value, tensors={"weight": name}), lead)


@named("scaled_dot_product_attention")
def attention(
    to: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Traced:
    q, k, v = traced(to, query), traced(to, key), traced(to, value)
    masked = None if attn_mask is None else masked_places(attn_mask, (q.sizes[-2].count, k.sizes[-2].count))
    if attn_mask is not None and masked is None:
        return _attention_with_bias(to, q, k, v, attn_mask, dropout_p, scale)
    causal, pattern = as_pattern(masked)
    operator = Attention(is_causal or causal, scale, pattern, float(dropout_p))
    return attended(to, q, k, v, operator)


def attended(to: Builder, q: Traced, k: Traced, v: Traced, operator: Attention) -> Traced:
    """Return the result of attention, whose dimensions before the last two are rows."""
    if any(BATCH in dim for x in (q, k, v) for dim in x.dims[-2:]):
        raise UnsupportedError(
            "attends from sample to sample, as layers without batch_first=True do", "attention in a sample"
        )
    if operator.dropout and q.batch is None and k.batch is None:
        raise UnsupportedError(SHARED)
    values, leads = zip(*(to.rows(x, 2) for x in (q, k, v)), strict=True)
    first = Traced(0, (), leads[0])
    for lead in leads[1:]:
        if Traced(0, (), lead).sizes != first.sizes:
            raise UnsupportedError(f"is called with {', '.join(map(shown, (q, k, v)))}, whose first dimensions differ")
    return to.of_rows(to.add(operator, *values), leads[0], 2)


def _attention_with_bias(
    to: Builder, q: Traced, k: Traced, v: Traced, bias: Tensor, p: float, scale: float | None
) -> Traced:
    if isinstance(bias, Fixed) and bias.values.dtype.kind == "b":  # what it does not show is hidden
        bias = replace(bias, values=np.where(bias.values, 0, -np.inf).astype(np.float32))
    scores = scaled(to, product_of(to, q, turned(k)), 1 / math.sqrt(q.sizes[-1].count) if scale is None else scale)
    weights = dropout(to, softmax(to, binary(to, Add(), scores, bias), -1), p, True)
    return product_of(to, traced(to, weights), v)


def masked_places(mask: Tensor, shape: tuple[int, int]) -> Array | None:
    """Return which positions a constant mask hides, (queries, keys); None if it does more than hide positions."""
    if not isinstance(mask, Fixed):
        return None
    values = mask.values
    if values.dtype.kind == "b":
        hidden = ~values
    elif np.isin(values, [0.0, -np.inf]).all():
        hidden = values != 0
    else:
        return None
    flat = hidden.reshape(-1, *hidden.shape[-2:]) if hidden.ndim > 1 else hidden.reshape(1, 1, -1)
    return np.broadcast_to(flat[0], shape) if (flat == flat[0]).all() else None


def as_pattern(hidden: Array | None) -> tuple[bool, tuple[tuple[bool, ...], ...] | None]:
    """Return whether a mask is the causal one, and else its rows."""
    if hidden is None or not hidden.any():
        return False, None
    if np.array_equal(hidden, np.tri(*hidden.shape) == 0):
        return True, None
    return False, tuple(tuple(row) for row in hidden.tolist())


def fused(to: Builder, weights: Tensor, v: Tensor) -> Traced | None:
    """Return attention for a product of weights that softmax gave and values; None if it is another product.

    The weights are softmax(q·kᵀ·scale), of which constants may hide positions, and dropout may follow.
    """
    if not isinstance(weights, Traced) or not isinstance(v, Traced) or min(len(weights.dims), len(v.dims)) < 2:
        return None
    if weights.sizes[:-2] != v.sizes[:-2] or any(BATCH in dim for dim in weights.dims[-2:]):
        return None
    at, lead = to.rows(weights, 2)
    p, scale, bias, kept = 0.0, 1.0, None, None
    dropped = None
    if isinstance(operator := to.operator(at), Dropout):
        if to.apart:
            return None
        dropped, p, at = at, operator.p, to.inputs(at)[0]
    if not isinstance(to.operator(at), Softmax):
        return None
    (at,) = to.inputs(at)
    if isinstance(to.operator(at), Add) and (bias := to.numbers(to.inputs(at)[1])) is not None:
        at = to.inputs(at)[0]
        if isinstance(to.operator(at), Mul | Keep) and (kept := to.numbers(to.inputs(at)[1])) is not None:
            at = to.inputs(at)[0]
    if isinstance(operator := to.operator(at), Scale):
        scale, at = operator.by, to.inputs(at)[0]
    if not isinstance(to.operator(at), MatMul):
        return None
    q, turned = to.inputs(at)
    hidden = None if bias is None else masked_places(Fixed(bias), (to.shapes[at][-2], to.shapes[at][-1]))
    if bias is not None and (hidden is None or (kept is not None and not np.array_equal(kept, bias == 0))):
        return None
    causal, pattern = as_pattern(hidden)
    count = len(to.shapes[turned])
    k = to.permuted(turned, (*range(count - 2), count - 1, count - 2))
    value, _ = to.rows(v, 2)
    if dropped is not None:
        to.fused.append(dropped)
    return to.of_rows(to.add(Attention(causal, scale, pattern, p), q, k, value), lead, 2)
