"""Wrappers through which the event loop calls clocks: fredsim's own, and a user's class that says how long tasks take.

A user's own clock needs `__init__(**hyper)` and `seconds(client, task)`; it may have `expect(clients)`,
`init(clients, streams)`, and attributes `link`, `server` and `outages`: mappings, like the clock's keys of these names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import ValidationError

from fredsim.dispatchers.base import Order, Timeline
from fredsim.dispatchers.clock import Clock
from fredsim.dispatchers.durations import LAST, Draws, as_nanoseconds
from fredsim.dispatchers.local_steps import VariedSteps
from fredsim.errors import ConfigError
from fredsim.hyper import explain
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Streams
from fredsim.plugins.failures import said
from fredsim.plugins.guarded import Guarded, is_real
from fredsim.plugins.state.states import State, part_of, put_state, take_state
from fredsim.simulation.plugins.guarded_plugins import OWN_CHOICES, GuardedDispatcher
from fredsim.simulation.schedule.length import LONGEST_SCHEDULE, Length

__all__ = ["GuardedClock", "OwnClock", "expected_events"]


class GuardedClock(GuardedDispatcher):
    """A clock or a trace, as the event loop calls it; what a user's class returns is checked by OwnDurations."""

    state_names = ("reacts",)

    def __init__(self, clock: Timeline, clients: int) -> None:
        """Tell the clock how many clients there will be. Raises ConfigError if it refuses so many."""
        super().__init__(clock, clients)
        #: The clock itself.
        self.clock = clock
        self._user_object = clock.user_object if isinstance(clock, OwnClock) else clock
        self._name = type(self._user_object).__name__
        self.timed, self.may_give_up = clock.timed, clock.may_give_up
        #: Whether the run tells the clock when each client continues; if not, a client continues as soon as it arrives.
        self.reacts = False

    def configure(self, *, reacts: bool, size: int, steps: int | VariedSteps, until: int | None) -> None:
        """Tell the clock what it needs to know about the run, before the first arrival; see Timeline.configure.

        Raises ConfigError if a task of `steps` gradients takes longer than the clock can count.
        """
        self.reacts = reacts
        self.clock.configure(reacts=reacts, size=size, steps=steps, until=until)

    def draw(self, count: int) -> Order:
        """Return about `count` next arrivals; none if no gradient will ever arrive again."""
        return self.clock.draw(count)

    def orders(self, count: int | None, until: int | None) -> Iterator[Order]:
        """Yield, in pieces, the first `count` arrivals, or those until a time in nanoseconds.

        There are fewer if no more will ever arrive, and never more than LONGEST_SCHEDULE.
        """
        left = LONGEST_SCHEDULE if count is None else count
        most = max(OWN_CHOICES, self._clients) if isinstance(self.clock, OwnClock) else 2**20
        many = most if until is None else 2**8  # pieces grow from here: few arrivals are drawn beyond the end
        ended = False
        while left > 0 and not ended:
            part, ended = self.draw(min(left, many)).until(until)
            yield part.first(left)
            left -= len(part)
            many = min(2 * many, most)


def expected_events(length: Length, dispatcher: GuardedDispatcher) -> int | None:
    """Return the largest possible number of events; an estimate if a clock ends the run; None if it is unknown.

    A clock that ends the run has been configured for it.
    """
    if length.until is None or not isinstance(dispatcher, GuardedClock):
        return length.events
    return dispatcher.clock.expected_arrivals(length.until)


class OwnDurations(Guarded):
    """The durations of tasks that a user's clock returns, checked."""

    signatures = {  # noqa: RUF012
        "expect": ("clients",), "init": ("clients", "streams"), "seconds": ("client", "task"),
    }  # fmt: skip

    def __call__(self, clients: Integers, numbers: Integers) -> Integers:
        """Return how long these tasks of these clients take, int64 (n,) nanoseconds."""
        pairs = zip(clients.tolist(), numbers.tolist(), strict=True)
        return as_nanoseconds([self._seconds(client, number) for client, number in pairs])

    def _seconds(self, client: int, number: int) -> float:
        self.where = f"client {client}, task {number}"
        seconds = self.guard("seconds", lambda: self._inner.seconds(client, number))
        if not is_real(seconds) or not 0 < seconds <= math.inf:
            what = (
                f"returned {said(seconds)}; it must be a number of seconds above 0, or math.inf for a task without end"
            )
            raise self.error("seconds", what)
        return float(min(seconds, LAST))  # an integer may exceed float64

    def of(self, client: int, number: int) -> int:
        """Return how long one task takes, in nanoseconds."""
        return int(self(np.array([client]), np.array([number]))[0])


class OwnClock(Clock):
    """A clock whose tasks take as long as a user's object says."""

    def __init__(self, user_object: Any) -> None:
        """Wrap a user's object. Raises ConfigError if its `link`, `server` or `outages` is invalid."""
        given = {
            key: value
            for key in ("link", "server", "outages")
            if (value := getattr(user_object, key, None)) is not None
        }
        try:
            self.hyper = Clock.Hyper.model_validate(given)
        except ValidationError as error:
            ((at, text), *_) = explain(error, Clock.Hyper)
            raise ConfigError(
                f"dispatcher.name: {type(user_object).__name__}.{'.'.join(map(str, at))}: {text}"
            ) from None
        self.user_object = user_object
        self._own = OwnDurations(user_object)

    def expect(self, clients: int) -> None:
        """Tell the clock, and the user's object, how many clients there will be."""
        super().expect(clients)
        if self._own.has("expect"):
            self._own.guard("expect", lambda: self.user_object.expect(clients))

    def init(self, clients: int, streams: Streams) -> None:
        """Start the user's object, then the clock."""
        if self._own.has("init"):
            self._own.guard("init", lambda: self.user_object.init(clients, streams))
        super().init(clients, streams)

    def _make_durations(self, draws: Draws) -> OwnDurations:
        return self._own

    def take_state(self) -> State:
        """Return the clock's state and that of the user's object."""
        own = {f"users.{name}": value for name, value in take_state(self.user_object).items()}
        return super().take_state() | own

    def put_state(self, state: State) -> None:
        """Restore the clock's state and that of the user's object."""
        super().put_state(state)
        put_state(self.user_object, part_of(state, "users"))
