"""Ringleader ASGD: rounds of n updates, one per client, each by the mean over a table of all clients' gradients.

    G_i ← G_i + g,   b_i ← b_i + 1
    θ ← θ − α (1/n) Σ_j G_j/b_j

A round begins by gathering: an arrival of client i adds its gradient to the table (the first line) until every b_j ≥ 1.
From then on each client's first arrival, beginning with the one that completes the gathering, does both lines. Further
gradients of clients that have had their update in the round go to a second table, the one of the next round.

All clients count the same, no client waits, no gradient is lost, and none in the table is of parameters more than
2n − 2 updates old.

Maranjyan and Richtárik 2025, "Ringleader ASGD: the first asynchronous SGD with optimal time complexity under data
heterogeneity", arXiv:2509.22860.

Departures: a client whose gradient makes no update continues from the present θ, as in the code of the paper's
experiments. In the paper's text it continues from the parameters that it has until its own update, so that all
gradients in G_j are of the same parameters; the bound on delays is the same.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.layout import Layout
from fredsim.servers.base import Array, Rated
from fredsim.servers.tables import INCLUDE, SummedTable

__all__ = ["Ringleader"]


class Ringleader(SummedTable):
    """Steps by gradients of all clients, none of which is too old, and none of which is lost."""

    idea = "in rounds, gather gradients of every client, then update once per client, by the mean of all clients' means"
    citation = "Maranjyan and Richtarik 2025, Ringleader ASGD, arXiv:2509.22860"

    Hyper = Rated
    change = INCLUDE
    more_state = ("total", "remainder", "gathered", "next_total", "next_remainder", "next_gathered")
    per_client = ("gathered", "next_gathered")
    state_names: ClassVar[tuple[str, ...]] = ("_counts", "_next_counts", "_due")

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters; both tables are empty."""
        super().init(params, clients, layout)
        self._counts, self._next_counts = np.zeros(clients, np.int64), np.zeros(clients, np.int64)  # b of both tables
        self._due = np.zeros(clients, np.bool_)  # whether a client's update is still due; all false while gathering

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Gather the gradient, for this round or for the next; make the client's update if it is due."""
        updating = self._due.any()
        if updating and not self._due[client_id]:
            self._include(grad, client_id, self._next_counts, "next_")
            return
        self._include(grad, client_id, self._counts)
        if not updating:
            if not self._counts.all():
                return
            self._due[:] = True
        self._apply(self.arrays["total"], client_id, *self.coefficients(self.timestamp, 0))
        self._due[client_id] = False
        if not self._due.any():
            self._begin_round()

    def _include(self, grad: Array, client: int, counts: NDArray[np.int64], prefix: str = "") -> None:
        """Add a gradient to a client's entry of a table."""
        before = max(1, counts[client])  # an empty entry has the mean 0/1
        counts[client] += 1
        self.change_entry("gathered", client, grad, np.float32(before), np.float32(counts[client]), prefix=prefix)

    def _begin_round(self) -> None:
        """Make the second table the first one, and the emptied first one the second."""
        arrays, own = self.arrays, self.own
        for name in ("total", "remainder"):
            arrays[name], arrays[f"next_{name}"] = arrays[f"next_{name}"], arrays[name]
        own["gathered"], own["next_gathered"] = own["next_gathered"], own["gathered"]
        self.clear_sum("next_")
        own["next_gathered"].clear()
        self._counts, self._next_counts = self._next_counts, self._counts
        self._next_counts[:] = 0
