"""Types of the keys of an experiment whose value is one of a few words."""

from __future__ import annotations

from typing import Literal

__all__ = ["Backend", "ClientPush", "DroppedPush", "Init", "PathName", "Sampling", "Unit"]

Backend = Literal["auto", "numpy", "numba", "cuda"]
"""What computes; `auto` is cuda if there is a device, else numba."""
ClientPush = Literal["gradients", "difference", "difference_over_lr"]
"""What a client pushes to a server that asks for gradients (docs/clients.md)."""
DroppedPush = Literal["reapply", "skip", "accumulate", "average"]
"""What happens to a push that the gate drops (fredsim.simulation.clients.outbox, docs/experiment.md)."""
Init = Literal["he", "glorot", "torch", "zeros", "normal"]
"""The distribution of the initial weights (fredsim.networks.mlp)."""
Sampling = Literal["sequential", "iid", "shuffled"]
"""How minibatches are drawn (fredsim.data.sampling)."""
Unit = Literal["iterations", "updates", "epochs", "seconds"]
"""The unit of a run's length, and of the interval between rows; seconds are those of a clock."""
PathName = Literal["auto", "hand", "fused", "queued", "snapshots"]
"""How a run is computed (fredsim.simulation.paths.choice)."""
