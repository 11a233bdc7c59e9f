"""Averaged SGD: the result is the mean of the iterates after t₀; averaging does not change the iterates themselves.

    p ← p − η g,   ā ← ā + μ (p − ā),   μ = 1/max(1, t − t₀),   t from 1

Polyak and Juditsky 1992, "Acceleration of stochastic approximation by averaging". Not to be called "ASGD", which is
asynchronous SGD.

`mode: polyak` averages exactly the iterates t > t₀: if t₀ is fractional, μ uses ⌊t₀⌋. Decay comes before the step, as
p (1 − η l2) or p − η l1 sign(p). `mode: torch` follows torch.optim.ASGD: g ← g + l2 p; p ← p (1 − lambd η);
p ← p − η g; then ā, with a μ that lags by a step, so that with t₀ = 0 the first iterate drops out, and that uses t₀ as
it is; then η = α/(1 + lambd α t)^alpha.

Departures: in torch's step, multiply and add are rounded separately, where torch fuses them; t₀ is 0 by default, since
with torch's 10⁶ hardly any run would average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from fredsim.hyper import NonNegative
from fredsim.numerics.elementary import pow64
from fredsim.numerics.rules import Rule, sign
from fredsim.servers.base import Array, Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.schedules import rate_at

__all__ = ["AveragedSGD"]


# Each rule averages by ā ← old·ā + μ·(p − old·ā): with old = 0 and μ = 1 that is p itself, to the bit.


def with_l2(theta: Any, mean: Any, g: Any, old: Any, mu: Any, eta: Any, kept: Any) -> Any:
    """Decay to p·(1 − η·l2), step, average; with l2 = 0, p·1 is p itself."""
    theta = theta * kept
    theta = theta - eta * g
    mean = old * mean
    return theta, mean + mu * (theta - mean)


def with_l1(theta: Any, mean: Any, g: Any, old: Any, mu: Any, eta: Any, shrink: Any) -> Any:
    """Decay to p − (η·l1)·sign(p), step, average."""
    theta = theta - shrink * sign(theta)
    theta = theta - eta * g
    mean = old * mean
    return theta, mean + mu * (theta - mean)


def torch_with_l2(theta: Any, mean: Any, g: Any, old: Any, mu: Any, eta: Any, kept: Any, l2: Any) -> Any:
    """Add l2·p to the gradient, decay by lambd, step, average; without l2 this is `with_l2`."""
    g = g + l2 * theta
    theta = theta * kept
    theta = theta - eta * g
    mean = old * mean
    return theta, mean + mu * (theta - mean)


class AveragedSGD(ElementwiseServer):
    """SGD whose result is the mean of its iterates, `averaged_params`."""

    idea = "plain steps; evaluate the mean of the iterates after t0"
    citation = (
        "Polyak and Juditsky 1992, Acceleration of stochastic approximation by averaging, SIAM J. Control Optim. 30:838"
    )

    class Hyper(Rated):
        """Hyper-parameters of AveragedSGD; `lambd` and `alpha` are torch's, for that mode only."""

        t0: NonNegative = 0.0
        """t₀: iterates count from this update on."""
        l1: NonNegative = 0.0
        """L1 regularization, before each step; not in mode torch."""
        l2: NonNegative = 0.0
        """L2 regularization, before each step."""
        mode: Literal["polyak", "torch"] = "polyak"
        """Whether to average as Polyak and Juditsky do, or as torch.optim.ASGD does."""
        lambd: NonNegative = 1e-4
        """The decay term of torch.optim.ASGD; used in mode torch only."""
        alpha: NonNegative = 0.75
        """The power of torch.optim.ASGD's learning rate; used in mode torch only."""

        @model_validator(mode="after")
        def check(self) -> AveragedSGD.Hyper:
            """Refuse combinations that the modes do not have."""
            if self.l1 and self.l2:
                raise ValueError("give one of l1 and l2")
            if self.mode == "torch" and (self.l1 or not isinstance(self.lr, float | int)):
                raise ValueError("mode torch takes no l1 and no schedule: it has a schedule of its own")
            return self

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        h = self.hyper
        torch: Callable[..., Any] = torch_with_l2 if h.l2 else with_l2
        function = torch if h.mode == "torch" else with_l1 if h.l1 else with_l2
        self.rule = Rule(function, state=("mean",))

    def initial_state(self) -> dict[str, float | Array]:
        """Return the initial mean: the parameters."""
        return {"mean": self.params.copy()}

    @property
    def averaged_params(self) -> Array:
        """The mean of the iterates after t₀; before that the last iterate."""
        return self.arrays["mean"]

    def rate(self, t: Steps | None = None) -> Any:
        """Return η at timestamp t, by default the present one."""
        h = self.hyper
        if h.mode == "polyak":
            return super().rate(t)
        base = rate_at(h.lr, 0)
        t = self.timestamp if t is None else t
        return base / pow64(1.0 + h.lambd * base * t, h.alpha)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (old, μ, η) and the further coefficients of the rule."""
        h, eta = self.hyper, self.rate(t)
        # torch's μ lags by a step: at step t it is 1/max(1, t − 1 − t₀).
        since = t - h.t0 if h.mode == "torch" else t + 1 - np.floor(h.t0)
        first = (np.float32(since > 1), np.float32(1.0 / np.maximum(1.0, since)), np.float32(eta))
        if h.mode == "torch":
            kept = np.float32(1.0 - h.lambd * np.float64(np.float32(eta)))  # from η as torch stores it, in float32
            return (*first, kept, np.float32(h.l2)) if h.l2 else (*first, kept)
        return (*first, np.float32(eta * h.l1 if h.l1 else 1.0 - eta * h.l2))
