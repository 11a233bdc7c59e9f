"""Rules that together use every operation of rules; the result of each operation is one array of the state."""

# ruff: noqa: ARG001  a rule is given its state, which these only write

from typing import Any

from fredsim.numerics.rules import Rule, absolute, flush, positive_part, sign, sqrt, where

__all__ = ["RULES"]


def arithmetic(
    theta: Any, added: Any, less: Any, product: Any, ratio: Any, root: Any, magnitude: Any, opposite: Any, g: Any
) -> Any:
    """Operations on one or two arrays."""
    return theta, theta + g, theta - g, theta * g, theta / g, sqrt(theta), absolute(theta), -theta


def with_numbers(
    theta: Any, moved: Any, shifted: Any, third: Any, inverse: Any, scaled: Any, g: Any, c: Any, d: Any
) -> Any:
    """Operations on an array and a number, a literal or a coefficient; products and sums are rounded separately."""
    moved = theta - c * g
    shifted = 0.1 * theta + 3
    third = theta / 3.0
    inverse = 1.0 / theta - c / g
    scaled = d * scaled + (c - theta) / d
    return moved, shifted, third, inverse, scaled, theta * g + d


def choices(
    theta: Any, least: Any, most: Any, above: Any, below: Any, same: Any, other: Any, flushed: Any, positive: Any,
    signed: Any, g: Any,
) -> Any:  # fmt: skip
    """Comparisons, and functions that use them."""
    least = where(theta < g, theta, g)
    most = where(theta <= g, g, 0.1)
    above = where(theta > g, 0.1, g)
    below = where(theta >= 0.1, 1.0, 2.0)
    same = where(theta == g, theta, 1.0)
    other = where(theta != g, theta, 1.0)
    return theta, least, most, above, below, same, other, flush(theta), positive_part(theta), sign(theta)


def descend(theta: Any, g: Any, lr: Any) -> Any:
    """Gradient descent, the simplest rule."""
    return theta - lr * g


RULES = {
    "arithmetic": Rule(arithmetic, state=("added", "less", "product", "ratio", "root", "magnitude", "opposite")),
    "with-numbers": Rule(with_numbers, state=("moved", "shifted", "third", "inverse", "scaled")),
    "choices": Rule(
        choices, state=("least", "most", "above", "below", "same", "other", "flushed", "positive", "signed")
    ),
    "descend": Rule(descend),
}
