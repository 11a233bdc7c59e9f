"""Ringmaster ASGD: asynchronous SGD that throws away gradients that are too stale.

    τ < R: θ ← θ − α g,   else nothing

Maranjyan, Tyurin and Richtárik 2025, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity",
arXiv:2501.16168. With `stop` a client whose delay reaches R is stopped, and starts over from the current parameters
(the paper's second algorithm).

Departures: none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import PositiveInt
from fredsim.networks.layout import Layout
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Array, Rated, Reply

__all__ = ["Ringmaster"]


class Ringmaster(ASGD):
    """Asynchronous SGD that applies a gradient only if its staleness is below a threshold."""

    idea = "apply a gradient only if it is fresher than `threshold`; with `stop`, restart clients that fall behind"
    citation = "Maranjyan et al. 2025, Ringmaster ASGD, arXiv:2501.16168"

    class Hyper(Rated):
        """Hyper-parameters of Ringmaster; `threshold` is R."""

        threshold: PositiveInt
        """R: a gradient of this staleness, or more, is thrown away."""
        stop: bool = False
        """Whether a client that falls so far behind is stopped, and starts over from the current parameters."""

    state_names = ("_begun",)

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        self.cancels = self.hyper.stop

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters; every client holds timestamp 0."""
        super().init(params, clients, layout)
        self._begun = np.zeros(clients, np.int64)  # the timestamp of what each client computes from

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Apply the gradient if it is fresh enough; restart the clients that this update leaves too far behind."""
        if self.timestamp - timestamp >= self.hyper.threshold:
            return None
        super().apply_update(grad, client_id, timestamp)
        if not self.cancels:
            return None
        behind = np.flatnonzero(self.timestamp - self._begun >= self.hyper.threshold)
        return Reply((client_id,), [client for client in behind.tolist() if client != client_id])

    def begins(self, client_id: int, params: Array, timestamp: int) -> None:
        """Note the timestamp of the parameters that the client computes from."""
        self._begun[client_id] = timestamp
