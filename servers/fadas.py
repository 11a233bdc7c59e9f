"""FADAS: FedBuff whose server steps by AMSGrad, with a smaller step if the buffer has a very stale update.

    Δ = (Σ_M Δ_i) / M,   Δ_i = −Σ α g over the client's local steps
    m ← β₁ m + (1−β₁) Δ,   v ← β₂ v + (1−β₂) Δ²,   v̂ ← max(v̂, v)
    θ ← θ + η m / (√v̂ + ε),   η times τ_c/τ where the largest staleness τ of the buffer exceeds τ_c

Wang, Wang, Lu and Chen 2024, "FADAS: towards federated adaptive asynchronous optimization", arXiv:2407.18365.

Departures: beyond τ_c the paper's step is min(η, 1/τ), which for its η of 0.001 differs from η only if τ exceeds 1,000;
implementations divide η by τ. The factor τ_c/τ is 1/τ for the τ_c = 1 of the paper's experiments, and has no jump at
τ_c for any other. m, v and v̂ are stored flushed: below 2⁻⁶² they become +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Epsilon, Fraction, Positive, PositiveInt
from fredsim.networks.layout import Layout
from fredsim.numerics.rules import Rule, flush, sqrt, where
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.batches import BufferedServer

__all__ = ["FADAS"]


def amsgrad(
    theta: Any, m: Any, v: Any, largest: Any, total: Any, eta: Any, count: Any, beta1: Any, fresh1: Any, beta2: Any,
    fresh2: Any, eps: Any,
) -> Any:  # fmt: skip
    """θ + (η·m)/(√v̂ + ε)."""
    delta = total / count
    m = beta1 * m + fresh1 * delta
    v = beta2 * v + fresh2 * (delta * delta)
    largest = where(largest > v, largest, v)
    theta = theta + (eta * m) / (sqrt(largest) + eps)
    return theta, flush(m), flush(v), flush(largest)


class FADAS(BufferedServer):
    """AMSGrad over buffered updates; `lr` is the learning rate of the clients' local steps."""

    idea = "step by AMSGrad along the mean of every few clients' local updates, with smaller steps after stale ones"
    citation = "Wang et al. 2024, FADAS: towards federated adaptive asynchronous optimization, arXiv:2407.18365"

    class Hyper(Rated):
        """Hyper-parameters of FADAS; `buffer` is M, `server_lr` η."""

        server_lr: Positive = 0.001
        """η, the server's learning rate."""
        buffer: PositiveInt = 5
        """M, how many of the clients' updates make a step."""
        beta1: Fraction = 0.9
        """β₁, the decay rate of the mean update."""
        beta2: Fraction = 0.99
        """β₂, the decay rate of the mean square."""
        eps: Epsilon = 1e-8
        """ε, added to the root of the largest mean square."""
        tau_c: PositiveInt | None = 1
        """τ_c: up to this staleness η is not reduced; null never reduces it."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Say what null stands for: no staleness reduces η."""
            return {"tau_c": "never reduced"}

    rule = Rule(amsgrad, state=("m", "v", "largest"))
    state_names = ("_stalest",)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters and start an empty buffer."""
        super().init(params, clients, layout)
        self._stalest = 0  # the largest staleness of the updates in the buffer

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (η, M, β₁, 1−β₁, β₂, 1−β₂, ε) for a buffer whose stalest update has this staleness."""
        h = self.hyper
        eta = h.server_lr * (h.tau_c / np.maximum(h.tau_c, staleness) if h.tau_c else 1.0)
        fixed = (eta, self.needed, h.beta1, 1 - h.beta1, h.beta2, 1 - h.beta2, h.eps)
        return tuple(np.float32(x) for x in fixed)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the client's update; step when the buffer is full. The client continues either way."""
        self._stalest = max(self._stalest, self.timestamp - timestamp)
        return self.collect(grad.copy(), client_id)

    def step(self, total: Array, client_id: int) -> None:
        """Make a step with the sum of a full buffer, reduced for the staleness of its stalest update."""
        self._apply(total, client_id, *self.coefficients(self.timestamp, self._stalest))
        self._stalest = 0
