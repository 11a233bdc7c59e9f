"""Measures of the parameters besides loss and error: the gap to the optimum, and the norm of the full gradient.

For least squares and quadratics both are computed here for all backends, in float64, as docs/numerics.md says. For
other models there is no gap, and the engine computes the gradient, in blocks of training rows. f is the mean loss over
the training rows; a Measure is a function of the parameters (P,).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fredsim.compute.engines import Engine
from fredsim.data.datasets import Dataset, Split
from fredsim.data.kept import kept_with_data
from fredsim.data.problems import Quadratic
from fredsim.numerics import squares
from fredsim.numerics.arrays import MARGIN, Array, Floats, Integers
from fredsim.numerics.oracle import mean64

__all__ = ["EngineGradientNorm", "Measure", "blocks_of", "gap", "gradient_norm"]

Measure = Callable[[Array], float]

#: The most training rows whose gradient is computed at once.
BLOCK = 512


@kept_with_data(2)
def _columns(split: Split) -> Floats:
    """Return the columns of a split's rows, float64 (d, n)."""
    return np.ascontiguousarray(split.x.T, np.float64)


@kept_with_data(4)
def _optimum(split: Split) -> Floats:
    """Return weights (d,) that minimise the mean loss over a split's rows."""
    return squares.optimum(_columns(split), split.y.astype(np.float64))


def gap(dataset: Dataset) -> Measure:
    """Return the function that measures f − f* for a data set with targets; f* is the minimum of f.

    f(w) − f* = ‖X·(w − w*)‖²/(2n), which is never negative; it is summed by the balanced tree in float64.
    """
    if isinstance(dataset, Quadratic):
        return squares.quadratic_gap
    columns, best = _columns(dataset.train), _optimum(dataset.train)

    def measured(params: Array) -> float:
        with np.errstate(all="ignore"):
            apart = squares.combine_columns(columns, params.astype(np.float64) - best)
            return mean64(apart * apart) / 2.0

    return measured


def gradient_norm(dataset: Dataset) -> Measure:
    """Return the function that measures ‖∇f‖₂ for a data set with targets."""
    if isinstance(dataset, Quadratic):
        return squares.quadratic_gradient_norm
    columns, targets = _columns(dataset.train), dataset.train.y.astype(np.float64)

    def measured(params: Array) -> float:
        with np.errstate(all="ignore"):
            errors = squares.combine_columns(columns, params.astype(np.float64)) - targets
            return squares.norm(squares.transposed_product(columns, errors) / np.float64(len(targets)))

    return measured


def blocks_of(rows: int) -> list[Integers]:
    """Return the training rows whose gradients are computed at once: blocks (n, BLOCK), and of those left (1, m)."""
    whole = rows // BLOCK * BLOCK
    parts = np.arange(whole).reshape(-1, BLOCK), np.arange(whole, rows)[None]
    return [part for part in parts if part.size]


class EngineGradientNorm:
    """Measures ‖∇f‖₂ over the first training rows, by gradients of an engine.

    The mean gradients of blocks of BLOCK consecutive rows, the last of which may be shorter, are widened to float64,
    multiplied by their numbers of rows, added in ascending order, and divided by the number of all rows.
    """

    def __init__(self, rows: int, make_engine: Callable[[int], Engine]) -> None:
        """`rows` is how many they are; `make_engine` makes an engine for minibatches of a given size."""
        self._rows, self._make_engine = rows, make_engine
        #: The most bytes of its engines' buffers so far; see Engine.
        self.buffer_bytes = 0

    def __call__(self, params: Array) -> float:
        """Return the norm at parameters (P,)."""
        held = np.zeros(len(params) + MARGIN, np.float32)[: len(params)]
        held[...] = params
        total = np.zeros(len(params))
        for blocks in blocks_of(self._rows):
            size = blocks.shape[1]
            engine = self._make_engine(size)  # closed below, as it may be long until the next row of metrics.csv
            try:
                for block in blocks:
                    grads, _ = engine.gradients([held], block[None])
                    total += np.asarray(grads[0]).astype(np.float64) * size
                self.buffer_bytes = max(self.buffer_bytes, engine.buffer_bytes)
            finally:
                engine.close()
        with np.errstate(all="ignore"):
            return squares.norm(total / np.float64(self._rows))
