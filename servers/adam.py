"""Adam as an asynchronous server; with `weight_decay` it is AdamW.

    m ← β₁ m + (1−β₁) g,   s ← β₂ s + (1−β₂) g²
    θ ← θ − α (m / (1−β₁ᵗ)) / (√(s / (1−β₂ᵗ)) + ε),   t from 1

Kingma and Ba 2015, "Adam: a method for stochastic optimization", arXiv:1412.6980.

Departures: m and s are stored flushed: below 2⁻⁶² they become +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Epsilon, Fraction
from fredsim.numerics.elementary import pow64
from fredsim.numerics.rules import Rule, flush, sqrt
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["Adam", "unbiased"]


def scaled(
    theta: Any, m: Any, s: Any, g: Any, alpha: Any, beta1: Any, fresh1: Any, beta2: Any, fresh2: Any, eps: Any,
    correction1: Any, correction2: Any,
) -> Any:  # fmt: skip
    """θ − (α·m̂)/(√ŝ + ε)."""
    m = beta1 * m + fresh1 * g
    s = beta2 * s + fresh2 * (g * g)
    theta = theta - (alpha * (m / correction1)) / (sqrt(s / correction2) + eps)
    return theta, flush(m), flush(s)


def unbiased(beta: float, t: Steps) -> Any:
    """Return 1 − βᵗ for t ≥ 1, computed in float64: the divisor that corrects the bias of a moving average from 0."""
    return np.float32(1.0 - pow64(beta, t))


class Adam(ElementwiseServer):
    """Adam over the gradients of all clients."""

    idea = "step along a moving mean of the gradient, divided by a moving root mean square"
    citation = "Kingma and Ba 2015, Adam: a method for stochastic optimization, arXiv:1412.6980"

    class Hyper(Rated):
        """Hyper-parameters of Adam."""

        beta1: Fraction = 0.9
        """β₁, the decay rate of the mean gradient."""
        beta2: Fraction = 0.999
        """β₂, the decay rate of the mean square."""
        eps: Epsilon = 1e-8
        """ε, added to the root of the mean square."""

    rule = Rule(scaled, state=("m", "s"))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, β₁, 1−β₁, β₂, 1−β₂, ε, 1−β₁ᵗ, 1−β₂ᵗ)."""
        h = self.hyper
        fixed = (self.rate(t), h.beta1, 1 - h.beta1, h.beta2, 1 - h.beta2, h.eps)
        return (*(np.float32(x) for x in fixed), unbiased(h.beta1, t + 1), unbiased(h.beta2, t + 1))
