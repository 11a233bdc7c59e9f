"""SGD with momentum as an asynchronous server: one velocity for all clients.

    v ← γ v + g
    heavy-ball: θ ← θ − α v        Nesterov: θ ← θ − α (g + γ v)

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
from fredsim.numerics.rules import Rule, flush
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["Momentum"]


def heavy_ball(theta: Any, v: Any, g: Any, alpha: Any, gamma: Any) -> Any:
    """θ − α·v."""
    v = gamma * v + g
    return theta - alpha * v, flush(v)


def nesterov(theta: Any, v: Any, g: Any, alpha: Any, gamma: Any) -> Any:
    """θ − α·(g + γ·v)."""
    v = gamma * v + g
    return theta - alpha * (g + gamma * v), flush(v)


class Momentum(ElementwiseServer):
    """SGD with heavy-ball or Nesterov momentum."""

    idea = "step along a decaying sum of all clients' gradients"
    citation = "Polyak 1964; Sutskever et al. 2013, On the importance of initialization and momentum, ICML"

    class Hyper(Rated):
        """Hyper-parameters of Momentum; `momentum` is γ."""

        momentum: Fraction = 0.9
        """γ, the decay rate of the velocity."""
        nesterov: bool = False
        """Whether a step is Nesterov's, θ − α (g + γ v), or heavy-ball."""

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        self.rule = Rule(nesterov if self.hyper.nesterov else heavy_ball, state=("v",))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, γ)."""
        return np.float32(self.rate(t)), np.float32(self.hyper.momentum)
