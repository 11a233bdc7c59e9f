"""FedAsync: clients train for a while on their own, and the server mixes their parameters into its own.

    θ ← (1 − ρ) θ + ρ θ_client,   ρ = mixing · s(τ)
    s: constant 1; polynomial (τ+1)^−a; hinge 1 up to τ = b, then 1/(a (τ − b) + 1)

Xie, Koyejo and Gupta 2019, "Asynchronous federated optimization", arXiv:1903.03934.

Departures: no proximal term in the clients' local steps. τ counts the updates that a client has missed, so a fresh one
has τ = 0; the paper's t − τ counts the update at hand too, and is 1 then.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fredsim.hyper import NonNegative
from fredsim.numerics.elementary import pow64
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["FedAsync"]


def mix(theta: Any, x: Any, kept: Any, mixed: Any) -> Any:
    """(1−ρ)·θ + ρ·x."""
    return kept * theta + mixed * x


class FedAsync(ElementwiseServer):
    """Mixes clients' parameters in, the less the staler; `lr` is the clients'."""

    idea = "mix the parameters that a client's local steps led to into the server's, the less the staler"
    citation = "Xie et al. 2019, Asynchronous federated optimization, arXiv:1903.03934"
    pushes = "params"

    class Hyper(Rated):
        """Hyper-parameters of FedAsync; `rule` is s, `a` and `b` are its."""

        mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
        """The share of a client's parameters in the mix where its staleness is 0."""
        rule: Literal["constant", "polynomial", "hinge"] = "polynomial"
        """How that share falls with the staleness."""
        a: NonNegative = 0.5
        """The power of polynomial, the slope of hinge."""
        b: NonNegative = 4.0
        """Up to this staleness hinge keeps the whole share."""

    rule = Rule(mix)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (1−ρ, ρ)."""
        h = self.hyper
        share: Any = 1.0
        if h.rule == "polynomial":
            share = pow64(staleness + 1.0, -h.a)
        elif h.rule == "hinge":
            share = 1.0 / (h.a * np.maximum(staleness - h.b, 0) + 1.0)
        return np.float32(1.0 - h.mixing * share), np.float32(h.mixing * share)
