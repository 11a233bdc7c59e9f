"""What an operator on exact numbers is given, and what it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.vectors.box import Box

__all__ = ["Case", "Made", "Options", "Tensors"]

Options = dict[str, Any]
Tensors = dict[str, Box]


class Case(NamedTuple):
    """An operator's options and tensors, and of one sample its inputs, the error of its output, and what is drawn."""

    o: Options
    xs: Sequence[Box]
    t: Tensors
    d: Box
    u: Any


class Made(NamedTuple):
    """What one sample gives: the output, the errors of the inputs, and its own gradients by role."""

    y: Box
    errors: list[Box | None]
    grads: Tensors = {}  # noqa: RUF012
