"""The contract between the event loop and a dispatcher, which says whose gradient arrives next.

A user's dispatcher needs no base class: `__init__(**hyper)`, `init(clients, streams)`, `choose(step)`, `hold(client)`
and `release(client)`; it may have `expect(clients)`. A choice may depend only on the step (the iteration, from 0), the
choices before, and which clients are held, so that the order can be drawn ahead. A dispatcher with simulated time is a
clock (fredsim.dispatchers.clock); a user's own clock needs `__init__(**hyper)` and `seconds(client, task)` only.

A task is what a client does between two pushes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fredsim.dispatchers.local_steps import TaskSteps, VariedSteps
from fredsim.errors import SimulationError
from fredsim.hyper import Configurable
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Streams

__all__ = ["DONE", "STAGES", "Dispatcher", "OnGradientDone", "Order", "Timeline", "earlier_arrivals"]

#: Columns of events.parquet, and of traces: the times of a task, and which gradients were done since the event before.
STAGES = ("began_ns", "done_ns", "received_ns", "time_ns")
DONE = ("done_client", "done_number")

OnGradientDone = Callable[[int, int, int], int]
"""A callback for the moment at which a gradient is done: `(client, number, sent)` are the client, the number of its
task, and how many gradients of all clients were done before. It returns the bytes that the client pushes, or 0."""


@dataclass(frozen=True)
class Order:
    """Arrivals in order, one array per column: int64 (n,) each. Only a clock or a trace knows more than the clients."""

    client: Integers
    """The client that arrives."""
    number: Integers | None = None
    """Which of its client's tasks this is, from 0."""
    time: Integers | None = None
    """When the server is done with the arrival, in nanoseconds."""
    sent: Integers | None = None
    """How many gradients were done before this one; None if copies take no time: then as many as have arrived."""
    stages: Integers | None = None
    """(n, 3) nanoseconds: when the task was begun, when its gradient was done, and when the push reached the server;
    None if the task was begun at the client's arrival before, and the other two are `time`."""
    given_up: Integers | None = None
    """1 for a task that is given up and has no gradient, else 0; None if no task can be."""
    begun: Integers | None = None
    """The events after which the clients fetched the parameters that they used, if that is recorded: those of the run
    must be the same."""

    def __len__(self) -> int:
        return len(self.client)

    @property
    def columns(self) -> dict[str, Integers]:
        """The known columns except `client`, by name."""
        return {name: values for name, values in vars(self).items() if values is not None and name != "client"}

    def first(self, count: int) -> Order:
        """Return the first `count` arrivals."""
        return Order(self.client[:count], **{name: values[:count] for name, values in self.columns.items()})

    def until(self, time: int | None) -> tuple[Order, bool]:
        """Return the arrivals up to this time, in nanoseconds (None: all), and whether none will follow these.

        None will if the time is over, or if there are no arrivals at all.
        """
        part = self if time is None else self.first(int(np.searchsorted(self.columns["time"], time, side="right")))
        return part, not len(self) or len(part) < len(self)

    @staticmethod
    def joined(orders: Sequence[Order]) -> Order:
        """Return the concatenation of several orders, which have the same columns."""
        if len(orders) == 1:
            return orders[0]
        names = ("client", *orders[0].columns)
        return Order(**{name: np.concatenate([getattr(order, name) for order in orders]) for name in names})


class Dispatcher(Configurable):
    """Base of the dispatchers that come with fredsim."""

    idea: str = ""

    def expect(self, clients: int) -> None:
        """Raise ConfigError if the hyper-parameters do not fit so many clients; called before anything else."""

    def init(self, clients: int, streams: Streams) -> None:
        """Start over with clients 0 … clients − 1, none of them held."""
        raise NotImplementedError

    def choose(self, step: int) -> int:
        """Return the client whose gradient arrives at iteration `step`; called once for each step, in order."""
        raise NotImplementedError

    def order(self, begin: int, count: int) -> Integers:
        """Return what `choose` would at `count` steps from `begin` on, int64 (count,), if no client is ever held.

        Called with all steps in order, as `choose` is; in one run, only one of the two is called.
        """
        return np.array([self.choose(step) for step in range(begin, begin + count)], np.int64)

    def hold(self, client: int) -> None:
        """Exclude a client, which is eligible, from the choice.

        It is the one chosen last; or, before the first choice, one that does not work yet (`clients.fraction`).
        """
        raise NotImplementedError

    def release(self, client: int) -> None:
        """Make a held client eligible again; releasing one that is not held does nothing."""
        raise NotImplementedError


class Timeline(Dispatcher):
    """A dispatcher that knows more about arrivals than which client arrives: a clock, or a trace."""

    #: Whether arrivals have times.
    timed: bool
    #: Whether tasks may be given up, in which case arrivals have the column `given_up`.
    may_give_up: bool = False
    #: Called when a gradient is done, if not all pushes have the same size; returns the bytes of the push.
    on_gradient_done: OnGradientDone | None = None

    @property
    def sends_on_arrival(self) -> bool:
        """Whether a push is gated and compressed when it arrives; otherwise it is as soon as its gradient is done."""
        raise NotImplementedError

    def configure(
        self, *, reacts: bool = True, size: int = 0, steps: int | VariedSteps = 1, until: int | None = None
    ) -> None:
        """Start over, and tell the timeline what it needs to know about the run; called before the first arrival.

        `reacts`: what the run computes may change who arrives when, as clients may be held or restarted. A copy has
        `size` bytes, unless `on_gradient_done` (for a push) or `release` (for a fetch) says otherwise. A task has
        `steps` gradients; if they differ, `task_steps` says how many from then on. No arrival after `until`, in
        nanoseconds, will be asked for. Raises ConfigError if a task of so many gradients takes longer than the clock
        can count.
        """
        raise NotImplementedError

    @property
    def task_steps(self) -> TaskSteps | None:
        """How many local steps tasks have, if they differ."""
        return None

    def expected_arrivals(self, nanoseconds: int) -> int | None:
        """Return roughly the largest number of arrivals in this time; None if it cannot be estimated."""
        raise NotImplementedError

    def draw(self, count: int) -> Order:
        """Return the next arrivals: at most `count` if clients may be held; none if no gradient will ever arrive."""
        raise NotImplementedError

    def release(self, client: int, size: int | None = None) -> None:
        """Release a held client: it fetches `size` bytes (0: it does not fetch) and begins its next task."""
        raise NotImplementedError

    def restart(self, client: int, size: int | None = None) -> None:
        """Make a client give up its task, or its push under way, fetch `size` bytes, and begin its next task."""
        raise NotImplementedError

    def ended_error(self, step: int, events: int | None) -> SimulationError:
        """Return the error for no arrival at iteration `step` of a run of `events` events (None: unknown)."""
        return no_arrival_error(step)


def earlier_arrivals(clients: Integers) -> tuple[Integers, Integers]:
    """Return for each arrival how many earlier ones its client has, and the last of them or −1; int64 (T,) each."""
    count = len(clients)
    number, before = np.empty(count, np.int64), np.full(count, -1, np.int64)
    few = count and int(clients.max()) < 2**16  # NumPy sorts uint16 several times faster
    order = np.argsort(clients.astype(np.uint16) if few else clients, kind="stable")  # groups each client's arrivals
    again = np.zeros(count, bool)
    again[1:] = clients[order[1:]] == clients[order[:-1]]
    before[order[again]] = order[np.flatnonzero(again) - 1]
    places = np.arange(count)
    number[order] = places - np.maximum.accumulate(np.where(again, 0, places))
    return number, before


def no_arrival_error(step: int) -> SimulationError:
    """Return the error for a clock on which nothing will ever happen again."""
    return SimulationError(
        f"iteration {step}: no gradient will ever arrive: each client is held by the server, or at a task that never "
        "ends, or that ends after the last time that a clock can count to; release clients, or give shorter times "
        "(compute.seconds, link, server.seconds, outages)"
    )


def all_held_error(step: int) -> SimulationError:
    """Return the error for a choice to be made while all clients are held."""
    return SimulationError(
        f"iteration {step}: the server holds every client, so no gradient can arrive; "
        "a reply must release clients before the last one is held"
    )
