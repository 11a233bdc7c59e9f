"""Ringmaster ASGD: asynchronous SGD that throws away what is too stale.

    τ < R: θ ← θ − α g,   else nothing

Maranjyan, Tyurin and Richtárik 2025, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity",
arXiv:2501.16168. With `stop` a client whose delay reaches R is stopped and begins anew at the current parameters (the
paper's second algorithm).

Departures: none.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from fredsim.hyper import PositiveInt
from fredsim.layout import Layout
from fredsim.numerics.rules import Rule
from fredsim.servers.asgd import descend
from fredsim.servers.base import Array, Coefficients, ElementwiseServer, Rated, Reply, State, Steps

__all__ = ["Ringmaster"]


class Ringmaster(ElementwiseServer):
    """Applies a gradient only if its delay is below a threshold."""

    idea = "apply a gradient only if it is fresher than `threshold`; with `stop`, restart clients that fall behind"
    citation = "Maranjyan et al. 2025, Ringmaster ASGD, arXiv:2501.16168"

    class Hyper(Rated):
        """Hyper-parameters of Ringmaster; `threshold` is R."""

        threshold: PositiveInt
        """R: a gradient of this staleness, or more, is thrown away."""
        stop: bool = False
        """Whether a client that falls so far behind is stopped, and begins anew."""

    rule = Rule(descend, zero_keeps=True)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters; every client holds timestamp 0."""
        super().init(params, clients, layout)
        self.cancels = self.hyper.stop
        # What each client computes from, the oldest first.
        self._held: OrderedDict[int, int] = OrderedDict.fromkeys(range(clients), 0)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α,)."""
        del staleness
        return (np.float32(self.rate(t)),)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Apply a gradient that is fresh enough; say who has fallen behind by it."""
        if self.timestamp - timestamp >= self.hyper.threshold:
            return None
        super().apply_update(grad, client_id, timestamp)
        if not self.cancels:
            return None
        behind = []
        for client, held in self._held.items():
            if self.timestamp - held < self.hyper.threshold:
                break
            if client != client_id:
                behind.append(client)
        return Reply((client_id,), behind)

    def fetch(self, client_id: int) -> Array:
        """Return the parameters, and note what the client computes from."""
        self._held[client_id] = self.timestamp
        self._held.move_to_end(client_id)
        return self.params

    def take_state(self) -> State:
        """Return the state with what each client computes from."""
        return super().take_state() | {"held": np.array(list(self._held.items()), np.int64)}

    def put_state(self, state: State) -> None:
        """Take up a state."""
        super().put_state(state)
        self._held = OrderedDict((int(client), int(held)) for client, held in state["held"])
