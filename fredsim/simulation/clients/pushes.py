"""Where what clients push comes from, and who watches events: what a live run or a replay gives the loop of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Array
from fredsim.plugins.state.states import Stateful
from fredsim.simulation.clients.holdings import Holdings
from fredsim.simulation.clients.outbox import PendingPush
from fredsim.simulation.plugins.local_work import Tasks

__all__ = ["EventObserver", "Pushes"]


class Pushes(Stateful):
    """The pushes of a simulated run: they are computed when clients arrive, from what these hold."""

    #: The bytes of the last push, if the client compressed it itself; else 0.
    size = 0

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def start(self, clients: Iterable[int]) -> None:
        """Note that these clients begin, at the start of the run or after a stop."""

    def begin(self, client: int) -> None:
        """Note that a client begins a task from what it holds."""

    def compute(self, clients: Sequence[int], tasks: Tasks) -> tuple[Sequence[Array], Array, Sequence[bool]]:
        """Return what B different clients push (P,), their samples' losses (B, k·µ), and whether all was finite.

        The losses are as LocalWork says. The next call may overwrite what is returned.
        """
        return self._holdings.compute_pushes(clients, tasks)


class EventObserver:
    """Is told of each event of a run that is computed event by event; must change nothing that it is given."""

    def computed(self, clients: Sequence[int], rows: Sequence[NDArray[np.int64]]) -> None:
        """Note that B clients have computed what they push from these samples, (k, µ) each."""

    def arrives(self, client: int, timestamp: int, time: int, pending: PendingPush) -> None:
        """Note that a push arrives at `time`, in nanoseconds; its task started from parameters of this timestamp."""

    def arrived(self, iteration: int, params: Array) -> None:
        """Note that the event of this iteration has happened; `params` (P,) are the server's after it."""
