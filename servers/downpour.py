"""DOWNPOUR SGD: clients accrue their gradients and step their own replica, and exchange with the server now and then.

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
    """ASGD whose clients have a replica of their own between two exchanges."""

    idea = "clients step a replica of their own, push their summed gradients and fetch only now and then"
    citation = "Dean et al. 2012, Large scale distributed deep networks, NIPS 25"

    class Hyper(Rated):
        """Hyper-parameters of Downpour: a push every `n_push`, a fetch every `n_fetch` of the client's steps."""

        n_push: PositiveInt = 1
        """A client pushes at every n-th of its steps."""
        n_fetch: PositiveInt = 1
        """A client fetches at every n-th of its steps."""

    def gates(self) -> dict[str, Any]:
        """Return the dispatcher's settings that this server brings along."""
        push, fetch = {"every": self.hyper.n_push}, {"every": self.hyper.n_fetch}
        return {"push": push, "fetch": fetch, "dropped_push": "accumulate", "replica": True}
