"""SGD with momentum at the clients: each has a velocity of its own.

    v ← γ v + g
    heavy-ball: x ← x − α v        Nesterov: x ← x − α (g + γ v)

Polyak 1964, "Some methods of speeding up the convergence of iteration methods"; Sutskever et al. 2013, "On the
importance of initialization and momentum in deep learning" (Nesterov's form).

Departures: α multiplies v, as in PyTorch; the papers have it within v, v ← γ v − α g. With a constant α that is the
same; when α changes, so do the steps along what v has gathered before, at once. v is stored flushed: below 2⁻⁶² it
becomes +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Fraction
from fredsim.numerics.rules import Rule
from fredsim.optimizers.base import Optimizer, Remembering
from fredsim.servers.base import Coefficients
from fredsim.servers.momentum import heavy_ball, nesterov

__all__ = ["Momentum"]


class Momentum(Optimizer):
    """SGD with heavy-ball or Nesterov momentum."""

    idea = "step along a decaying sum of the client's own gradients"
    citation = "Polyak 1964; Sutskever et al. 2013, On the importance of initialization and momentum, ICML"

    class Hyper(Remembering):
        """Hyper-parameters of Momentum; `momentum` is γ."""

        momentum: Fraction = 0.9
        """γ, the decay rate of the velocity."""
        nesterov: bool = False
        """Whether a step is Nesterov's, x − α (g + γ v), or heavy-ball."""

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        self.rule = Rule(nesterov if self.hyper.nesterov else heavy_ball, state=("v",))

    def coefficients(self, alpha: float, k: int) -> Coefficients:
        """Return (α, γ)."""
        return np.float32(alpha), np.float32(self.hyper.momentum)
