"""A quadratic, and measures of least squares: values as docs/numerics.md defines them, in NumPy.

The kernels of the other backends give the same bits. Results in float64, such as an optimum or a norm, are computed
here for all backends. d is the number of parameters.
"""

from __future__ import annotations

import numpy as np

from fredsim.numerics.arrays import Array, Floats
from fredsim.numerics.oracle import norm, tree_sum
from fredsim.numerics.streams import Stream, Streams, normal_quantile

__all__ = [
    "combine_columns",
    "norm",
    "optimum",
    "quadratic_gap",
    "quadratic_gradient",
    "quadratic_gradient_norm",
    "quadratic_noise",
    "quadratic_value",
    "transposed_product",
]

HALF, QUARTER = np.float32(0.5), np.float32(0.25)
#: The iteration for the optimum ends when the squared norm of the gradient is below this share of that at the start.
RELATIVE_TOLERANCE = 1e-28


def quadratic_gradient(x: Array) -> Array:
    """Return A·x − b for A tridiagonal (−1, 2, −1)/4 and b = (−1, 0, …)/4, float32 (d,).

    Element i is (½·x[i] − ¼·x[i − 1]) − ¼·x[i + 1], without the terms whose index is outside; ¼ is added to element 0.
    """
    with np.errstate(all="ignore"):
        total = HALF * x
        total[1:] = total[1:] - QUARTER * x[:-1]
        total[:-1] = total[:-1] - QUARTER * x[1:]
        total[0] = total[0] + QUARTER
        return total


def quadratic_value(x: Array) -> float:
    """Return ½·xᵀA·x − bᵀx in float64: the tree sum of the squared differences of (0, x, 0) ÷ 8, + ¼·x[0]."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        return _energy(wide) + 0.25 * float(wide[0])


def quadratic_noise(streams: Streams, size: int, client: int, number: int, sd: float) -> Array:
    """Return the noise of the client's gradient with this number, N(0, sd²) each, float32 (size,)."""
    noise = np.empty(size, np.float32)
    for part, words in streams.parts_of_words(Stream.NOISE, size, number, client):
        noise[part] = normal_quantile(words) * sd
    return noise


def _energy(x: Floats) -> float:
    """Return ½·xᵀA·x, a sum of squares."""
    differences = np.diff(x, prepend=0.0, append=0.0)
    return float(tree_sum(differences * differences)) / 8.0


def quadratic_gap(x: Array) -> float:
    """Return f(x) − f* in float64: ½·eᵀA·e, where e = x − x* and x*[i] = −(1 − (i + 1)/(d + 1))."""
    count = len(x) + 1
    with np.errstate(all="ignore"):
        return _energy(x.astype(np.float64) + (1.0 - np.arange(1, count) / count))


def quadratic_gradient_norm(x: Array) -> float:
    """Return ‖A·x − b‖₂ in float64; element i is (½·x[i] − ¼·x[i − 1]) − ¼·x[i + 1]."""
    with np.errstate(all="ignore"):
        wide = np.pad(x.astype(np.float64), 1)
        slopes = 0.5 * wide[1:-1] - 0.25 * wide[:-2] - 0.25 * wide[2:]
        slopes[0] += 0.25
        return norm(slopes)


def combine_columns(columns: Floats, w: Floats) -> Floats:
    """Return Σ_k columns[k]·w[k], (n,), k ascending from +0, for columns (d, n)."""
    total = np.zeros(columns.shape[1])
    for column, weight in zip(columns, w, strict=True):
        total += column * weight
    return total


def transposed_product(columns: Floats, errors: Floats) -> Floats:
    """Return the tree sums over n of columns[k]·errors, (d,), for columns (d, n)."""
    return np.array([tree_sum(column * errors) for column in columns])


def optimum(columns: Floats, y: Floats) -> Floats:
    """Return a least-squares solution of Σ_k columns[k]·w[k] ≈ y, (d,), by conjugate gradients (CGLS) from 0.

    Hestenes and Stiefel 1952, "Methods of conjugate gradients for solving linear systems", section 10. In exact
    arithmetic it takes d steps; it ends when the squared norm of the gradient has fallen below RELATIVE_TOLERANCE
    times that at 0, or after 3·d steps.
    """
    w, residual = np.zeros(len(columns)), y.copy()
    gradient = transposed_product(columns, residual)
    direction = gradient
    square = start = norm(gradient) ** 2
    for _ in range(3 * len(columns)):
        if square <= RELATIVE_TOLERANCE * start:
            break
        image = combine_columns(columns, direction)
        step = square / float(tree_sum(image * image))
        w = w + step * direction
        residual = residual - step * image
        gradient = transposed_product(columns, residual)
        before, square = square, norm(gradient) ** 2
        direction = gradient + square / before * direction
    return w
