"""Types of the keys of an experiment whose value is one of a few words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

__all__ = [
    "Backend", "ClientPush", "DroppedPush", "Init", "InitialFile", "PathName", "Sampling", "Trainable", "Unit",
]  # fmt: skip

Backend = Literal["auto", "numpy", "numba", "cuda"]
"""What computes; `auto` is cuda if there is a device, else numba."""
ClientPush = Literal["gradients", "difference", "difference_over_lr"]
"""What a client pushes to a server that asks for gradients (docs/clients.md)."""
DroppedPush = Literal["reapply", "skip", "accumulate", "average"]
"""What happens to a push that the gate drops (fredsim.simulation.clients.outbox, docs/experiment.md)."""
Init = Literal["he", "glorot", "torch", "zeros", "normal"]
"""The distribution of the initial weights (fredsim.networks.mlp)."""
InitialFile = Annotated[str, Field(min_length=1, examples=["weights.safetensors"])]
"""A file of initial weights (fredsim.networks.given)."""
Sampling = Literal["sequential", "iid", "shuffled"]
"""How minibatches are drawn (fredsim.data.sampling)."""
Pattern = Annotated[str, Field(min_length=1)]
Trainable = Annotated[Pattern | Annotated[list[Pattern], Field(min_length=1)], Field(examples=["head.*"])]
"""Patterns of the names of the tensors that are trained (fredsim.networks.given)."""
Unit = Literal["iterations", "updates", "epochs", "seconds"]
"""The unit of a run's length, and of the interval between rows; seconds are those of a clock."""
PathName = Literal["auto", "hand", "fused", "queued", "snapshots"]
"""How a run is computed (fredsim.simulation.paths.choice)."""
