"""How a simulation ends."""

from typing import Literal

__all__ = ["Status"]

Status = Literal["finished", "diverged", "interrupted"]
