"""A copy passes iff r < 1/(1 + c/(v̄ + ε)), r uniform in [0, 1), v̄ the mean of v over the model, or over each tensor.

Odena 2016, arXiv:1601.04033, eq 9; the paper names `per: tensor` as future work. If v̄ is infinite everything passes, if
it is NaN nothing does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.dispatchers.gates.base import Gate, Statistics
from fredsim.hyper import HyperParameters, NonNegative, Positive

__all__ = ["BandwidthAware"]


class BandwidthAware(Gate):
    """Lets a copy pass with a probability that grows with the deviation of the gradients."""

    idea = "pass with probability 1/(1 + c/(v + eps)), v the mean deviation of the gradients"
    citation = "Odena 2016, Faster asynchronous SGD, arXiv:1601.04033, eq 9"
    needs_statistics = True

    class Hyper(HyperParameters):
        """`c` 0 lets everything pass; `per` tensor is the paper's future work."""

        c: NonNegative
        """c: the larger, the fewer copies pass; 0 lets everything pass."""
        eps: Positive = 1e-4
        """ε, added to v̄."""
        per: Literal["model", "tensor"] = "model"
        """`model`: one draw for a whole copy; `tensor`: one draw for each tensor, by its own v̄."""

    def passes(self, step: int, client: int, statistics: Statistics) -> bool | Sequence[bool]:
        """Draw once, or for each tensor, whose draw is the stream's element with the tensor's number."""
        if self.hyper.per == "model":
            return self._passes(0, step, client, statistics.mean())
        return [self._passes(number, step, client, v) for number, v in enumerate(statistics.means())]

    def bounds(self, begin: int, clients: Sequence[int]) -> NDArray[np.float64] | None:
        """Return bounds a millionth below and above the v̄ at which r = 1/(1 + c/(v̄ + ε)); ±∞ if one is not certain."""
        if self.hyper.per == "tensor":
            return None
        r = np.array([self.uniform(0, begin + i, client) for i, client in enumerate(clients)])
        with np.errstate(all="ignore"):
            middle = self.hyper.c * r / (1.0 - r)
            low, high = (middle * factor - self.hyper.eps for factor in (1 - 1e-6, 1 + 1e-6))
            # 1/(1 + c/(v̄ + ε)) never falls as v̄ grows, even rounded: a decision at a bound also holds beyond it.
            low[(low < 0) | self._below(r, np.maximum(low, 0))] = -np.inf
            high = np.maximum(high, 0)
            high[~self._below(r, high)] = np.inf
        return np.stack([low, high], axis=1)

    def _passes(self, element: int, step: int, client: int, v: float) -> bool:
        return bool(self._below(self.uniform(element, step, client), v))

    def _below(self, r: Any, v: Any) -> Any:
        """Return whether r < 1/(1 + c/(v + ε)), for numbers or arrays of them."""
        return r < 1.0 / (1.0 + self.hyper.c / (v + self.hyper.eps))
