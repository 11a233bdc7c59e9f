"""The keys of an experiment that are one of a few words, as types."""

from __future__ import annotations

from typing import Literal

__all__ = ["Backend", "DroppedPush", "Init", "PathName", "Sampling", "Unit"]

Backend = Literal["auto", "numpy", "numba", "cuda"]
"""What computes; `auto` is cuda where there is a device, else numba."""
DroppedPush = Literal["reapply", "skip", "accumulate", "average"]
"""What becomes of a push that the gate drops (fredsim.simulation.outbox, docs/experiment.md)."""
Init = Literal["he", "glorot", "torch", "zeros", "normal"]
"""The distribution of the initial weights (fredsim.models.mlp)."""
Sampling = Literal["sequential", "iid", "shuffled"]
"""How minibatches are drawn (fredsim.data.sampling)."""
Unit = Literal["iterations", "updates", "epochs", "seconds"]
"""What a run's length, and the distance of its rows, is counted in; seconds are a clock's."""
PathName = Literal["auto", "hand", "fused", "queued", "snapshots"]
"""How a run is computed (fredsim.simulation.paths)."""
