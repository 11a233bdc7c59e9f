"""AdamW at the clients: each has moving means of its own.

    x ← x − α w x
    m ← β₁ m + (1−β₁) g,   s ← β₂ s + (1−β₂) g²
    x ← x − α (m / (1−β₁ᵏ)) / (√(s / (1−β₂ᵏ)) + ε),   k from 1, w the weight decay

Loshchilov and Hutter 2019, "Decoupled weight decay regularization", arXiv:1711.05101.

Departures: m and s are stored flushed: below 2⁻⁶² they become +0. k counts the steps since the state began.
"""

from __future__ import annotations

import numpy as np

from fredsim.hyper import Epsilon, Fraction, NonNegative
from fredsim.numerics.rules import Rule
from fredsim.optimizers.base import Optimizer, Remembering
from fredsim.servers.adam import scaled, unbiased
from fredsim.servers.base import Coefficients

__all__ = ["AdamW"]


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    idea = "step along a moving mean of the client's own gradients, divided by a moving root mean square"
    citation = "Loshchilov and Hutter 2019, Decoupled weight decay regularization, arXiv:1711.05101"

    class Hyper(Remembering):
        """Hyper-parameters of AdamW."""

        weight_decay: NonNegative = 0.01
        """w: before each local step the client's parameters lose this share of themselves, times α."""
        beta1: Fraction = 0.9
        """β₁, the decay rate of the mean gradient."""
        beta2: Fraction = 0.999
        """β₂, the decay rate of the mean square."""
        eps: Epsilon = 1e-8
        """ε, added to the root of the mean square."""

    rule = Rule(scaled, state=("m", "s"))

    def coefficients(self, alpha: float, k: int) -> Coefficients:
        """Return (α, β₁, 1−β₁, β₂, 1−β₂, ε, 1−β₁ᵏ⁺¹, 1−β₂ᵏ⁺¹)."""
        h = self.hyper
        fixed = (alpha, h.beta1, 1 - h.beta1, h.beta2, 1 - h.beta2, h.eps)
        return (*(np.float32(x) for x in fixed), unbiased(h.beta1, k + 1), unbiased(h.beta2, k + 1))
