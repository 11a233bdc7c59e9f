"""THROTTLE: asynchronous SGD in rounds, in each of which every further gradient of a client counts less.

    θ ← θ − α g/n     for a client's first gradient of the round
    θ ← θ − α g/qᶜ    for one after c others of this client,   c = 1, 2, …

A round ends when every client has sent a gradient; then all clients give up what they are computing, and begin the next
round together. q = 1 is close to asynchronous SGD. For q → ∞ only the clients' first gradients of a round count, which
all are of the round's initial parameters: synchronous SGD.

Otsuka, Meyer, Takezawa, Koloskova and Yamada 2026, "Robustifying asynchronous SGD via soft throttling",
arXiv:2609.39357.

Departures: all clients are assumed honest: there is no robust aggregator of the first gradients, and the others are not
clipped. A client whose fetch is dropped, or with `wait: false` the one whose gradient ended the round, begins the next
round from older parameters, and this first gradient counts 1/n, too.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fredsim.networks.layout import Layout
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Array, Rated, Reply

__all__ = ["Throttle"]


class Throttle(ASGD):
    """Asynchronous SGD whose fast clients are throttled."""

    idea = "in a round, divide a client's first gradient by n, its next ones by q, q^2, …; all restart at its end"
    citation = "Otsuka et al. 2026, Robustifying asynchronous SGD via soft throttling, arXiv:2609.39357"

    class Hyper(Rated):
        """Hyper-parameters of THROTTLE."""

        q: Annotated[float, Field(ge=1)]
        """q: each further gradient of a client in a round counts 1/q of the one before; with infinity not at all."""

    cancels = True
    state_names: ClassVar[tuple[str, ...]] = ("_divisors",)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters; no client has sent a gradient in the first round yet."""
        super().init(params, clients, layout)
        self._divisors = np.zeros(clients)  # qᶜ, by which the client's next gradient is divided; 0 before its first

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Step by the divided gradient; end the round if every client has sent one."""
        divisor = float(self._divisors[client_id])
        self._apply(grad, client_id, np.float32(self.rate() / (divisor or self.clients)))
        self._divisors[client_id] = (divisor or 1.0) * self.hyper.q
        if not self._divisors.all():
            return None
        self._divisors[:] = 0
        return self.restart_all((client_id,))
