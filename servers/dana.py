"""DANA: every client has a momentum of its own, and fetches the parameters that all momenta are about to lead to.

    v_i ← γ v_i + g,   θ ← θ − α v_i
    handed out: θ − α γ Σ_j v_j

Hakimi, Barkai, Gabel and Schuster 2019, "Taming momentum in a distributed asynchronous environment", arXiv:1907.11612
(DANA-Zero).

As in the paper, Σ_j v_j is updated by adding v_i's change to it.

Departures: v_i and the sum are stored flushed: below 2⁻⁶² they become +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Fraction
from fredsim.numerics.rules import Rule, flush
from fredsim.servers.base import Array, Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["DANA"]


def step(theta: Any, v: Any, total: Any, g: Any, alpha: Any, gamma: Any) -> Any:
    """θ − α·v_i, and the sum plus v_i's change."""
    new = gamma * v + g
    total = total + (new - v)
    return theta - alpha * new, flush(new), flush(total)


class DANA(ElementwiseServer):
    """One momentum per client, and a look ahead for the parameters handed out."""

    idea = "keep a momentum for each client; send clients the parameters to which all momenta are about to lead"
    citation = "Hakimi et al. 2019, Taming momentum in a distributed asynchronous environment, arXiv:1907.11612"

    class Hyper(Rated):
        """Hyper-parameters of DANA; `gamma` is γ."""

        gamma: Fraction = 0.9
        """γ, the momentum of each client's velocity."""

    rule = Rule(step, state=("v", "total"))
    per_client = ("v",)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, γ)."""
        return np.float32(self.rate(t)), np.float32(self.hyper.gamma)

    def fetch(self, client_id: int) -> Array:
        """Return θ − (αγ)·Σ_j v_j, by the learning rate of each part, if parts have rates of their own."""
        total, gamma = self.arrays["total"], self.hyper.gamma
        ahead: Array = self.params - np.float32(self.rate() * gamma) * total
        for part, factor in [] if self.rates_of_parts is None else self.rates_of_parts(self.timestamp):
            ahead[part] = self.params[part] - np.float32(self.rate() * factor * gamma) * total[part]
        return ahead
