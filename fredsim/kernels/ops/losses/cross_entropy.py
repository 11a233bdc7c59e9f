"""Kernels of cross-entropy, at one position of a sample or at many: fredsim.numerics.ops.losses.cross_entropy."""

from __future__ import annotations

import math

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import doubles, floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, load_part, store, store_part, zeros
from fredsim.kernels.arrays.elementary import log32
from fredsim.kernels.arrays.functions import exp_vector
from fredsim.kernels.ops.fallback import FallbackLoss
from fredsim.kernels.ops.program import BATCH, LOSSES, ROWS, WRONG, Steps
from fredsim.kernels.ops.rows import clear, part_of
from fredsim.kernels.ops.sequences.embedding import INTEGERS, integer
from fredsim.kernels.ops.values import Value
from fredsim.numerics.oracle import FLUSH
from fredsim.numerics.rules import absolute, where

__all__ = ["CrossEntropyKernels"]

ZERO, ONE = np.float32(0.0), np.float32(1.0)


@kernel(
    batch=int64s, output=floats, samples=int, positions=int, classes=int, labels=int, size=int, some=int, ignored=int,
    smoothing=int, shares=floats, work=floats, work_stride=int, learn=int, errors=floats, wrong=int,
)  # fmt: skip
def cross_entropy(rank, size, barrier, a):
    """Write the losses of this thread's samples and, if `learn`, their errors, and if `wrong`, their wrong answers.

    The labels, (n, positions), are integers of `size` bytes at an address. If `some`, those that are `ignored` do not
    count. With `smoothing`, `shares` are 1 − ε and ε/classes. `work` has a padded row for each thread.
    """
    rows, losses = int64s(item(a.batch, ROWS)), floats(item(a.batch, LOSSES))
    work = shift(a.work, rank * a.work_stride)
    begin, end = part_of(rank, size, a.samples)
    for m in range(begin, end):
        first = item(rows, m) * a.positions
        count, misses, total = 0, 0, ZERO
        for position in range(a.positions):
            count += not (a.some and integer(a.labels, a.size, first + position) == a.ignored)
        divisor = np.float32(max(count, 1))
        for position in range(a.positions):
            label, at = integer(a.labels, a.size, first + position), (m * a.positions + position) * a.classes
            if a.some and label == a.ignored:
                total = total + ZERO
                if a.learn:
                    clear(a.errors, at, a.classes)
            else:
                loss, missed = loss_at(a, at, label, divisor, work)
                total = total + loss
                misses += missed
        put(losses, m, total / divisor)
        if a.wrong:
            put(doubles(item(a.batch, WRONG)), m, np.float64(misses) / np.float64(max(count, 1)))


@subroutine
def loss_at(a, at, label, divisor, work):
    """Return the loss of a position, whose outputs begin at `at`, and whether its answer is wrong; write its error."""
    best = 0
    for j in range(1, a.classes):
        if item(a.output, at + j) > item(a.output, at + best):
            best = j
    top = item(a.output, at + best)
    for j in range(0, a.classes, 16):
        store(work, j, exp_vector(load_part(zeros(16), a.output, at + j, a.classes - j) - top))
    total = ZERO
    for j in range(a.classes):
        total = total + item(work, j)
    loss = log32(total) - (item(a.output, at + label) - top)
    if a.smoothing:
        others, log_total = ZERO, log32(total)
        for j in range(a.classes):
            others = others + (log_total - (item(a.output, at + j) - top))
        loss = item(a.shares, 0) * loss + item(a.shares, 1) * others
    if a.learn:
        write_errors(a, at, label, total, divisor, work)
    return loss, best != label


@subroutine
def write_errors(a, at, label, total, divisor, work):
    """Write p − wanted, or +0 where that is small, divided by the number of positions, from exponentials, their sum."""
    share, wanted = ZERO, ONE
    if a.smoothing:
        share, wanted = item(a.shares, 1), item(a.shares, 0) + item(a.shares, 1)
    own = item(work, label) / total - wanted
    for j in range(0, a.classes, 16):
        error = load(zeros(16), work, j) / total - share
        error = where(absolute(error) < FLUSH, 0.0, error) / divisor
        store_part(a.errors, at + j, error, a.classes - j)
    put(a.errors, at + label, (ZERO if abs(own) < FLUSH else own) / divisor)


class CrossEntropyKernels(FallbackLoss):
    """Cross-entropy of labels that are all classes, or ignored."""

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        labels, classes, ignored = np.ascontiguousarray(plan.targets), output.shape[-1], self.loss.ignored
        if labels.dtype not in INTEGERS:
            labels = labels.astype(np.int64)
        counted = labels if ignored is None else labels[labels != ignored]
        if counted.size and not 0 <= counted.min() <= counted.max() < classes:  # the definition says what these are
            super().losses(plan, output, error, wrong=wrong)
            return
        smoothing, (work, stride) = self.loss.smoothing, plan.each_thread(-(-classes // 16) * 16)
        plan.step(
            cross_entropy, batch=BATCH, output=output, samples=output.samples, positions=math.prod(output.shape[:-1]),
            classes=classes, labels=labels, size=labels.itemsize, some=ignored is not None, ignored=ignored or 0,
            smoothing=bool(smoothing), shares=np.array([1 - smoothing, smoothing / classes], np.float32),
            work=work, work_stride=stride, learn=error is not None,
            errors=0 if error is None else error, wrong=wrong,
        )  # fmt: skip
