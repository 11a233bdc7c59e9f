"""RMSProp as an asynchronous server.

    s ← ρ s + (1−ρ) g²,   θ ← θ − α g / (√s + ε)

Tieleman and Hinton 2012, lecture 6.5 of "Neural networks for machine learning".

Departures: ε is outside the root, as in PyTorch. s is stored flushed: below 2⁻⁶² it becomes +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Epsilon, Fraction
from fredsim.numerics.rules import Rule, flush, sqrt
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["RMSProp"]


def scaled(theta: Any, s: Any, g: Any, alpha: Any, rho: Any, fresh: Any, eps: Any) -> Any:
    """θ − (α·g)/(√s + ε)."""
    s = rho * s + fresh * (g * g)
    return theta - (alpha * g) / (sqrt(s) + eps), flush(s)


class RMSProp(ElementwiseServer):
    """RMSProp over the gradients of all clients."""

    idea = "divide each parameter's step by a moving root mean square of its gradient"
    citation = "Tieleman and Hinton 2012, Neural networks for machine learning, lecture 6.5"

    class Hyper(Rated):
        """Hyper-parameters of RMSProp; `decay` is ρ."""

        decay: Fraction = 0.99
        """ρ, the decay rate of the mean square."""
        eps: Epsilon = 1e-8
        """ε, added to the root of the mean square."""

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        # A mean square that overflowed stays infinite, so that later steps are 0; but with ρ = 0 it becomes 0·∞, NaN.
        self.rule = Rule(scaled, state=("s",), zero_keeps=bool(np.float32(self.hyper.decay)))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, ρ, 1−ρ, ε)."""
        h = self.hyper
        return np.float32(self.rate(t)), np.float32(h.decay), np.float32(1 - h.decay), np.float32(h.eps)
