"""How a simulation ends."""

from typing import Literal, get_args

__all__ = ["STATUSES", "Status"]

Status = Literal["finished", "diverged", "interrupted"]
STATUSES = (*get_args(Status), "failed")
"""How a run may have ended, as the tables of sweeps say it."""
