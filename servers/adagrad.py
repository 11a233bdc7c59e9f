"""AdaGrad as an asynchronous server.

    s ← s + g²,   θ ← θ − α g / (√s + ε)

Duchi, Hazan and Singer 2011, "Adaptive subgradient methods for online learning and stochastic optimization", JMLR 12.

Departures: s is stored flushed: while it is below 2⁻⁶² it stays +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Epsilon
from fredsim.numerics.rules import Rule, flush, sqrt
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["AdaGrad"]


def scaled(theta: Any, s: Any, g: Any, alpha: Any, eps: Any) -> Any:
    """θ − (α·g)/(√s + ε)."""
    s = s + g * g
    return theta - (alpha * g) / (sqrt(s) + eps), flush(s)


class AdaGrad(ElementwiseServer):
    """AdaGrad over the gradients of all clients."""

    idea = "divide each parameter's step by the root of the sum of its squared gradients"
    citation = "Duchi et al. 2011, Adaptive subgradient methods for online learning, JMLR 12:2121-2159"

    class Hyper(Rated):
        """Hyper-parameters of AdaGrad."""

        eps: Epsilon = 1e-10
        """ε, added to the root of the summed squares."""

    rule = Rule(scaled, state=("s",), zero_keeps=True)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, ε)."""
        return np.float32(self.rate(t)), np.float32(self.hyper.eps)
