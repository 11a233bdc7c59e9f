"""The contract between the event loop and a dispatcher, which says whose gradient arrives next.

A user's dispatcher needs no base class: `__init__(**hyper)`, `init(clients, streams)`, `choose(step)`, `hold(client)`
and `release(client)`; it may have `expect(clients)`. A choice may depend on the step (the iteration, from 0), the
choices before and who is held, so that the order can be drawn ahead. One with simulated time is a clock
(fredsim.dispatchers.clock); a user's own needs `__init__(**hyper)` and `seconds(client, task)` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import SimulationError
from fredsim.hyper import Configurable
from fredsim.numerics.streams import Streams

__all__ = ["Dispatcher", "Order", "Sends", "Timeline", "by_client"]

Integers = NDArray[np.int64]

Sends = Callable[[int, int, int], int]
"""Called with a client whose gradient is done, the number of its task, and how many gradients of all were done before:
returns the bytes that it pushes, 0 for nothing."""


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
    given_up: Integers | None = None
    """0 or 1: 1 for a task that is given up, and has no gradient; None where none can be."""
    begun: Integers | None = None
    """Where that is recorded, the events after which the clients fetched what they computed on: those of the run must
    be the same."""

    def __len__(self) -> int:
        return len(self.client)

    @property
    def columns(self) -> dict[str, Integers]:
        """What is known beside the clients, by name."""
        return {name: values for name, values in vars(self).items() if values is not None and name != "client"}

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


class Timeline(Dispatcher):
    """A dispatcher that knows more of arrivals than who comes: a clock, or a trace."""

    #: Whether arrivals have times.
    timed: bool
    #: Whether tasks may be given up, so that arrivals say whether theirs was.
    limited: bool = False
    #: Tells what each push weighs, where that is not the same for all.
    sends: Sends | None = None

    @property
    def instant(self) -> bool:
        """Whether copies take no time."""
        raise NotImplementedError

    def settle(self, *, reacts: bool = True, size: int = 0, steps: int = 1, until: int | None = None) -> None:
        """Say, before the first arrival, what it will be told.

        `reacts`: clients may be held, or stopped. Copies have `size` bytes, but for pushes where `sends` is set, and
        for fetches where `release` says otherwise. A task is of `steps` gradients. Nobody will ask for arrivals after
        `until`, in nanoseconds. Raises ConfigError where so many gradients exceed the clock.
        """
        raise NotImplementedError

    def about(self, nanoseconds: int) -> int | None:
        """Return about how many arrivals there will be in that time at most, None where nobody knows."""
        raise NotImplementedError

    def draw(self, count: int) -> Order:
        """Return the next arrivals, so many at most where clients may be held; none where none will ever arrive."""
        raise NotImplementedError

    def release(self, client: int, size: int | None = None) -> None:
        """Let a held client go on: it fetches so many bytes, 0 for nothing, and begins its next task."""
        raise NotImplementedError

    def restart(self, client: int, size: int | None = None) -> None:
        """Let a client give up its task, even a push that is under way: it fetches, and begins its next one."""
        raise NotImplementedError

    def ended(self, step: int, events: int | None) -> SimulationError:
        """Return the error of a run of so many events, None where nobody knows, of which none comes at `step`."""
        return nobody_arrives(step)


def by_client(clients: Integers) -> tuple[Integers, Integers]:
    """Return how many arrivals of the same client came before each, and the last of these, −1 for none; (T,) each."""
    count = len(clients)
    number, before = np.empty(count, np.int64), np.full(count, -1, np.int64)
    few = count and int(clients.max()) < 2**16  # then NumPy sorts several times faster
    order = np.argsort(clients.astype(np.uint16) if few else clients, kind="stable")  # each client's arrivals together
    again = np.zeros(count, bool)
    again[1:] = clients[order[1:]] == clients[order[:-1]]
    before[order[again]] = order[np.flatnonzero(again) - 1]
    places = np.arange(count)
    number[order] = places - np.maximum.accumulate(np.where(again, 0, places))
    return number, before


def nobody_arrives(step: int) -> SimulationError:
    """Return the error of a clock on which nothing will ever happen."""
    return SimulationError(
        f"iteration {step}: no gradient will ever arrive: each client is held by the server, or at a task that never "
        "ends, or not before the clock does; release clients, or give shorter times (compute.seconds, link, "
        "server.seconds, outages)"
    )


def everybody_held(step: int) -> SimulationError:
    """Return the error of a choice among nobody."""
    return SimulationError(
        f"iteration {step}: the server holds every client, so no gradient can arrive; "
        "a reply must release clients before the last one is held"
    )
