"""Scaled dot product attention (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fredsim.numerics.elementary import exp32
from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors, quiet
from fredsim.numerics.ops.sums import add_up

__all__ = ["Attention"]


class Kept(NamedTuple):
    """q, k, v, the weights p (µ, …, queries, keys), +0 where masked, and which of them dropout leaves, or None."""

    q: Array
    k: Array
    v: Array
    p: Array
    stays: Array | None


@dataclass(frozen=True)
class Attention(Operator):
    """From q (…, queries, width), k (…, keys, width), v (…, keys, values) to (…, queries, values): Σ_j p_ij·v_j.

    s_ij = (Σ_d q_id·k_jd, d ascending from +0)·scale; p is softmax of s over the keys that are not masked, as in
    cross-entropy: minus the largest, exponentials summed with j ascending, divided. Sums over keys have j ascending,
    those over queries i ascending, from +0, without masked positions; a query whose keys are all masked gets +0.

    `causal` masks the keys after the query's own position; `masked` masks keys by a fixed pattern, (queries, keys).
    `scale` is 1/√width, rounded to float32, if it is None. With `dropout` the weights p go through it as in Dropout;
    there is a draw for each of them, also at masked positions.
    """

    causal: bool = False
    scale: float | None = None
    masked: tuple[tuple[bool, ...], ...] | None = None
    dropout: float = 0.0
    inputs = 3

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"attention: dropout is {self.dropout}; it must be at least 0 and below 1")

    @property
    def draws(self) -> bool:
        return self.dropout > 0

    def shape(self, *shapes: Shape) -> Shape:
        """Return (…, queries, values)."""
        q, k, v = shapes
        if min(map(len, shapes)) < 2 or q[-1] != k[-1] or k[:-1] != v[:-1] or q[:-2] != k[:-2]:
            raise ValueError(
                f"attention: takes q (…, queries, width), k (…, keys, width), v (…, keys, values); not {q}, {k}, {v}"
            )
        if self.masked is not None and np.shape(self.masked) != (q[-2], k[-2]):
            raise ValueError(f"attention: the mask is {np.shape(self.masked)}, not (queries, keys) = {(q[-2], k[-2])}")
        return (*q[:-1], v[-1])

    def _seen(self, queries: int, keys: int) -> Array:
        """Return which keys each query sees, (queries, keys)."""
        seen = np.tri(queries, keys, dtype=bool) if self.causal else np.ones((queries, keys), bool)
        return seen if self.masked is None else seen & ~np.array(self.masked)

    def _scale(self, width: int) -> np.float32:
        return np.float32(1 / math.sqrt(width) if self.scale is None else self.scale)

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Kept]:
        """Keep q, k, v, p and what dropout leaves."""
        q, k, v = inputs
        seen = self._seen(q.shape[-2], k.shape[-2])
        zero = np.zeros((*q.shape[:-1], k.shape[-2]), np.float32)
        with quiet():
            scores = add_up((q[..., :, None, d] * k[..., None, :, d] for d in range(q.shape[-1])), zero)
            scores = np.where(seen, scores * self._scale(q.shape[-1]), np.float32(-np.inf))
            best = scores[..., 0]
            for j in range(1, scores.shape[-1]):
                best = np.where(scores[..., j] > best, scores[..., j], best)
            parts = np.where(seen, exp32(scores - best[..., None]), np.float32(0))
            total = add_up((parts[..., j] for j in range(parts.shape[-1])), np.zeros_like(best))
            p = np.where(seen, parts / total[..., None], np.float32(0))
            stays = draw(p.shape) >= self.dropout if draw and self.dropout else None
            y = self._combine(self._dropped(p, stays), v, seen)
        return y, Kept(q, k, v, p, stays)

    def _dropped(self, values: Array, stays: Array | None) -> Array:
        return values if stays is None else np.where(stays, values * np.float32(1 / (1 - self.dropout)), np.float32(0))

    def _combine(self, weights: Array, rows: Array, seen: Array) -> Array:
        """Return Σ_j weights[…, i, j]·rows[…, j, :], j ascending from +0, over the positions that are seen."""
        total = np.zeros((*weights.shape[:-1], rows.shape[-1]), np.float32)
        for j in range(weights.shape[-1]):
            added = total + weights[..., j, None] * rows[..., j, None, :]
            total = np.where(seen[:, j, None], added, total)
        return total

    def backward(self, error: Array, kept: Kept, tensors: Tensors) -> list[Array | None]:
        """Return the errors of q, k and v.

        e_ij = Σ_d δ_id·v_jd, d ascending; t_ij = (p_ij·(e_ij − Σ_j p_ij·e_ij))·scale; then δ_q = Σ_j t_ij·k_j,
        δ_k = Σ_i t_ij·q_i, δ_v = Σ_i p_ij·δ_i. With dropout, e and the last p go through it.
        """
        q, k, v, p, stays = kept
        seen = self._seen(q.shape[-2], k.shape[-2])
        with quiet():
            e = add_up((error[..., :, None, d] * v[..., None, :, d] for d in range(v.shape[-1])), np.zeros_like(p))
            e = self._dropped(e, stays)
            mean = np.zeros(p.shape[:-1], np.float32)
            for j in range(p.shape[-1]):
                mean = np.where(seen[:, j], mean + p[..., j] * e[..., j], mean)
            t = np.where(seen, (p * (e - mean[..., None])) * self._scale(q.shape[-1]), np.float32(0))
            turned = seen.T
            dq = self._combine(t, k, seen)
            dk = self._combine(np.swapaxes(t, -1, -2), q, turned)
            dv = self._combine(np.swapaxes(self._dropped(p, stays), -1, -2), error, turned)
        return [dq, dk, dv]
