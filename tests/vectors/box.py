"""Arrays of exact numbers, and the sums of docs/numerics.md over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from tests.vectors.contract import ZERO, tree
from tests.vectors.ieee import FLOAT32, Number, number

__all__ = ["BAND", "Box", "add", "bands", "box", "count", "over"]

BAND = 8  # rows of an image, or positions of a sequence
Shape = tuple[int, ...]
Place = tuple[int, ...]


class Box:
    """Numbers, or integers, of a shape, in row-major order."""

    def __init__(self, shape: Shape, values: Iterable[Any]) -> None:
        self.shape, self.values = tuple(shape), list(values)
        assert len(self.values) == math.prod(self.shape)

    def __getitem__(self, place: Place) -> Any:
        return self.values[self.at(place)]

    def __setitem__(self, place: Place, value: Any) -> None:
        self.values[self.at(place)] = value

    def at(self, place: Place) -> int:
        """Return how many elements come before this place."""
        before = 0
        for i, size in zip(place, self.shape, strict=True):
            assert 0 <= i < size
            before = before * size + i
        return before

    @property
    def places(self) -> Iterator[Place]:
        """The places in row-major order."""
        return product(*map(range, self.shape))

    def map(self, function: Callable[..., Any], *others: Box) -> Box:
        """Return what a function makes of each element, and of those at its place in other boxes."""
        rows = (other.values for other in others)
        return Box(self.shape, [function(*one) for one in zip(self.values, *rows, strict=True)])


def box(shape: Sequence[int], value: Callable[..., Any]) -> Box:
    """Return a box whose element at a place is value(*place)."""
    return Box(tuple(shape), [value(*place) for place in product(*map(range, shape))])


def count(n: int) -> Number:
    """Return an integer as a number."""
    return number(FLOAT32, n)


def add(terms: Iterable[Number]) -> Number:
    """Return the sum of terms, one after the other, from +0."""
    total = ZERO
    for term in terms:
        total = total + term
    return total


def bands(rows: int, columns: int, term: Callable[[int, int], Number]) -> Number:
    """Return the sum over positions: row-major from +0 in each band of rows, then bands by the tree."""
    return tree(
        [
            add(term(r, c) for r in range(first, min(first + BAND, rows)) for c in range(columns))
            for first in range(0, rows, BAND)
        ]
    )


def over(positions: Sequence[Any], term: Callable[[Any], Number]) -> Number:
    """Return the sum over the positions of a sequence."""
    return bands(len(positions), 1, lambda r, c: term(positions[r]))
