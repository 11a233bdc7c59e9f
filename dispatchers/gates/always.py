"""Everything passes."""

from __future__ import annotations

from fredsim.dispatchers.gates.base import Gate, Statistics

__all__ = ["Always"]


class Always(Gate):
    """Everything passes."""

    idea = "everything passes"

    def passes(self, step: int, client: int, statistics: Statistics) -> bool:
        """Return True."""
        return True
