"""Delay-adaptive asynchronous SGD: only gradients that are more than n updates old get a smaller step.

    θ ← θ − α n / max(n, τ) g

Mishchenko, Bach, Even and Woodworth 2022, arXiv:2206.07638; Koloskova, Stich and Jaggi 2022, arXiv:2206.08307.

Departures: n is the number of clients unless it is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import PositiveInt
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Coefficients, Rated, Steps

__all__ = ["DelayAdaptive"]


class DelayAdaptive(ASGD):
    """Asynchronous SGD whose step shrinks with delays above n."""

    idea = "multiply the step by n / max(n, staleness)"
    citation = "Mishchenko et al. 2022, arXiv:2206.07638; Koloskova et al. 2022, arXiv:2206.08307"

    class Hyper(Rated):
        """Hyper-parameters of DelayAdaptive; `n` null means the number of clients."""

        n: PositiveInt | None = None
        """n: up to this staleness α is not reduced; null is the number of clients."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Return the n that null stands for."""
            return {"n": clients}

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α n / max(n, τ),); the quotient is exactly 1 up to τ = n."""
        n = self.hyper.n or self.clients
        return (np.float32(self.rate(t) * (n / np.maximum(n, staleness))),)
