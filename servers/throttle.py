"""THROTTLE: asynchronous SGD in rounds, in which the further gradients of a client count less and less.

    θ ← θ − α g/n     a client's first gradient of the round
    θ ← θ − α g/qᶜ    when c of it came before,   c = 1, 2, …

A round ends when every client has sent a gradient; then all give up what they compute, and begin the next together.
q = 1 is close to asynchronous SGD. For q → ∞ only the first gradients of a round count, all of the round's first
parameters: synchronous SGD.

Otsuka, Meyer, Takezawa, Koloskova and Yamada 2026, "Robustifying asynchronous SGD via soft throttling",
arXiv:2609.39357.

Departures: all clients are honest: there is no robust aggregator for the first gradients, no clipping of the others.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fredsim.models.layout import Layout
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
        """q: each further gradient of a client in a round counts 1/q of the one before; infinity: not at all."""

    cancels = True
    state_names: ClassVar[tuple[str, ...]] = ("_divisors",)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters; nobody has sent anything in the first round."""
        super().init(params, clients, layout)
        self._divisors = np.zeros(clients)  # qᶜ, of which a further gradient is divided by; 0: there was none

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Step by the client's share; end the round when it was the last to send one."""
        divisor = float(self._divisors[client_id])
        self._apply(grad, client_id, np.float32(self.rate() / (divisor or self.clients)))
        self._divisors[client_id] = (divisor or 1.0) * self.hyper.q
        if not self._divisors.all():
            return None
        self._divisors[:] = 0
        return self.restart_all((client_id,))
