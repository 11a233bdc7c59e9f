"""NAdam as an asynchronous server: Adam that looks ahead along its moving mean, as Nesterov's method does.

    m ← β₁ m + (1−β₁) g,   s ← β₂ s + (1−β₂) g²
    θ ← θ − α (β₁ m / (1−β₁ᵗ⁺¹) + (1−β₁) g / (1−β₁ᵗ)) / (√(s / (1−β₂ᵗ)) + ε),   t from 1

Dozat 2016, "Incorporating Nesterov momentum into Adam", ICLR workshop, Algorithm 2, with β₁ for its μ of every t. With
β₁ = 0.99 each stale gradient weighs little in m, and the look-ahead goes the way on which delayed parameters lag: so
Ajanthan et al. 2025, arXiv:2505.01099, train asynchronous pipelines, with decoupled weight decay.

Departures: μ is constant; PyTorch's NAdam lets it rise from β₁/2 to β₁. Under the root is s / (1−β₂ᵗ), as in PyTorch;
Algorithm 2 multiplies it by another β₂. m and s are stored flushed: below 2⁻⁶² they become +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Epsilon, Fraction
from fredsim.numerics.elementary import pow64
from fredsim.numerics.rules import Rule, flush, sqrt
from fredsim.servers.adam import unbiased
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["NAdam"]


def ahead(
    theta: Any, m: Any, s: Any, g: Any, alpha: Any, beta1: Any, fresh1: Any, beta2: Any, fresh2: Any, eps: Any,
    along: Any, own: Any, correction2: Any,
) -> Any:  # fmt: skip
    """θ − (α·(along·m + own·g))/(√ŝ + ε)."""
    m = beta1 * m + fresh1 * g
    s = beta2 * s + fresh2 * (g * g)
    theta = theta - (alpha * (along * m + own * g)) / (sqrt(s / correction2) + eps)
    return theta, flush(m), flush(s)


class NAdam(ElementwiseServer):
    """Adam over the gradients of all clients, with Nesterov's look-ahead."""

    idea = "step as Adam does, but along where its moving mean will be"
    citation = "Dozat 2016, Incorporating Nesterov momentum into Adam, ICLR workshop"

    class Hyper(Rated):
        """Hyper-parameters of NAdam."""

        beta1: Fraction = 0.9
        """β₁, the decay rate of the mean gradient; 0.99 for asynchronous pipelines."""
        beta2: Fraction = 0.999
        """β₂, the decay rate of the mean square."""
        eps: Epsilon = 1e-8
        """ε, added to the root of the mean square."""

    rule = Rule(ahead, state=("m", "s"))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, β₁, 1−β₁, β₂, 1−β₂, ε, β₁/(1−β₁ᵗ⁺¹), (1−β₁)/(1−β₁ᵗ), 1−β₂ᵗ)."""
        h = self.hyper
        fixed = (self.rate(t), h.beta1, 1 - h.beta1, h.beta2, 1 - h.beta2, h.eps)
        along = h.beta1 / (1.0 - pow64(h.beta1, t + 2))
        own = (1 - h.beta1) / (1.0 - pow64(h.beta1, t + 1))
        return (*(np.float32(x) for x in (*fixed, along, own)), unbiased(h.beta2, t + 1))
