"""A live run: real worker processes compute the clients' gradients, and the order in which they finish is the order.

The server's side is that of a simulated run on the path `snapshots`: the same server, gates, compressor, recorder and
rows. Only who arrives when (LiveDispatcher), and what it pushes (LivePushes), comes from the pool of workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from fredsim.dispatchers.base import Order, Timeline
from fredsim.dispatchers.local_steps import VariedSteps
from fredsim.numerics.arrays import Array
from fredsim.numerics.streams import Streams
from fredsim.plugins.state.states import State
from fredsim.simulation.clients.holdings import Holdings
from fredsim.simulation.clients.pushes import EventObserver, Pushes
from fredsim.simulation.paths.loop import Parts
from fredsim.simulation.plugins.local_work import Tasks

__all__ = ["ClientTask", "LiveDispatcher", "LivePushes", "TaskResult", "WorkerPool", "live_parts"]


@dataclass(frozen=True)
class ClientTask:
    """What a client is to compute: its task number `number`, `task_id` among those of all clients, from `params`, (P,).

    `rate` is the learning rate of its local steps. `assigned` is when the pool gave it to a worker, also anew, by
    `time.monotonic_ns()` on the server's machine.
    """

    client: int
    number: int
    task_id: int
    params: Array
    rate: float
    assigned: int = 0


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


class WorkerPool(Protocol):
    """The workers, which do the clients' tasks."""

    workers: int
    """How many there were at once, at most."""
    redone: int
    """How many tasks were done again, because their worker was lost."""

    def begin(self, task: ClientTask) -> None:
        """Let a client begin this task; if it has another task that it has not pushed yet, it gives that up."""

    def next(self, seconds: float | None) -> TaskResult | None:
        """Return the next result, or None if there is none within `seconds`; `seconds` None waits without a limit.

        Raises StopRequested if the run is asked to stop meanwhile, ClusterError if no worker is left, or if a task
        cannot be done.
        """


class LiveDispatcher(Timeline):
    """The dispatcher of a live run: clients arrive when their workers are done."""

    timed = True
    state_names = ("_elapsed",)

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        #: The result that arrived last.
        self.last: TaskResult | None = None
        self._elapsed = 0  # nanoseconds of this run when its last task was served, also in an earlier process
        self._began = 0

    @property
    def sends_on_arrival(self) -> bool:
        """Whether the loop gates a push when it arrives: always, however long it took."""
        return True

    def init(self, clients: int, streams: Streams) -> None:
        """Start the run's clock."""
        self.start()

    def take_state(self) -> State:
        """Return the state, with what the pool counts: it is of the whole run, not of its last process."""
        return super().take_state() | {"workers": self.pool.workers, "redone": self.pool.redone}

    def put_state(self, state: State) -> None:
        """Restore a state, before the first task."""
        super().put_state(state)
        self.pool.workers = max(self.pool.workers, int(state["workers"]))
        self.pool.redone = int(state["redone"])

    def start(self) -> None:
        """Let the run's clock continue from now."""
        self._began = time.monotonic_ns() - self._elapsed

    def configure(
        self, *, reacts: bool = True, size: int = 0, steps: int | VariedSteps = 1, until: int | None = None
    ) -> None:
        """Note when the run ends; nothing else matters here."""
        self._until = until

    def expected_arrivals(self, nanoseconds: int) -> int | None:
        """Return None: the number of arrivals cannot be estimated."""
        return None

    def now(self) -> int:
        """Return the nanoseconds since the run began."""
        return time.monotonic_ns() - self._began

    def draw(self, count: int) -> Order:
        """Wait for the next arrival and return it alone; an empty order if the run's time is over before."""
        left = None if self._until is None else max(0.0, (self._until - self.now()) / 1e9)
        done = self.last = self.pool.next(left)
        if done is None:
            nobody = np.empty(0, np.int64)
            return Order(nobody, nobody, nobody, nobody, np.empty((0, 3), np.int64))
        stages = np.array([[done.began, done.done, done.received]], np.int64) - self._began
        now = max(self.now(), int(stages.max()), self._elapsed)
        self._elapsed = now
        task = done.task
        client, number, task_id, at = (np.array([n], np.int64) for n in (task.client, task.number, task.task_id, now))
        return Order(client, number, at, task_id, np.maximum(np.minimum(stages, now), 0))

    def served(self) -> tuple[int, int]:
        """Note that the server is done with the last arrival; return when its task was assigned, and what time it is.

        Both are nanoseconds since the run began.
        """
        assert self.last is not None
        self._elapsed = max(self.now(), self._elapsed)
        return min(max(self.last.task.assigned - self._began, 0), self._elapsed), self._elapsed

    def hold(self, client: int) -> None:
        """Do nothing: a client computes nothing until `LivePushes` gives the workers its next task."""

    def release(self, client: int, size: int | None = None) -> None:
        """Do nothing: `LivePushes` gives the workers the client's next task itself."""

    def restart(self, client: int, size: int | None = None) -> None:
        """Do nothing: `LivePushes` gives the workers the client's next task itself."""


class LivePushes(Pushes):
    """The pushes of a live run, which workers compute; they are told when a client begins a task."""

    state_names = ("numbers", "tickets")  # the tasks under way are no part of the state: they are begun again

    def __init__(self, holdings: Holdings, dispatcher: LiveDispatcher, clients: int) -> None:
        super().__init__(holdings)
        self._dispatcher = dispatcher
        self.numbers = np.zeros(clients, np.int64)  # how many tasks each client has begun
        self.tickets = 0  # how many tasks all clients have begun; checkpoints have this name
        self._started = False

    def start(self, clients: Iterable[int]) -> None:
        """Let the run's clock go on, and these clients begin."""
        if not self._started:
            self._started = True
            self._dispatcher.start()
            for client in clients:
                self.begin(client)

    def begin(self, client: int) -> None:
        """Give a client's next task to the workers."""
        params, rate = self._holdings.copy(client), self._holdings.rate(client)
        task = ClientTask(client, int(self.numbers[client]), self.tickets, params, rate)
        self.numbers[client] += 1
        self.tickets += 1
        self._dispatcher.pool.begin(task)

    def compute(self, clients: Sequence[int], tasks: Tasks) -> tuple[Sequence[Array], Array, Sequence[bool]]:
        """Return the result that has arrived, of one client."""
        done = self._dispatcher.last
        assert done is not None
        self.size = done.size
        return [done.push], done.losses[None], [done.finite]


def live_parts(parts: Parts, dispatcher: LiveDispatcher, observer: EventObserver) -> Parts:
    """Return the parts of a live run: pushes come from the dispatcher's workers, one at a time."""
    pushes = partial(LivePushes, dispatcher=dispatcher, clients=parts.clients)
    return replace(parts, path="live", limits=replace(parts.limits, window=1), pushes=pushes, observer=observer)
