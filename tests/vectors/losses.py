"""The losses of docs/numerics.md, "Operators of networks", on exact numbers: one sample at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.vectors.box import Box, add, count
from tests.vectors.contract import FLUSH, ZERO, exp64, log32, log64
from tests.vectors.functions import sigmoid64
from tests.vectors.ieee import FLOAT32, FLOAT64, Number, number
from tests.vectors.operators import softmax

__all__ = ["LOSSES", "wrong_share"]

Costs = tuple[Number, Box]  # a sample's loss, and the error of the output


def cross_entropy(o: dict[str, Any], output: Box, target: Box) -> Costs:
    classes, epsilon, errors, losses = output.shape[-1], o.get("smoothing", 0.0), list[Number](), list[Number]()
    counted = [label != o.get("ignored") for label in target.values]
    for at, label in enumerate(target.values):
        if not counted[at]:
            errors += [ZERO] * classes
            continue
        p, shifted, total = softmax(output.values[at * classes : (at + 1) * classes])
        loss, wanted = log32(total) - shifted[label], [count(int(j == label)) for j in range(classes)]
        if epsilon:
            rest, share = number(FLOAT32, 1 - epsilon), number(FLOAT32, epsilon / classes)
            loss = rest * loss + share * add(log32(total) - value for value in shifted)
            wanted = [rest + share if j == label else share for j in range(classes)]
        losses.append(loss)
        apart = [one - other for one, other in zip(p, wanted, strict=True)]
        errors += [ZERO if abs(x) < FLUSH else x for x in apart]
    n = count(max(1, len(losses)))
    return add(losses) / n, Box(output.shape, [x / n for x in errors])


def mean_squared_error(o: dict[str, Any], output: Box, target: Box) -> Costs:
    e = output.map(lambda z, y: z - y, target)
    if o.get("half"):
        return (e.values[0] * e.values[0]) * 0.5, e
    n = count(len(e.values))
    return add(x * x for x in e.values) / n, e.map(lambda x: (x * 2) / n)


def binary_cross_entropy(_: dict[str, Any], output: Box, target: Box) -> Costs:
    def loss(z: Number, y: Number) -> Number:
        positive = z if z > 0 else number(FLOAT64, 0)
        return ((positive - z * y) + log64(1.0 + exp64(-abs(z)))).to(FLOAT32)

    z, y = (x.map(lambda value: value.to(FLOAT64)) for x in (output, target))
    n = count(len(z.values))
    error = z.map(lambda a, b: (sigmoid64(a) - b).to(FLOAT32) / n, y)
    return add(z.map(loss, y).values) / n, error


LOSSES: dict[str, Callable[[dict[str, Any], Box, Box], Costs]] = {
    "BinaryCrossEntropy": binary_cross_entropy,
    "CrossEntropy": cross_entropy,
    "MeanSquaredError": mean_squared_error,
}


def wrong_share(kind: str, o: dict[str, Any], output: Box, target: Box) -> Number:
    """Return the share of wrong answers of a sample, in float64; NaN if none is right or wrong."""
    if kind == "MeanSquaredError":
        return number(FLOAT64, math.nan)
    if kind == "BinaryCrossEntropy":
        sides = [(z > 0) != (y > 0.5) for z, y in zip(output.values, target.values, strict=True)]
        return number(FLOAT64, sum(sides)) / len(sides)
    classes, wrong, counted = output.shape[-1], 0, 0
    for at, label in enumerate(target.values):
        if label != o.get("ignored"):
            z, best = output.values[at * classes : (at + 1) * classes], 0
            for j in range(1, classes):
                best = j if z[j] > z[best] else best
            wrong, counted = wrong + (best != label), counted + 1
    return number(FLOAT64, wrong) / max(1, counted)
