"""Evaluating 10,000 samples: fredsim's engine, with losses and errors, against only PyTorch's dense forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.cells import SEED, Cell
from benchmarks.rounds import alternate, in_brief
from benchmarks.tables import Table
from fredsim.numerics.streams import Streams
from fredsim.simulation.paths.backends import make_engine

__all__ = ["evaluation"]

CALLS = 5  # in a round, after one that is not timed


def evaluation(rounds: int, threads: int) -> Table:
    """Time the evaluation of MNIST's validation samples at the initial parameters."""
    cell = Cell("asgd", 1, 1)
    dataset, model = cell.dataset(), cell.model()
    params = model.initial(Streams(SEED))
    engine = make_engine("numba", model, dataset, cell.batch_size, threads)
    W1, b1, W2, b2 = (torch.from_numpy(part) for part in model.layout.split(params).values())
    x, y = torch.from_numpy(dataset.validation.x), torch.from_numpy(dataset.validation.y)

    def own() -> float:
        return engine.evaluate(params, "validation")[1]

    def forward() -> torch.Tensor:
        with torch.inference_mode():
            return torch.addmm(b2, torch.addmm(b1, x, W1).relu_(), W2)

    try:
        errors = own(), float((forward().argmax(1) != y).double().mean())
        if abs(errors[0] - errors[1]) > 2 / len(y):  # two logits may be as good as equal
            raise SystemExit(f"evaluation: the errors are {errors[0]} and {errors[1]}: they differ")
        seconds = alternate((timed(own), timed(forward)), rounds)
    finally:
        engine.close()
    each = [f"{1e3 * median(side):.2f}" for side in zip(*seconds, strict=True)]
    return Table(
        "Evaluation",
        f"Milliseconds for {len(y):,} samples: medians of {rounds} alternating rounds of {CALLS} calls. fredsim's "
        "time includes losses and errors, PyTorch's only the logits. Ratio: fredsim's / PyTorch's; target: 1 or less.",
        ("samples", "fredsim ms", "torch ms", "ratio", "range"),
        [(f"{len(y):,}", *each, *in_brief([ours / theirs for ours, theirs in seconds], seconds))],
    )


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """Return a side: the mean seconds of a few calls."""

    def side() -> float:
        call()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - begin) / CALLS

    return side
