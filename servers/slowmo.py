"""SlowMo: synchronous rounds of local steps, and momentum on the server over the clients' averages.

    Δ_i = −Σ γ g over the client's local steps,   x̄ = θ + (Σ_i Δ_i) / λ
    u ← β u + (θ − x̄) / γ,   θ ← θ − α γ u

Wang, Tantia, Ballas and Rabbat 2020, "SlowMo: improving communication-efficient distributed SGD with slow momentum",
arXiv:1910.00643, Algorithm 1, over local SGD. With β = 0 and α = 1 it is local SGD; with one local step as well,
minibatch SGD.

Departures: the clients' local steps are those of SGD, unless `clients.optimizer` says otherwise. While a schedule makes
γ 0, (θ − x̄)/γ is taken as 0, and θ stays, even if the clients have moved by a learning rate of their own. u is stored
flushed: below 2⁻⁶² it becomes +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Fraction, Positive
from fredsim.numerics.rules import Rule, flush, where
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.batches import RoundServer

__all__ = ["SlowMo"]


def slow_momentum(theta: Any, u: Any, total: Any, gamma: Any, count: Any, beta: Any, step: Any) -> Any:
    """θ − (α·γ)·u, with θ − x̄ = −Σ/λ."""
    moved = where(gamma > 0, (-total / count) / gamma, 0.0)
    u = beta * u + moved
    return theta - step * u, flush(u)


class SlowMo(RoundServer):
    """Momentum over rounds of local steps; `lr` is the learning rate of the clients' local steps."""

    idea = "wait for every client's local update, then step along a decaying sum of their means"
    citation = "Wang et al. 2020, SlowMo: communication-efficient distributed SGD with slow momentum, arXiv:1910.00643"
    pushes = "delta"

    class Hyper(Rated):
        """Hyper-parameters of SlowMo; `lr` is γ, `momentum` β, `server_lr` α."""

        server_lr: Positive = 1.0
        """α, the slow learning rate."""
        momentum: Fraction = 0.5
        """β, the decay rate of the slow momentum."""

    rule = Rule(slow_momentum, state=("u",))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (γ, λ, β, α γ)."""
        h, gamma = self.hyper, self.rate(t)
        return tuple(np.float32(x) for x in (gamma, self.needed, h.momentum, h.server_lr * gamma))

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the client's update; the client is held until the round closes."""
        return self.collect(grad.copy(), client_id)
