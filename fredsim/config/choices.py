"""The words that keys of an experiment may be: the one place that lists them, for everything above."""

from __future__ import annotations

from typing import Literal

__all__ = ["Backend", "DroppedPush", "Init", "PathName", "Sampling", "Unit"]

Backend = Literal["auto", "numpy", "numba", "cuda"]
"""What computes; `auto` is cuda where there is a device, else numba."""
DroppedPush = Literal["reapply", "skip", "accumulate", "average"]
"""What becomes of a push that the gate drops (fredsim.simulation.outbox)."""
Init = Literal["he", "glorot", "zeros", "normal"]
"""How weights begin (fredsim.models.mlp)."""
Sampling = Literal["sequential", "iid", "shuffled"]
"""Which samples a gradient is computed from (fredsim.data.sampling)."""
Unit = Literal["iterations", "updates", "epochs"]
"""What a run's length, and the distance of its rows, is counted in."""
PathName = Literal["auto", "hand", "fused", "queued", "snapshots"]
"""Which way a run is computed (fredsim.simulation.paths)."""
