"""Finds out whether this thread's processor flushes subnormal numbers to 0, as it may be told to do for speed.

Threads that are started inherit that, so it is looked at when an engine has been made, and again at each row.
"""

from __future__ import annotations

from fredsim.errors import SimulationError

__all__ = ["check_subnormals"]

SMALLEST, ONE = 5e-324, 1.0  # no constants of a function, which would be multiplied when it is compiled


def check_subnormals() -> None:
    """Raise SimulationError if subnormal numbers are flushed to 0, by which all bits depend on who did so, and when."""
    if SMALLEST * ONE == 0:
        raise SimulationError(
            "this process computes with subnormal numbers (below 1.2e-38) as 0, which changes the run's bits: code of "
            "yours has called torch.set_flush_denormal(True), or imports a library that was linked with -ffast-math; "
            "leave that out, or call torch.set_flush_denormal(False) after it"
        )
