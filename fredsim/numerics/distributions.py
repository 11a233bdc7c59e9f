"""Draws of common distributions in float64, from the contract's streams and elementary functions: the same bits anywhere.

A draw is one of (stream, element, step, client): `elements` e … e + 7 belong to it, and rejections move on by `attempt`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.elementary import exp64, log64
from fredsim.numerics.streams import Stream, Streams, Words, normal_quantile, philox4x32

__all__ = ["Counter", "exponential", "gamma", "lognormal", "normal", "pareto", "uniform"]

Floats = NDArray[np.float64]


class Counter:
    """Places of draws in a stream: steps and clients, (n,) each, and the first element."""

    def __init__(self, streams: Streams, stream: Stream, steps: Any, clients: Any, element: int = 0) -> None:
        self.steps, self.clients = np.broadcast_arrays(np.asarray(steps, np.uint64), np.asarray(clients, np.uint64))
        self._key, self._block = (streams.seed, int(stream)), element // 4

    def block(self, number: int = 0, attempt: int = 0, some: Any = slice(None)) -> tuple[Words, Words, Words, Words]:
        """Return the four words of the elements 4·number … 4·number + 3, of all draws or of some."""
        return philox4x32((self._block + number, self.steps[some], self.clients[some], attempt), self._key)


def _unit(words: Words) -> Floats:
    """Return uniform numbers in [0, 1), multiples of 2⁻²⁴."""
    return (words >> np.uint32(8)).astype(np.float64) * 2.0**-24


def uniform(at: Counter) -> Floats:
    """Return uniform draws in [0, 1)."""
    return _unit(at.block()[0])


def exponential(at: Counter) -> Floats:
    """Return exponential draws of mean 1: −log(1 − u)."""
    return -log64(1.0 - uniform(at))


def normal(at: Counter) -> Floats:
    """Return standard normal draws: Wichura's AS 241 of (word + ½)·2⁻³²."""
    return normal_quantile(at.block()[0])


def lognormal(at: Counter, sigma: float) -> Floats:
    """Return lognormal draws of mean 1: exp(σ z − σ²/2)."""
    return exp64(sigma * normal(at) - 0.5 * sigma * sigma)


def pareto(at: Counter, alpha: float) -> Floats:
    """Return Pareto draws of mean 1, for α > 1: (α − 1)/α · (1 − u)^(−1/α)."""
    return (alpha - 1.0) / alpha * exp64(-log64(1.0 - uniform(at)) / alpha)


def gamma(at: Counter, shape: float) -> Floats:
    """Return gamma draws of this shape and scale 1 (Marsaglia and Tsang 2000, "A simple method for generating gamma
    variables"); for a shape below 1 those of shape + 1 times u^(1/shape), u of the block behind.
    """
    larger = shape if shape >= 1.0 else shape + 1.0
    d = larger - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    result = np.empty(at.steps.shape, np.float64)
    left = np.arange(len(result))
    attempt = 0
    while len(left):
        first, second, *_ = at.block(0, attempt, left)
        x, u = normal_quantile(first), _unit(second)
        v = 1.0 + c * x
        v = v * v * v
        positive = v > 0.0
        safe = np.where(positive, v, 1.0)
        accepted = positive & (log64(1.0 - u) < 0.5 * x * x + d - d * v + d * log64(safe))
        result[left[accepted]] = d * v[accepted]
        left, attempt = left[~accepted], attempt + 1
    if shape < 1.0:
        result *= exp64(log64(1.0 - _unit(at.block(1)[0])) / shape)
    return result


Draw = Callable[[Counter], Floats]
