"""Delayed Nesterov, of asynchronous DiLoCo: momentum is updated only every N arrivals, with plain steps in between.

    g = Σ α ∇ over the client's local steps,   s ← s + g
    every N-th arrival:   m ← β m + s/N,   θ ← θ − ε ((1 − c N + c) β m + g/N),   s ← 0
    any other:            θ ← θ − ε (c β m + g/N)

So N arrivals change the momentum by their mean, however stale each is; c spreads the momentum's step over the N steps.

Liu et al. 2024, "Asynchronous local-SGD training for language modeling", arXiv:2401.09135, Algorithm 3.

Departures: clients' local steps are those of SGD, and all clients take equally many, unless `clients.optimizer` (AdamW
in the paper) and `clients.local_steps` (dynamic local updates) say otherwise. There is no grace period. Clients push
−g, so m and s are kept with that sign; they are stored flushed: below 2⁻⁶² they become +0.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fredsim.errors import ConfigError
from fredsim.hyper import Fraction, Positive, PositiveInt
from fredsim.numerics.rules import Rule, flush, where
from fredsim.servers.base import Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["DelayedNesterov"]


def delayed(theta: Any, m: Any, s: Any, delta: Any, eps: Any, n: Any, beta: Any, renewed: Any, share: Any) -> Any:
    """θ + ε·(share·m + Δ/N), share = c·β or (1 − c·N + c)·β."""
    s = s + delta
    m = where(renewed > 0, beta * m + s / n, m)
    theta = theta + eps * (share * m + delta / n)
    return theta, flush(m), where(renewed > 0, 0.0, flush(s))


class DelayedNesterov(ElementwiseServer):
    """Momentum over the means of N updates; `lr` is the learning rate of the clients' local steps."""

    idea = "step by a share of each client's local update, and by momentum only once every few arrivals"
    citation = "Liu et al. 2024, Asynchronous local-SGD training for language modeling, arXiv:2401.09135"
    pushes = "delta"

    class Hyper(Rated):
        """Hyper-parameters of DelayedNesterov; `every` is N, `server_lr` ε, `momentum` β, `activation` c."""

        server_lr: Positive = 0.7
        """ε, the server's learning rate."""
        momentum: Fraction = 0.9
        """β, the decay rate of the momentum."""
        every: PositiveInt | None = None
        """N: the momentum is updated at every N-th arrival; null is the number of clients."""
        activation: Annotated[float, Field(ge=0, le=1)] = 0.0
        """c, the share of the momentum in each step, 1/N at most; with 0 only every N-th step has momentum."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Return the N that null stands for."""
            return {"every": clients}

    rule = Rule(delayed, state=("m", "s"))

    def expect(self, clients: int) -> None:
        """Note the number of clients, and set N. Raises ConfigError if the activation exceeds 1/N."""
        super().expect(clients)
        self._n = self.hyper.every or clients
        if self.hyper.activation * self._n > 1:
            raise ConfigError(
                f"server.activation is {self.hyper.activation:g}; it must not exceed 1/N, {1 / self._n:g}, N = "
                f"{self._n} (server.every, or clients.count)"
            )

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (ε, N, β, 1 if the momentum is updated or else 0, (1 − c N + c) β or else c β)."""
        h, renewed = self.hyper, (t + 1) % self._n == 0
        share = np.where(renewed, 1 - h.activation * self._n + h.activation, h.activation) * h.momentum
        return tuple(np.float32(x) for x in (h.server_lr, self._n, h.momentum, renewed, share))
