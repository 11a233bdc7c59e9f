"""DOWNPOUR SGD: clients sum their gradients, step a replica of their own, and push and fetch only every few steps.

    every step: the replica takes x ← x − α g, and g is added to what is to be pushed
    every n_push steps: θ ← θ − α Σ g;   every n_fetch steps: the replica becomes θ

Dean et al. 2012, "Large scale distributed deep networks", NIPS, section 4.1.

Departures: plain steps; the paper's AdaGrad is the server `adagrad` under the same dispatcher settings.
"""

from __future__ import annotations

from typing import Any

from fredsim.hyper import PositiveInt
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Rated

__all__ = ["Downpour"]


class Downpour(ASGD):
    """ASGD whose clients step a replica of their own between exchanges with the server."""

    idea = "clients step a replica of their own, push their summed gradients and fetch only now and then"
    citation = "Dean et al. 2012, Large scale distributed deep networks, NIPS 25"

    class Hyper(Rated):
        """Hyper-parameters of Downpour: a push every `n_push` of a client's steps, a fetch every `n_fetch`."""

        n_push: PositiveInt = 1
        """A client pushes at every n-th of its steps."""
        n_fetch: PositiveInt = 1
        """A client fetches at every n-th of its steps."""

    def gates(self) -> dict[str, Any]:
        """Return the keys of `dispatcher` that this server sets itself."""
        push, fetch = {"every": self.hyper.n_push}, {"every": self.hyper.n_fetch}
        return {"push": push, "fetch": fetch, "dropped_push": "accumulate", "replica": True}
