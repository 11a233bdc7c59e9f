"""FedAsync: clients train for a while on their own, and the server mixes their parameters into its own.

    θ ← (1 − ρ) θ + ρ θ_client,   ρ = mixing · s(τ)
    s: constant 1; polynomial (τ+1)^−a; hinge 1 up to τ = b, then 1/(a (τ − b) + 1)

Xie, Koyejo and Gupta 2019, "Asynchronous federated optimization", arXiv:1903.03934.

Departures: the proximal term of the clients' local steps is `clients.prox`, 0 by default. τ counts the updates since a
client fetched, so that a fresh push has τ = 0; the paper's t − τ also counts the update about to be made, and is 1 for
it. `a` is 0.5 by default for the hinge, too; the paper's experiments take 10 there, with b = 4.
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
    """Mixes in clients' parameters, the staler the less; `lr` is the learning rate of the clients' local steps."""

    idea = "mix the parameters after a client's local steps into the server's, with less weight the staler they are"
    citation = "Xie et al. 2019, Asynchronous federated optimization, arXiv:1903.03934"
    pushes = "params"

    class Hyper(Rated):
        """Hyper-parameters of FedAsync; `rule` is s, `a` and `b` are its parameters."""

        mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
        """The share of a client's parameters in the mix if its staleness is 0."""
        rule: Literal["constant", "polynomial", "hinge"] = "polynomial"
        """s, how that share falls with the staleness."""
        a: NonNegative = 0.5
        """a, the power of `polynomial`, or the slope of `hinge`."""
        b: NonNegative = 4.0
        """b: up to this staleness, `hinge` does not reduce the share."""

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
