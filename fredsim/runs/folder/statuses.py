"""How a run may have ended, as the tables of sweeps say it."""

from typing import get_args

from fredsim.simulation.record.status import Status

__all__ = ["STATUSES"]

STATUSES = (*get_args(Status), "failed")
