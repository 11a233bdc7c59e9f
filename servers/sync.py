"""Synchronous SGD: a round collects one gradient of every client, and the mean moves the parameters.

    θ ← θ − α (Σ g_l) / c,   l in order of arrival, c = λ or `aggregate`

FRED's hard-sync (Odena 2016, arXiv:1601.04033, section 3). With `aggregate: k` a round closes at its first k
gradients, and one that comes too late is dropped: Chen et al. 2016, "Revisiting distributed synchronous SGD",
arXiv:1604.00981 (backup workers).

Departures: none. A late gradient releases its client at once and leaves the timestamp as it is.
"""

from __future__ import annotations

from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, Positive, PositiveInt
from fredsim.layout import Layout
from fredsim.servers.base import Array, Reply
from fredsim.servers.batches import CollectingServer

__all__ = ["Sync"]


class Sync(CollectingServer):
    """Synchronous SGD, with backup workers where fewer gradients than clients close a round."""

    idea = "wait for a gradient of every client (or of the first `aggregate`), then step by their mean"
    citation = "Odena 2016, arXiv:1601.04033 (hard-sync); Chen et al. 2016, arXiv:1604.00981 (backup workers)"

    class Hyper(HyperParameters):
        """Hyper-parameters of Sync; `aggregate` null means every client."""

        lr: Positive
        aggregate: PositiveInt | None = None

    holds = True

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters. Raises ConfigError where `aggregate` exceeds the clients."""
        self.needed = self.hyper.aggregate or clients
        if self.needed > clients:
            raise ConfigError(f"server.aggregate is {self.needed}; it must not exceed clients.count, {clients}")
        super().init(params, clients, layout)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the gradient, or drop one that comes after its round has closed."""
        if timestamp < self.timestamp:
            return Reply((client_id,))
        return self.collect(grad.copy(), client_id)

    def pushes_until_release(self) -> int:
        """Return what the round lacks; with backup workers a late gradient may release its client at any time."""
        return super().pushes_until_release() if self.needed == self.clients else 1
