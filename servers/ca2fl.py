"""CA²FL: FedBuff, calibrated by the last update of every client, so that clients absent from a buffer count, too.

    Δ_i = −Σ α g over the client's local steps,   h_i: the last Δ_i that arrived, 0 before,   h = (Σ_i h_i) / n
    v = h + (Σ_M (Δ_i − h_i)) / M,   θ ← θ + η v,   h_i ← Δ_i

Wang, Cao, Wu, Chen and Chen 2024, "Tackling the data heterogeneity in asynchronous federated learning with cached
update calibration", ICLR.

Departures: h_i is replaced when Δ_i arrives, h when the server steps, so a second update of a client in one buffer is
calibrated by its first. h is not summed again: it changes by (Σ_M (Δ_i − h_i)) / n, the differences that arrived. It
is stored flushed: below 2⁻⁶² it becomes +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Positive, PositiveInt
from fredsim.numerics.rules import Rule, flush
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.batches import BufferedServer

__all__ = ["CA2FL"]


def calibrated(theta: Any, h: Any, differences: Any, eta: Any, count: Any, clients: Any) -> Any:
    """θ + η·(h + Σ/M) and h + Σ/n."""
    return theta + eta * (h + differences / count), flush(h + differences / clients)


class CA2FL(BufferedServer):
    """Buffered aggregation with cached updates; `lr` is the learning rate of the clients' local steps."""

    idea = "step by the local updates of every few clients, and by the latest update of each of the others"
    citation = (
        "Wang et al. 2024, Tackling the data heterogeneity in asynchronous federated learning with cached update "
        "calibration, ICLR"
    )

    class Hyper(Rated):
        """Hyper-parameters of CA²FL; `buffer` is M, `server_lr` η."""

        server_lr: Positive = 1.0
        """η, the server's learning rate."""
        buffer: PositiveInt = 10
        """M, how many of the clients' updates make a step."""

    rule = Rule(calibrated, state=("h",))
    more_state = per_client = ("last",)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (η, M, n)."""
        return np.float32(self.hyper.server_lr), np.float32(self.needed), np.float32(self.clients)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the update's difference from the client's last; step if the buffer is full. The client continues."""
        last = self.own["last"]  # h_i
        with np.errstate(all="ignore"):
            difference = grad - last[client_id]
        last.put(client_id, grad)
        return self.collect(difference, client_id)
