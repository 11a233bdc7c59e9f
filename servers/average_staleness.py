"""Asynchronous SGD with its step divided by the run's average staleness, known beforehand.

    θ ← θ − (α / ⟨τ⟩) g

Gupta, Zhang and Wang 2015, "Model accuracy and runtime tradeoff in distributed deep learning", arXiv:1509.04210,
which also keeps µλ constant.

Departures: none; ⟨τ⟩ is a hyper-parameter, as in the paper: about λ − 1.
"""

from __future__ import annotations

import numpy as np

from fredsim.hyper import Positive
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Coefficients, Rated, Steps

__all__ = ["AverageStaleness"]


class AverageStaleness(ASGD):
    """Asynchronous SGD with the step α/⟨τ⟩."""

    idea = "divide the step by the average staleness of the run, a constant"
    citation = "Gupta et al. 2015, Model accuracy and runtime tradeoff in distributed deep learning, arXiv:1509.04210"

    class Hyper(Rated):
        """Hyper-parameters of AverageStaleness; `staleness` is ⟨τ⟩."""

        staleness: Positive
        """⟨τ⟩, the expected staleness that α is divided by."""

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α/⟨τ⟩,)."""
        return (np.float32(self.rate(t) / self.hyper.staleness),)
