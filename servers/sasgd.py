"""Staleness-aware asynchronous SGD: a gradient that is τ updates old is divided by τ.

    θ ← θ − α (g / d),   d = max(τ, 1)  or  τ + 1

Zhang, Gupta, Lian and Liu 2015, "Staleness-aware async-SGD for distributed deep learning", arXiv:1511.05950, with n =
λ.

Departures: with `divisor: plus1` it is divided by τ + 1, as in FRED's released code (Odena 2016, arXiv:1601.04033,
whose text has τ).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.numerics.rules import Rule
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.staleness import Divisor, divisor

__all__ = ["SASGD"]


def descend(theta: Any, g: Any, alpha: Any, d: Any) -> Any:
    """θ − α·(g/d)."""
    return theta - alpha * (g / d)


class SASGD(ElementwiseServer):
    """Staleness-aware asynchronous SGD."""

    idea = "divide the gradient by its staleness"
    citation = "Zhang et al. 2015, Staleness-aware async-SGD for distributed deep learning, arXiv:1511.05950"

    class Hyper(Rated):
        """Hyper-parameters of SASGD."""

        divisor: Divisor = "max1"
        """What a step is divided by: `max1`, max(τ, 1); `plus1`, τ + 1."""

    rule = Rule(descend, zero_keeps=True)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, d)."""
        return np.float32(self.rate(t)), divisor(self.hyper.divisor, staleness)
