"""Every k-th of a client's copies passes: the k-th, the 2k-th, …."""

from __future__ import annotations

from collections.abc import Sequence

from fredsim.dispatchers.gates.base import Gate, Statistics
from fredsim.hyper import HyperParameters, PositiveInt
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Every"]


class Every(Gate):
    """Lets every k-th of each client's copies pass."""

    idea = "every k-th of a client's copies passes"
    short = "k"
    state_names = ("_counts",)

    class Hyper(HyperParameters):
        """Hyper-parameters of Every."""

        k: PositiveInt
        """k: of each client's copies every k-th passes."""

    def init(self, clients: int, tensors: Sequence[int], streams: Streams, stream: Stream) -> None:
        """Start counting each client's copies from 0."""
        super().init(clients, tensors, streams, stream)
        self._counts: dict[int, int] = {}

    def passes(self, step: int, client: int, statistics: Statistics) -> bool:
        """Count the client's copy; return whether it is the k-th since the last that passed."""
        count = self._counts.get(client, 0) + 1
        self._counts[client] = count % self.hyper.k
        return bool(count == self.hyper.k)
