"""Plain SGD at the clients.

    x ← x − α g

McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data", arXiv:1602.05629
(local SGD within federated averaging).

Departures: none.
"""

from __future__ import annotations

import numpy as np

from fredsim.numerics.rules import Rule
from fredsim.optimizers.base import Optimizer, Stepping
from fredsim.servers.asgd import descend
from fredsim.servers.base import Coefficients

__all__ = ["SGD"]


class SGD(Optimizer):
    """Steps against the gradient."""

    idea = "step against the gradient of each minibatch"
    citation = "McMahan et al. 2017, Communication-efficient learning from decentralized data, arXiv:1602.05629"

    class Hyper(Stepping):
        """Hyper-parameters of SGD."""

    rule = Rule(descend)

    def coefficients(self, alpha: float, k: int) -> Coefficients:
        """Return (α,)."""
        return (np.float32(alpha),)
