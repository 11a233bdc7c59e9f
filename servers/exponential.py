"""Asynchronous SGD with an exponential penalty on staleness.

    θ ← θ − α exp(−κτ) g

Chan and Lane 2014, "Distributed asynchronous optimization of convolutional neural networks", Interspeech.

Departures: κ has no published value, so it has no default. α exp(−κτ) is formed in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np

from fredsim.hyper import NonNegative
from fredsim.numerics.elementary import exp64
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Coefficients, Rated, Steps

__all__ = ["ExponentialASGD"]


class ExponentialASGD(ASGD):
    """Asynchronous SGD whose step decays exponentially with staleness."""

    idea = "multiply the step by exp(-kappa * staleness)"
    citation = "Chan and Lane 2014, Distributed asynchronous optimization of convolutional neural networks, Interspeech"

    class Hyper(Rated):
        """Hyper-parameters of ExponentialASGD."""

        kappa: NonNegative
        """κ: α falls as exp(−κτ) with the staleness τ."""

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α exp(−κτ),)."""
        return (np.float32(self.rate(t) * exp64(-self.hyper.kappa * staleness)),)
