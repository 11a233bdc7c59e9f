"""n-softsync: a step is made whenever ⌊λ/n⌋ gradients have arrived, whichever clients they come from.

    θ ← θ − α (Σ g_l / d_l) / c,   c = ⌊λ/n⌋, l in order of arrival, d_l = 1, or the staleness divisor if `aware`

Zhang, Gupta, Lian and Liu 2015, arXiv:1511.05950; the protocol is FRED's (Odena 2016, arXiv:1601.04033). n = 1 is
hard-sync; n = λ is ASGD or, if `aware`, SASGD, to the bit.

Departures: a client whose gradient is in an unfinished batch is held, as in FRED; in Zhang et al. it continues.
"""

from __future__ import annotations

from fredsim.errors import ConfigError
from fredsim.hyper import PositiveInt
from fredsim.servers.base import Array, Rated, Reply
from fredsim.servers.batches import CollectingServer
from fredsim.servers.staleness import Divisor, divisor

__all__ = ["SoftSync"]


class SoftSync(CollectingServer):
    """n-softsync, staleness-aware or not."""

    idea = "step by the mean of every floor(clients / n) gradients"
    citation = "Zhang et al. 2015, Staleness-aware async-SGD for distributed deep learning, arXiv:1511.05950"

    class Hyper(Rated):
        """Hyper-parameters of SoftSync; `divisor` is used only if `aware`."""

        n: PositiveInt
        """A step takes ⌊clients/n⌋ gradients."""
        aware: bool = False
        """Whether each gradient is divided by its staleness."""
        divisor: Divisor = "max1"
        """What a gradient is divided by if `aware`: `max1`, max(τ, 1); `plus1`, τ + 1."""

    def expect(self, clients: int) -> None:
        """Note the number of clients, and how many gradients a step takes. Raises ConfigError if n exceeds it."""
        super().expect(clients)
        if self.hyper.n > clients:
            raise ConfigError(f"server.n is {self.hyper.n}; it must not exceed clients.count, {clients}")
        self.needed = clients // self.hyper.n
        self.holds = self.needed > 1

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the gradient, divided by its staleness if `aware`."""
        if self.hyper.aware:
            return self.collect(grad / divisor(self.hyper.divisor, self.timestamp - timestamp), client_id)
        return self.collect(grad.copy(), client_id)
