"""Rennala SGD: only gradients of the current parameters count; B of them make a step.

    θ ← θ − α (Σ_B g) / B,   gradients with τ > 0 are thrown away

Tyurin and Richtárik 2023, "Optimal time complexities of parallel stochastic optimization methods", arXiv:2305.12387.

Departures: none.
"""

from __future__ import annotations

from fredsim.hyper import PositiveInt
from fredsim.servers.base import Array, Rated, Reply
from fredsim.servers.batches import CollectingServer

__all__ = ["Rennala"]


class Rennala(CollectingServer):
    """Collects fresh gradients, whichever clients they come from."""

    idea = "step by the mean of `batch` fresh gradients, throw stale ones away"
    citation = (
        "Tyurin and Richtarik 2023, Optimal time complexities of parallel stochastic optimization, arXiv:2305.12387"
    )

    class Hyper(Rated):
        """Hyper-parameters of Rennala; `batch` is B."""

        batch: PositiveInt
        """B, how many fresh gradients make a step."""

    def expect(self, clients: int) -> None:
        """Note the number of clients, and how many gradients make a step."""
        super().expect(clients)
        self.needed = self.hyper.batch

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Collect the gradient if it is fresh; the client continues in any case."""
        return self.collect(grad.copy(), client_id) if timestamp == self.timestamp else None
