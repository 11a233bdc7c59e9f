"""The running statistics of a graph's batch norms, by which it may be evaluated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Found", "Running", "RunningNorm", "found_in"]


class Found(NamedTuple):
    """What a batch norm finds in a minibatch: mean and variance, float32 (channels,), of `elements` a channel."""

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    elements: int


def found_in(kept: Any) -> Found:
    """Return what is in what a batch norm has kept of its forward pass."""
    mean, variance = (np.array(one).reshape(-1) for one in kept.moments)
    return Found(mean, variance, math.prod(kept.normal.shape[:-1]))


class RunningNorm(NamedTuple):
    """The names of a batch norm's running mean and variance, and the share of a minibatch in them."""

    mean: str
    variance: str
    momentum: float = 0.1


@dataclass(frozen=True)
class Running:
    """Of each batch norm of a graph, in the order of its nodes; two nodes may share their statistics.

    `served` says whose statistics the server evaluates with: the mean of the clients' that have pushed, or the last's.
    """

    norms: tuple[RunningNorm, ...]
    served: Literal["averaged", "last"] = "averaged"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all, each once: a norm's mean, then its variance."""
        return tuple(dict.fromkeys(name for norm in self.norms for name in (norm.mean, norm.variance)))
