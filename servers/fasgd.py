"""Faster asynchronous SGD: each parameter's step is divided by a moving standard deviation of its gradient.

    n ← γ n + (1−γ) g²                      (eq 4)
    b ← γ b + (1−γ) g                       (eq 5)
    v ← β v + (1−β) √(n − b² + ε)           (eq 6, variant `std`)
    θ ← θ − α g / (v d)                     (eqs 7, 8), d = max(τ, 1) or τ + 1

Odena 2016, "Faster asynchronous SGD", arXiv:1601.04033.

Departures. The paper's eq 6 divides by the root instead (variant `printed`), which contradicts its prose and its code.
The code behind its figures keeps v ← 0.9 v + 0.1 |g|, starting from v = 0, and steps by α g / ((v + 0.001)(τ + 1))
(variant `released`). Neither paper nor code gives γ, β, ε and the initial values of `std`: ours are 0.9, 0.9, 1e-4,
n = b = 0 and v = 1. n − b² may round below zero, so the root is taken of max(n − b², 0) + ε. The averages n, b and v
are stored flushed: below 2⁻⁶² they become +0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from fredsim.hyper import Epsilon, Fraction
from fredsim.numerics.rules import Rule, absolute, flush, positive_part, sqrt
from fredsim.servers.base import Array, Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.staleness import Divisor, divisor

__all__ = ["FASGD"]


def standard_deviation(
    theta: Any, n: Any, b: Any, v: Any, g: Any, alpha: Any, gamma: Any, fresh_gamma: Any, beta: Any, fresh_beta: Any,
    eps: Any, d: Any,
) -> Any:  # fmt: skip
    """One push with v as a standard deviation."""
    n = gamma * n + fresh_gamma * (g * g)
    b = gamma * b + fresh_gamma * g
    v = beta * v + fresh_beta * sqrt(positive_part(n - b * b) + eps)
    theta = theta - (alpha * g) / (v * d)
    return theta, flush(n), flush(b), flush(v)


def as_printed(
    theta: Any, n: Any, b: Any, v: Any, g: Any, alpha: Any, gamma: Any, fresh_gamma: Any, beta: Any, fresh_beta: Any,
    eps: Any, d: Any,
) -> Any:  # fmt: skip
    """One push with v as eq 6 is printed: an inverse standard deviation. Its new term is 0 if n is infinite."""
    n = gamma * n + fresh_gamma * (g * g)
    b = gamma * b + fresh_gamma * g
    v = beta * v + fresh_beta / sqrt(positive_part(n - b * b) + eps)
    theta = theta - (alpha * g) / (v * d)
    return theta, flush(n), flush(b), flush(v)


def as_released(theta: Any, v: Any, g: Any, alpha: Any, d: Any) -> Any:
    """One push as in the released code: v is an average of |g|."""
    v = 0.9 * v + 0.1 * absolute(g)
    theta = theta - (alpha * g) / ((v + 0.001) * d)
    return theta, flush(v)


RULES = {
    "std": Rule(standard_deviation, state=("n", "b", "v"), zero_keeps=True),
    "printed": Rule(as_printed, state=("n", "b", "v")),
    "released": Rule(as_released, state=("v",), zero_keeps=True),
}


class FASGD(ElementwiseServer):
    """Faster asynchronous SGD, in three variants; its statistic is `v`."""

    idea = "divide each parameter's step by a moving standard deviation of its gradient, and by the staleness"
    deviation = "v"
    citation = "Odena 2016, Faster asynchronous SGD, arXiv:1601.04033"

    class Hyper(Rated):
        """Hyper-parameters of FASGD; `released` takes no gamma, beta or eps."""

        gamma: Fraction = 0.9
        """γ, the decay rate of the mean gradient and the mean square; not used by variant `released`."""
        beta: Fraction = 0.9
        """β, the decay rate of v; not used by variant `released`."""
        eps: Epsilon = 1e-4
        """ε, added to the variance under the root; not used by variant `released`."""
        variant: Literal["std", "released", "printed"] = "std"
        """v is `std`, a standard deviation; `released`, as in the released code; or `printed`, as eq 6 is printed."""
        divisor: Divisor | None = None
        """What a step is divided by: `max1`, max(τ, 1); `plus1`, τ + 1; null: plus1 if variant is released, or max1."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Return the divisor of the paper, or of its code."""
            return {"divisor": "plus1" if self.variant == "released" else "max1"}

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        h = self.hyper
        # A v that overflowed stays infinite, so that later steps are 0; but with β = 0 it becomes 0·∞, NaN.
        forgets = h.variant == "std" and not np.float32(h.beta)
        self.rule = replace(RULES[h.variant], zero_keeps=False) if forgets else RULES[h.variant]
        self._divisor: Divisor = h.divisor or h.resolve_defaults(0)["divisor"]
        self._fixed = tuple(np.float32(x) for x in (h.gamma, 1 - h.gamma, h.beta, 1 - h.beta, h.eps))

    def initial_state(self) -> dict[str, float | Array]:
        """Return v = 1 (variant `released`: v = 0)."""
        return {"v": float(self.hyper.variant != "released")}

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return the fixed coefficients and d."""
        alpha, d = np.float32(self.rate(t)), divisor(self._divisor, staleness)
        return (alpha, d) if self.hyper.variant == "released" else (alpha, *self._fixed, d)
