"""The contract between the event loop and a dispatcher, which says whose gradient arrives next.

A user's dispatcher needs no base class: `__init__(**hyper)`, `init(clients, streams)`, `choose(step)`, `hold(client)`
and `release(client)`; it may have `expect(clients)`. A choice may depend on the step (the iteration, from 0), the
choices before and who is held; never on a clock, so that the order can be drawn ahead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import SimulationError
from fredsim.hyper import Configurable
from fredsim.numerics.streams import Streams

__all__ = ["Dispatcher"]

Integers = NDArray[np.int64]


class Dispatcher(Configurable):
    """Base of the dispatchers that come with fredsim."""

    idea: str = ""

    def expect(self, clients: int) -> None:
        """Raise ConfigError where the hyper-parameters do not go with so many clients; asked before all else."""

    def init(self, clients: int, streams: Streams) -> None:
        """Start over with clients 0 … clients − 1, none of them held."""
        raise NotImplementedError

    def choose(self, step: int) -> int:
        """Return the client whose gradient arrives at iteration `step`; each step is asked for once, in order."""
        raise NotImplementedError

    def order(self, count: int) -> Integers:
        """Return what `choose` would at steps 0 … count − 1 if nobody is ever held, int64 (count,); asked for once."""
        return np.array([self.choose(step) for step in range(count)], np.int64)

    def hold(self, client: int) -> None:
        """Take the client, which is eligible, out of the choice."""
        raise NotImplementedError

    def release(self, client: int) -> None:
        """Put a held client back; releasing one that is not held does nothing."""
        raise NotImplementedError


def everybody_held(step: int) -> SimulationError:
    """Return the error of a choice among nobody."""
    return SimulationError(
        f"iteration {step}: the server holds every client, so no gradient can arrive; "
        "a reply must release clients before the last one is held"
    )
