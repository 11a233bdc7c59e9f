"""Drawn images, against their pixels one by one from the words of Philox alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.data.datasets import Split
from fredsim.data.problems import glyphs
from fredsim.numerics.streams import philox4x32

SIDE = 7


def word(seed: int, part: int, image: int, element: int, attempt: int = 0) -> int:
    return int(philox4x32((element // 4, image, part, attempt), (seed, 10))[element % 4])


def below(n: int, seed: int, part: int, image: int, element: int) -> int:
    """Return an integer below n: the upper half of a product, of the first attempt that is not biased."""
    products = (word(seed, part, image, element, attempt) * n for attempt in range(100))
    return next(product >> 32 for product in products if product % 2**32 >= 2**32 % n)


def image(seed: int, part: int, number: int, label: int, size: int, clutter: int, noise: float) -> list[list[float]]:
    """Return the pixels of an image; its part is 5 for training, 6 for validation, 7 for test, and 4 has the glyphs."""
    draw = (seed, part, number)
    begin = 2 + 2 * (clutter + 1)
    lit = [[False] * size for _ in range(size)]
    for patch in range(clutter + 1):
        row, column = (below(size - SIDE + 1, *draw, 2 + 2 * patch + axis) for axis in (0, 1))
        for k in range(SIDE * SIDE):
            bit = word(*draw, begin + patch * SIDE * SIDE + k) if patch < clutter else word(seed, 4, label, k)
            lit[row + k // SIDE][column + k % SIDE] = bit >> 31 == 1
    begin += clutter * SIDE * SIDE
    bright, dark = 192 + word(*draw, 0) // 2**26, word(*draw, 1) // 2**26
    return [
        [
            (bright if lit[row][column] != (word(*draw, begin + row * size + column) < noise * 2**32) else dark) / 255
            for column in range(size)
        ]
        for row in range(size)
    ]


@pytest.mark.parametrize(
    ("classes", "size", "clutter", "noise", "seed"),
    [(3, 9, 2, 0.05, 0), (10, 16, 0, 0.3, 7), (2, 7, 1, 0.0, 2**32 - 1)],
)
def test_images_are_those_of_their_words(classes: int, size: int, clutter: int, noise: float, seed: int) -> None:
    data = glyphs(classes, size, clutter, noise, seed, 1200, 5)  # more than are drawn at once
    assert ((data.classes, data.shape, data.unused), len(data.test)) == ((classes, (1, size, size), ()), 1000)
    for part, split in enumerate(data.parts):
        assert split.x.dtype == np.float32
        assert split.y.tolist() == [number % classes for number in range(len(split))]
        for number in (0, 4, len(split) - 1):
            expected = image(seed, 5 + part, number, number % classes, size, clutter, noise)
            assert split.x[number].tolist() == np.array(expected, np.float32).reshape(-1).tolist()


def test_no_image_depends_on_how_many_there_are() -> None:
    few, many = (glyphs(4, 8, 1, 0.1, 3, train, validation) for train, validation in ((5, 0), (9, 7)))
    assert few.train.x.tolist() == many.train.x[:5].tolist()
    assert few.test.x.tolist() == many.test.x.tolist()
    assert (len(few.validation), len(many.validation)) == (0, 7)


def test_images_of_one_class_differ_and_each_has_two_levels() -> None:
    train: Split = glyphs(2, 12, 1, 0.05, 0, 100, 0).train
    assert len(np.unique(train.x, axis=0)) == 100
    levels = [np.unique(np.rint(row * 255)).tolist() for row in train.x]
    assert all(len(both) == 2 and both[0] < 64 and both[1] >= 192 for both in levels)


def test_classes_that_no_image_has() -> None:
    assert glyphs(1000, 7, 0, 0.0, 0, 3, 0).unused == ()
    data = glyphs(990, 7, 0, 0.0, 0, 3, 0)
    assert data.labels is not None
    assert (data.labels.tolist(), data.unused) == ([*range(990)], ())


EXPERIMENT: dict[str, Any] = {
    "iterations": 3,
    "clients": {"count": 2, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.1},
    "evaluation": {"every": 3},
}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"size": 6}, "data.size: is 6; it should be greater than or equal to 7"),
        ({"size": 1025}, "data.size: is 1025; it should be less than or equal to 1024"),
        ({"classes": 1}, "data.classes: is 1; it should be greater than or equal to 2"),
        ({"classes": 1001}, "data.classes: is 1001; it should be less than or equal to 1000"),
        ({"clutter": -1}, "data.clutter: is -1; it should be greater than or equal to 0"),
        ({"noise": 0.6}, "data.noise: is 0.6; it should be less than or equal to 0.5"),
        ({"noise": float("nan")}, "data.noise: is nan; it should be"),
        ({"train": 0}, "data.train: is 0; it should be greater than 0"),
        ({"validation": -1}, "data.validation: is -1; it should be greater than or equal to 0"),
        ({"train": 2**32}, "data.train: is 4294967296; it should be less than 4294967296"),
        ({"train": 2**31, "size": 1024}, "data.size 1024; 2,147,485,648 images take 20.3 PB"),
        ({"normalize": {"mean": 0.5, "std": 0.5}}, "data.normalize: unknown key"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_in_one_line(keys: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(fredsim.ConfigError) as caught:
        fredsim.run(EXPERIMENT | {"data": {"name": "glyphs", **keys}}, out=tmp_path / "run")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
