"""Asynchronous SGD: every gradient is applied as it comes, however stale.

    θ ← θ − α g

Bengio, Ducharme, Vincent and Jauvin 2003, "A neural probabilistic language model", section 3.1; the case n = λ of
n-softsync (Zhang et al. 2015).

Departures: none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.numerics.rules import Rule
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["ASGD"]


def descend(theta: Any, g: Any, alpha: Any) -> Any:
    """θ − α·g."""
    return theta - alpha * g


class ASGD(ElementwiseServer):
    """Asynchronous SGD."""

    idea = "apply every gradient as it comes, however stale"
    citation = "Bengio et al. 2003, A neural probabilistic language model, JMLR 3:1137-1155"

    Hyper = Rated
    rule = Rule(descend, zero_keeps=True)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α,)."""
        return (np.float32(self.rate(t)),)
