"""FedBuff: the server steps once its buffer has K clients' updates, each with less weight the staler it is.

    Δ = −Σ α g over the client's local steps,   θ ← θ + η_g (Σ_K Δ/√(1+τ)) / K

Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", arXiv:2106.06639.

Departures: no differential privacy, no secure aggregation. With one local step Δ is −(α g) itself, not computed as a
difference of parameters.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fredsim.hyper import Positive, PositiveInt
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.batches import BufferedServer

__all__ = ["FedBuff"]


def ascend(theta: Any, delta: Any, eta: Any, count: Any) -> Any:
    """θ + η·(Σ/K)."""
    return theta + eta * (delta / count)


class FedBuff(BufferedServer):
    """Buffered asynchronous aggregation; `lr` is the learning rate of the clients' local steps."""

    idea = "step by the mean of every K clients' local updates, each divided by sqrt(1 + staleness)"
    citation = "Nguyen et al. 2022, Federated learning with buffered asynchronous aggregation, arXiv:2106.06639"

    class Hyper(Rated):
        """Hyper-parameters of FedBuff; `buffer` is K, `server_lr` η_g."""

        server_lr: Positive = 1.0
        """η_g, the server's learning rate."""
        buffer: PositiveInt = 10
        """K, how many of the clients' updates make a step."""
        weight: Literal["sqrt", "constant"] = "sqrt"
        """Whether an update of staleness τ is divided by √(1 + τ), `sqrt`, or not, `constant`."""

    rule = Rule(ascend)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (η_g, K)."""
        return np.float32(self.hyper.server_lr), np.float32(self.needed)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the client's update; step when the buffer is full. The client continues either way."""
        weight = np.float32(1.0)
        if self.hyper.weight == "sqrt":
            weight = np.float32(1.0 / np.sqrt(np.float64(1 + self.timestamp - timestamp)))
        return self.collect(weight * grad, client_id)
