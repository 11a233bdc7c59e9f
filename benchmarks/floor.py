"""The least time that one iteration can take on this machine, from its rates (benchmarks.rates).

With H hidden units, C classes, P parameters and minibatches of µ samples, of which `nnz` inputs are not 0 and `rows`
rows of W1 meet one of these (means over the minibatches of the run), one iteration needs at least

- multiply-adds: nnz·H for the first layer's forward pass and nnz·H for its weights' gradient; µ·H·C each for the second
  layer's forward pass, the errors of the hidden layer and the second layer's gradient. An update takes 1 for each
  parameter of `touched`, the rows that have a gradient, the biases and the second layer: rows·H + H + (H + 1)·C.
  FASGD's takes 5 for every parameter (n, b, n − b², + ε, v), which decay without a gradient too, and 4 more for each
  touched one (g² and g into n and b, α/d·g, the step);
- FASGD: a √ for every parameter and a ÷ for each touched one;
- bytes: a sample's inputs that are not 0 come from far, value and place, 8·nnz; each parameter touched is read and
  written once from near, 8·touched, and with FASGD n, b and v of every parameter, 24·P more. Near is the rate of a
  sweep over a set as large as θ with its state.

These overlap at best, so the floor is the longest of three times: multiply-adds, √ and ÷ (which share a unit), bytes.

It leaves out much that is unavoidable too: the latency of anything, synchronisation of threads, ReLU, softmax, sums of
biases, comparisons and flushes, rounding between multiply and add (fredsim's bits allow no fused ones, so that its own
floor of multiply-adds is twice as high), finding which rows are touched, clients, draws and records. A side may also
come in below it: hidden units that are 0 need no products, and a sweep that takes several iterations at once reads its
rows from nearer. Whole snapshots and whole gradients, which both peers move, are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.cells import Cell
from benchmarks.rates import Rates

__all__ = ["Floor", "Work", "floor", "work"]


@dataclass(frozen=True)
class Work:
    """What one iteration needs at least."""

    multiply_adds: float
    roots: float
    quotients: float
    near: float  # bytes
    far: float  # bytes
    swept: int  # bytes of θ and its state


@dataclass(frozen=True)
class Floor:
    """The least seconds of an iteration: what each bound alone would take, by its name."""

    times: Mapping[str, float]

    @property
    def bound(self) -> str:
        """What takes longest."""
        return max(self.times, key=lambda name: self.times[name])

    @property
    def seconds(self) -> float:
        """How long that is."""
        return self.times[self.bound]

    def shares(self, seconds: float) -> str:
        """Return how much of each bound's rate an iteration of so many seconds reaches, in per cent."""
        return ", ".join(f"{name} {100 * time / seconds:.0f}" for name, time in self.times.items())


def work(cell: Cell, iterations: int) -> Work:
    """Return the work of a cell's mean iteration."""
    model, x, mu = cell.model(), cell.dataset().train.x, cell.batch_size
    _, hidden, classes = model.sizes
    size = model.layout.size
    batches = min(len(x) // mu, iterations)
    occupied = (x[: batches * mu] != 0).reshape(batches, mu, -1)
    nnz = np.count_nonzero(occupied) / batches
    touched = np.count_nonzero(occupied.any(axis=1)) / batches * hidden + hidden + (hidden + 1) * classes
    products = 2 * nnz * hidden + 3 * mu * hidden * classes
    if cell.server == "fasgd":
        return Work(products + 5 * size + 4 * touched, size, touched, 8 * touched + 24 * size, 8 * nnz, swept(cell))
    return Work(products + touched, 0, 0, 8 * touched, 8 * nnz, swept(cell))


def swept(cell: Cell) -> int:
    """Return the bytes of θ and the rule's state."""
    return 4 * cell.model().layout.size * (4 if cell.server == "fasgd" else 1)


def floor(need: Work, rates: Rates) -> Floor:
    """Return the floor of this work at these rates."""
    times = {
        "·+": need.multiply_adds / rates.multiply_adds,
        "√÷": need.roots / rates.roots + need.quotients / rates.quotients,
        "bytes": need.near / rates.near[need.swept] + need.far / rates.far,
    }
    return Floor(times)
