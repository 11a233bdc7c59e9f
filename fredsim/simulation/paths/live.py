"""A live run: real worker processes compute the clients' gradients, and the order in which they finish is the order.

The server's side is that of a simulated run on the path `snapshots`: the same server, gates, compressor, recorder and
rows. Only who arrives when, and what it pushes, comes from the workers, which are
called the crew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.dispatchers.base import Order, Timeline
from fredsim.numerics.streams import Streams
from fredsim.plugins.states import State
from fredsim.simulation.clients.outbox import PendingPush
from fredsim.simulation.paths.choice import Choice
from fredsim.simulation.paths.loop import Parts
from fredsim.simulation.paths.snapshots import Snapshots

__all__ = ["ClientTask", "Crew", "Live", "LiveDispatcher", "StopRequested", "TaskResult"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class ClientTask:
    """What a client is to compute: its task number `number`, the `ticket`-th of all clients' tasks, from `params` (P,).

    `rate` is the learning rate of its local steps.
    """

    client: int
    number: int
    ticket: int
    params: Array
    rate: float


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: its push (P,), its samples' losses (k·µ,), and whether everything stayed finite.

    If the client compressed the push, `push` is what the server decodes, `size` the bytes that it took, and
    `fingerprint` that of the push before compression; otherwise the last two are 0. `began`, `done` and `received` are
    `time.monotonic_ns()` on the server's machine: when the client began, when it was done, and when its push had
    arrived.
    """

    task: ClientTask
    push: Array
    losses: Array
    finite: bool
    size: int
    fingerprint: int
    began: int
    done: int
    received: int
    worker: str


class StopRequested(Exception):  # noqa: N818  it reports a wish, not an error
    """The run was asked to stop while it waited for a client's task to be done."""


class Crew(Protocol):
    """The workers, which do the clients' tasks."""

    def begin(self, task: ClientTask) -> None:
        """Let a client begin this task; if it has another task that it has not pushed yet, it gives that up."""

    def next(self, seconds: float | None) -> TaskResult | None:
        """Return the next result, or None if there is none within `seconds`; `seconds` None waits without a limit.

        Raises StopRequested if the run is asked to stop meanwhile, ClusterError if no worker is left.
        """


class LiveDispatcher(Timeline):
    """The dispatcher of a live run: clients arrive when their workers are done."""

    timed = True
    state_names = ("_elapsed",)

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        #: The result that arrived last.
        self.last: TaskResult | None = None
        self._elapsed = 0  # nanoseconds of this run when its last task arrived, also in an earlier process
        self._began = 0

    @property
    def sends_on_arrival(self) -> bool:
        """Whether the loop gates a push when it arrives: always, however long it took."""
        return True

    def init(self, clients: int, streams: Streams) -> None:
        """Start the run's clock."""
        del clients, streams
        self.start()

    def start(self) -> None:
        """Let the run's clock continue from now."""
        self._began = time.monotonic_ns() - self._elapsed

    def configure(self, *, reacts: bool = True, size: int = 0, steps: int = 1, until: int | None = None) -> None:
        """Note when the run ends; nothing else matters here."""
        del reacts, size, steps
        self._until = until

    def expected_arrivals(self, nanoseconds: int) -> int | None:
        """Return None: the number of arrivals cannot be estimated."""
        del nanoseconds
        return None

    def now(self) -> int:
        """Return the nanoseconds since the run began."""
        return time.monotonic_ns() - self._began

    def draw(self, count: int) -> Order:
        """Wait for the next arrival and return it alone; an empty order if the run's time is over before."""
        del count
        left = None if self._until is None else max(0.0, (self._until - self.now()) / 1e9)
        done = self.last = self.crew.next(left)
        if done is None:
            nobody = np.empty(0, np.int64)
            return Order(nobody, nobody, nobody, nobody, np.empty((0, 3), np.int64))
        stages = np.array([[done.began, done.done, done.received]], np.int64) - self._began
        now = max(self.now(), int(stages.max()), self._elapsed)
        self._elapsed = now
        task = done.task
        client, number, ticket, at = (np.array([n], np.int64) for n in (task.client, task.number, task.ticket, now))
        return Order(client, number, at, ticket, np.maximum(np.minimum(stages, now), 0))

    def hold(self, client: int) -> None:
        """Do nothing: a client computes nothing until `Live` submits its next task."""

    def release(self, client: int, size: int | None = None) -> None:
        """Do nothing: `Live` submits the client's next task itself."""

    def restart(self, client: int, size: int | None = None) -> None:
        """Do nothing: `Live` submits the client's next task itself."""


class Live(Snapshots):
    """A live run: the path `snapshots`, except that workers compute what clients push."""

    def __init__(self, parts: Parts, choice: Choice, dispatcher: LiveDispatcher, note: Any) -> None:
        """Take the dispatcher; `note` is called after each event with its iteration, its result and the params (P,)."""
        super().__init__(parts, Choice("live", "clients are real"))
        self._window = 1
        self._keeps_pushes = True  # `note` takes the fingerprint of the push
        self._live_dispatcher, self._note = dispatcher, note
        self._numbers = np.zeros(parts.clients, np.int64)  # how many tasks each client has begun
        self._tickets = 0
        self._begun = False

    def _advance(self, length: Any) -> None:
        if not self._begun:  # at first all clients begin; after a stop, all that are not held start over
            self._begun = True
            self._live_dispatcher.start()
            held = self._dispatcher.held
            for client in range(self._parts.clients):
                if client not in held:
                    self._submit(client)
        try:
            super()._advance(length)
        except StopRequested:  # no event has happened; the loop checks why
            return

    def _submit(self, client: int) -> None:
        params = np.array(np.asarray(self._holdings.params(client)))
        self._start_rates(client)
        rate = self._holdings.rate(client) if self._own_steps else 0.0
        task = ClientTask(client, int(self._numbers[client]), self._tickets, params, rate)
        self._numbers[client] += 1
        self._tickets += 1
        self._live_dispatcher.crew.begin(task)

    def _begin(self, client: int) -> None:
        super()._begin(client)
        self._submit(client)

    def _compute(self, clients: list[int], rows: NDArray[np.int64]) -> tuple[Sequence[Array], Array, list[bool]]:
        del clients, rows
        done = self._live_dispatcher.last
        assert done is not None
        return [done.push], done.losses[None], [done.finite]

    def _compress(self, client: int, step: int, push: Array) -> tuple[Array, int]:
        done = self._live_dispatcher.last
        assert done is not None
        return (push, done.size) if done.size else super()._compress(client, step, push)

    def _arrive(self, client: int, pending: PendingPush) -> tuple[int, ...]:
        done, iteration = self._live_dispatcher.last, self.iteration
        assert done is not None
        found = super()._arrive(client, pending)
        self._note(iteration, done, np.asarray(self._server.params))
        return found

    def take_state(self) -> State:
        """Return the state; the tasks under way are not part of it: they are begun again."""
        return super().take_state() | {"live.numbers": self._numbers.copy(), "live.tickets": self._tickets}

    def put_state(self, state: State) -> None:
        """Restore the state, with how many tasks have begun."""
        super().put_state(state)
        self._numbers[...], self._tickets = state["live.numbers"], int(state["live.tickets"])
