"""Malenia SGD: gather gradients of the same parameters until every client has sent enough, then step and start over.

    gather G_j += g, b_j += 1 until the harmonic mean of the b_j is S/n or more:  θ ← θ − α (1/n) Σ_j G_j/b_j

Fast clients send many gradients, whose mean counts as much as the single one of the slowest. When a step is made, all
clients give up what they are computing and start over. The harmonic mean is at least 1 as soon as every client has sent
one gradient; until then it is 0.

Tyurin and Richtárik 2023, "Optimal time complexities of parallel stochastic optimization methods", arXiv:2305.12387.

Departures: none. `harmonic` is the paper's S/n, 1 by default, as in the code of Ringleader ASGD's experiments
(arXiv:2509.22860). If a client's fetch is dropped, it continues from old parameters, and its gradients do not count.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fredsim.networks.layout import Layout
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.batches import TreeSum, descend_by_mean
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["Malenia"]


def add(total: Array, g: Array) -> Array:
    """G + g."""
    return total + g


class Malenia(ElementwiseServer):
    """Collects fresh gradients from all clients, and weights clients equally, not gradients."""

    idea = "gather fresh gradients until every client has sent one or more, step by the mean of the clients' means"
    citation = (
        "Tyurin and Richtarik 2023, Optimal time complexities of parallel stochastic optimization, arXiv:2305.12387"
    )

    class Hyper(Rated):
        """Hyper-parameters of Malenia; `harmonic` is S/n."""

        harmonic: Annotated[float, Field(ge=1, le=2.0**20)] = 1.0
        """S/n: a step needs this harmonic mean of the clients' numbers of gradients; 1 needs one gradient of each."""

    rule = Rule(descend_by_mean)
    more_state = ("gathered",)
    per_client = ("gathered",)
    cancels = True
    state_names: ClassVar[tuple[str, ...]] = ("_counts",)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters; nothing is gathered yet."""
        super().init(params, clients, layout)
        self._counts = np.zeros(clients, np.int64)  # b_j
        self._add = self._compile(Rule(add))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, n)."""
        return np.float32(self.rate(t)), np.float32(self.clients)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Gather a fresh gradient; when there are enough, step and let all clients start over."""
        if timestamp < self.timestamp:
            return None
        gathered = self.own["gathered"]
        if self._counts[client_id] == 0:
            gathered.put(client_id, grad)
        else:
            self._add(gathered[client_id], grad, 0, len(grad))
            gathered.page_out(client_id)
        self._counts[client_id] += 1
        if not self._enough():
            return None
        self._apply(self._sum_of_means(), client_id, *self.coefficients(self.timestamp, 0))
        self._counts[:] = 0
        return self.restart_all((client_id,))

    def _enough(self) -> bool:
        """Return whether the harmonic mean n / Σ 1/b is large enough, exactly."""
        if not self._counts.all():
            return False
        clients = np.bincount(self._counts).tolist()  # by their number of gradients
        about: float = self.hyper.harmonic * sum(count / b for b, count in enumerate(clients) if count)
        if abs(about - self.clients) > 1e-9 * self.clients:  # far beyond what so many terms are rounded by
            return self.clients > about
        total = sum(Fraction(count, b) for b, count in enumerate(clients) if count)
        return self.clients >= Fraction(self.hyper.harmonic) * total

    def _sum_of_means(self) -> Array:
        """Return Σ G_j/b_j, summed by a balanced tree over the clients' ids."""
        tree, gathered = TreeSum(), self.own["gathered"]
        for client, count in enumerate(self._counts.tolist()):
            with np.errstate(all="ignore"):
                tree.add(gathered[client] / np.float32(count))
            gathered.page_out(client)
        return tree.close()
