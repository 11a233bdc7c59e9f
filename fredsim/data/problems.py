"""Data sets that are drawn, not read: sums, images, least squares, and those of what has gradients but no rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fredsim.data.datasets import Dataset, Split, split_of_bytes
from fredsim.data.glyphs import draw_images
from fredsim.data.partitions.shards import Shards
from fredsim.data.sampling import Sampler, TaskSampler
from fredsim.data.sequences import IGNORED, draw_sums
from fredsim.data.squares import draw_rows
from fredsim.errors import ConfigError
from fredsim.numerics.streams import Streams

__all__ = ["TEST_IMAGES", "OfProblem", "Quadratic", "glyphs", "least_squares", "modular", "of_problem", "quadratic"]

TEST_IMAGES = 1000  # of glyphs, to test on


@functools.lru_cache(maxsize=4)
def modular(p: int, terms: int, seed: int, train: int, validation: int) -> Dataset:
    """Return sums modulo p as sequences: `train` to train on, then `validation` to validate on, the rest to test on.

    Raises ConfigError if there are not so many.
    """
    if train + validation > p**terms:
        what = f"data.train {train} and data.validation {validation} are more than the {p**terms:,} sums"
        raise ConfigError(f"{what} of data.p {p} and data.terms {terms}; lower one of them")
    x, y = draw_sums(p, terms, seed)
    ends = (0, train, train + validation, len(x))
    first, second, rest = (Split(x[begin:end], y[begin:end]) for begin, end in pairwise(ends))
    return Dataset(first, second, rest, p + 1, (terms + 1,), ignored=IGNORED)


@functools.lru_cache(maxsize=4)
def glyphs(classes: int, size: int, clutter: int, noise: float, seed: int, train: int, validation: int) -> Dataset:
    """Return drawn images: `train` to train on, `validation` to validate on, and TEST_IMAGES to test on.

    Each part has draws of its own: how many images one has changes no image of another.
    """
    counts = (train, validation, TEST_IMAGES)
    drawn = [draw_images(count, part, classes, size, clutter, noise, seed) for part, count in enumerate(counts)]
    labels = np.arange(min(classes, max(counts)))
    unused = tuple(range(len(labels), classes))
    first, second, third = (split_of_bytes(*images) for images in drawn)
    return Dataset(first, second, third, classes, (1, size, size), unused, labels=labels)


@functools.lru_cache(maxsize=4)
def least_squares(columns: int, noise: float, seed: int, train: int, validation: int) -> Dataset:
    """Return rows to train on and, drawn after them, rows to validate on; there are none to test on."""
    x, y = draw_rows(train + validation, columns, noise, seed)
    return Dataset(Split(x[:train], y[:train]), Split(x[train:], y[train:]), Split(x[:0], y[:0]), 0)


@dataclass(frozen=True, eq=False)
class OfProblem(Dataset):
    """What a problem without rows has for data: one row in each part, which stands for the problem itself."""

    def sampler(self, kind: str, batch_size: int, streams: Streams, shards: Shards | None) -> Sampler:
        """Return the sampler of tasks, which gradients differ by, as there are no rows."""
        return TaskSampler(1, batch_size, streams)


def of_problem() -> OfProblem:
    """Return the data of a user's own problem: there are none."""
    itself = Split(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    return OfProblem(itself, itself, Split(itself.x[:0], itself.y[:0]), 0)


@dataclass(frozen=True, eq=False)
class Quadratic(OfProblem):
    """A quadratic instead of rows: fredsim.numerics.squares.quadratic_gradient, with noise N(0, noise²) per element.

    Gradients at the same parameters differ only in their noise, which is drawn from `seed`, the run's, and from the
    client and the number of its task.
    """

    noise: float = 0.0
    seed: int = 0


def quadratic(size: int, noise: float, seed: int) -> Quadratic:
    """Return the quadratic of `size` variables; its only row, for training and for validation, is b."""
    b = np.zeros((1, size), np.float32)
    b[0, 0] = -0.25
    function, nothing = Split(b, np.zeros(1, np.float32)), Split(b[:0], np.zeros(0, np.float32))
    return Quadratic(function, function, nothing, 0, noise=noise, seed=seed)
