"""Incremental aggregated asynchronous SGD: step by the mean of every client's latest gradient.

    at each arrival:  g_i ← g,   θ ← θ − α (1/n) Σ_j g_j;   the first step waits until every client has sent one

Every client counts the same in every step, however fast it is; a slow client's gradient is of old parameters. The rule
is the baseline IA²SGD of Maranjyan and Richtárik 2025, "Ringleader ASGD", arXiv:2509.22860, and ACE of Chang et al.
2025, "Mitigating participation imbalance bias in asynchronous federated learning", arXiv:2511.19066. With `max_delay`
it is the latter's ACED: gradients whose parameters are more than that many updates old are left out, and n is the
number of the others; if none is left, no step is made.

Departures: before the first step, clients continue, and a client's next gradient replaces its first, as in the code
of Ringleader's experiments. That code makes its first step one arrival after the one that completes the table, this
server at that one. ACED measures age in arrivals, this server in
updates: an arrival that makes no step ages no gradient.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fredsim.hyper import PositiveInt
from fredsim.networks.layout import Layout
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Array, Rated
from fredsim.servers.tables import REPLACE, SummedTable

__all__ = ["IA2SGD"]


def step(theta: Any, total: Any, remainder: Any, latest: Any, g: Any, alpha: Any, count: Any) -> Any:
    """Replace the client's latest gradient by g, as `replace` does, and step to θ − α·(Σ/n), in one pass."""
    less = total - latest
    part = less - total
    lost = (total - (less - part)) - (latest + part)
    more = less + g
    part = more - less
    lost = remainder + (lost + ((less - (more - part)) + (g - part)))
    total = more + lost
    part = total - more
    return theta - alpha * (total / count), total, (more - (total - part)) + (lost - part), g


class IA2SGD(SummedTable):
    """Keeps every client's latest gradient, and steps by their mean."""

    idea = "step at each arrival by the mean of every client's latest gradient; leave out those that are too old"
    citation = (
        "Maranjyan and Richtarik 2025, Ringleader ASGD, arXiv:2509.22860 (IA2SGD); Chang et al. 2025, Mitigating "
        "participation imbalance bias in asynchronous federated learning, arXiv:2511.19066 (ACE, ACED)"
    )

    class Hyper(Rated):
        """Hyper-parameters of IA2SGD."""

        max_delay: PositiveInt | None = None
        """ACED's bound on the staleness of a gradient in the mean; null takes all, as ACE does."""

        def resolve_defaults(self, clients: int) -> dict[str, str]:
            """Say what null stands for."""
            return {"max_delay": "none: every entry counts"}

    rule = Rule(step, state=("total", "remainder", "latest"))
    change = REPLACE
    more_state = ()
    per_client = ("latest",)
    state_names: ClassVar[tuple[str, ...]] = ("_stamps", "_counted")

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters; no client has sent a gradient yet."""
        super().init(params, clients, layout)
        self._stamps = np.full(clients, -1)  # the timestamp of each entry's parameters; −1 if there is no entry
        self._counted = np.zeros(clients, np.bool_)  # whether the sum includes the entry
        self._nothing = self.operations.zeros(0 if self.hyper.max_delay is None else len(params))

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Replace the client's last gradient by this one, and step by the mean of all."""
        delay = self.hyper.max_delay
        fresh = delay is None or self.timestamp - timestamp <= delay
        self._stamps[client_id], self._counted[client_id] = timestamp, fresh
        if delay is not None:
            self._leave_out(self._counted & (self.timestamp - self._stamps > delay))
        count, waits = np.count_nonzero(self._counted), self.timestamp == 0 and (self._stamps < 0).any()
        grad = grad if fresh else self._nothing
        if count and not waits:
            self._apply(grad, client_id, np.float32(self.rate()), np.float32(count))
            return
        self.change_entry("latest", client_id, grad)
        if not count:  # only rounding errors are left in the sum
            self.clear_sum()

    def _leave_out(self, old: NDArray[np.bool_]) -> None:
        """Take the entries of these clients out of the sum."""
        self._counted[old] = False
        for client in np.flatnonzero(old).tolist():
            self.change_entry("latest", client, self._nothing)
