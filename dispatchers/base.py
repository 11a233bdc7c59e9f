"""The contract between the event loop and a dispatcher, which says whose gradient arrives next.

A user's dispatcher needs no base class: `__init__(**hyper)`, `init(clients, streams)`, `choose(step)`, `hold(client)`
and `release(client)`; it may have `expect(clients)`. A choice may depend on the step (the iteration, from 0), the
choices before and who is held, so that the order can be drawn ahead. One with simulated time is a clock
(fredsim.dispatchers.clock); a user's own needs `__init__(**hyper)` and `seconds(client, task)` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import SimulationError
from fredsim.hyper import Configurable
from fredsim.numerics.streams import Streams

__all__ = ["Dispatcher", "Order"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """Who arrives, in order: int64 (n,) each; only a clock knows more than the clients."""

    client: Integers
    number: Integers | None = None
    """Which of its client's tasks it is, from 0."""
    time: Integers | None = None
    """When the server is done with it, in nanoseconds."""
    sent: Integers | None = None
    """How many gradients were done before this one; None where copies take no time, and so as many as have arrived."""
    stages: Integers | None = None
    """(n, 3) nanoseconds: when the task was begun, its gradient done, and the push at the server; None where the task
    was begun when its client had arrived before, and the rest is `time`."""

    def __len__(self) -> int:
        return len(self.client)

    @property
    def columns(self) -> dict[str, Integers]:
        """What is known beside the clients, by name."""
        found = {"number": self.number, "time": self.time, "sent": self.sent, "stages": self.stages}
        return {name: values for name, values in found.items() if values is not None}

    def first(self, count: int) -> Order:
        """Return the first arrivals."""
        return Order(self.client[:count], **{name: values[:count] for name, values in self.columns.items()})

    def until(self, time: int | None) -> Order:
        """Return the arrivals until this time; None: all."""
        return self if time is None else self.first(int(np.searchsorted(self.columns["time"], time, side="right")))

    @staticmethod
    def joined(orders: Sequence[Order]) -> Order:
        """Return what one order after the other makes."""
        columns = {name: np.concatenate([o.columns[name] for o in orders]) for name in orders[-1].columns}
        return Order(np.concatenate([order.client for order in orders]), **columns)


class Dispatcher(Configurable):
    """Base of the dispatchers that come with fredsim."""

    idea: str = ""
    #: Whether arrivals have times.
    timed: ClassVar[bool] = False

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


def nobody_arrives(step: int) -> SimulationError:
    """Return the error of a clock on which nothing will ever happen."""
    return SimulationError(
        f"iteration {step}: no gradient will ever arrive: each client is held by the server, or at a task that never "
        "ends; release clients, or give dispatcher.compute tasks that end"
    )


def everybody_held(step: int) -> SimulationError:
    """Return the error of a choice among nobody."""
    return SimulationError(
        f"iteration {step}: the server holds every client, so no gradient can arrive; "
        "a reply must release clients before the last one is held"
    )
