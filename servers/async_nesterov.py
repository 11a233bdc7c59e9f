"""Nesterov's method for gradients with a delay, as in asynchronous pipelines: the gradient is discounted by 1 − γ.

    d = γ (w_t − w_{t−1})
    w_{t+1} = w_t + d − η (1 − γ) g,   g a gradient at an earlier look-ahead point w + d

Clients fetch the look-ahead point θ = w + d. With m = w_t − w_{t−1}, a push makes

    m ← γ m − η (1 − γ) g,   θ ← θ − η (1 − γ) g + γ m

With γ near 1, a single stale gradient weighs little, and the look-ahead goes the way on which delayed parameters lag
behind.

Ajanthan, Ramasinghe, Zuo, Avraham and Long 2025, "Nesterov method for asynchronous pipeline parallel optimization",
ICML, arXiv:2505.01099, section 3.

Departures: γ is constant. The paper's experiments, and its code, take NAdam with β₁ = 0.99 and decoupled weight decay
(fredsim.servers.nadam), whose first moment is discounted likewise; this is the method that the paper analyses. What is
evaluated is θ. m is stored flushed: below 2⁻⁶² it becomes +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Fraction
from fredsim.numerics.rules import Rule, flush
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["AsyncNesterov"]


def look_ahead(theta: Any, m: Any, g: Any, gamma: Any, step: Any) -> Any:
    """M' = γ·m − s·g, θ' = (θ − s·g) + γ·m', s = η·(1 − γ)."""
    moved = step * g
    m = gamma * m - moved
    return (theta - moved) + gamma * m, flush(m)


class AsyncNesterov(ElementwiseServer):
    """Nesterov's accelerated gradient, whose gradients are discounted because they are stale."""

    idea = "look ahead along a long momentum, and discount each stale gradient"
    citation = (
        "Ajanthan et al. 2025, Nesterov method for asynchronous pipeline parallel optimization, ICML, arXiv:2505.01099"
    )

    class Hyper(Rated):
        """Hyper-parameters of AsyncNesterov; `momentum` is γ."""

        momentum: Fraction = 0.99
        """γ, the momentum; a gradient is discounted by 1 − γ."""

    rule = Rule(look_ahead, state=("m",))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (γ, η·(1 − γ))."""
        gamma = self.hyper.momentum
        return np.float32(gamma), np.float32(self.rate(t) * (1.0 - gamma))
