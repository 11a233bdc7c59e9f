"""signSGD with majority vote: every client sends signs, and the majority's signs move the parameters.

    θ ← θ − α sign(Σ_l sign(g_l)),   one gradient of every client per round

Bernstein et al. 2018, "signSGD: compressed optimisation for non-convex problems", arXiv:1802.04434; 2019,
arXiv:1810.05291.

Departures: sign(0) = 0, both for a client and for a tie. A push counts as signs only if the clients compress it
(compress: sign), at two bits each, since 0 is a third value; otherwise as float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.numerics.rules import Rule, sign
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.batches import RoundServer

__all__ = ["SignMajority"]


def descend_by_sign(theta: Any, g: Any, alpha: Any) -> Any:
    """θ − α·sign(Σ)."""
    return theta - alpha * sign(g)


class SignMajority(RoundServer):
    """signSGD with majority vote: one vote per client and parameter."""

    idea = "step by the sign of the sum of all clients' signs"
    citation = (
        "Bernstein et al. 2018, signSGD: compressed optimisation for non-convex problems, arXiv:1802.04434; "
        "Bernstein et al. 2019, arXiv:1810.05291 (majority vote)"
    )

    Hyper = Rated
    rule = Rule(descend_by_sign)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α,)."""
        return (np.float32(self.rate(t)),)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the client's signs."""
        return self.collect(sign(grad), client_id)
