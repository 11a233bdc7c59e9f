"""The sums inside an operator, whose order docs/numerics.md fixes.

A sum over positions of an image or a sequence has the positions in row-major order, from +0, in bands of BAND rows;
the bands are summed by the balanced tree (fredsim.numerics.oracle.tree_sum), as channels and samples are.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fredsim.numerics.ops.operator import Array, quiet
from fredsim.numerics.oracle import tree_sum

__all__ = ["BAND", "add_up", "combine", "over_axis", "over_positions"]

BAND = 8  # rows of an image, or positions of a sequence


def add_up(terms: Iterable[Array], zero: Array) -> Array:
    """Return the sum of terms, one after the other, from `zero`, an array of +0."""
    with quiet():
        for term in terms:
            zero = zero + term
    return zero


def combine(a: Array, b: Array) -> Array:
    """Return Σ_k a[…, k]·b[…, k, j], (…, j): k ascending, from +0; no product is left out."""
    zero = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    return add_up((a[..., k, None] * b[..., None, k, :] for k in range(a.shape[-1])), zero)


def over_positions(values: Array) -> Array:
    """Return the sum over axes 1 and 2, rows and columns, of values (µ, rows, columns, …): (µ, …)."""
    _, rows, columns, *rest = values.shape
    zero = np.zeros((len(values), *rest), values.dtype)
    bands = [
        add_up((values[:, r, c] for r in range(begin, min(begin + BAND, rows)) for c in range(columns)), zero)
        for begin in range(0, rows, BAND)
    ]
    with quiet():
        return tree_sum(np.stack(bands)) if bands else zero


def over_axis(values: Array, axis: int) -> Array:
    """Return the sum over one axis by the balanced tree."""
    with quiet():
        return tree_sum(np.moveaxis(values, axis, 0))
