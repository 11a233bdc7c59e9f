"""The event loop: a client's gradient arrives, the server is updated, and the clients that it releases continue.

An event is one client's arrival; `iteration` counts events, from 0. The loop knows no algorithm by name. Each path,
that is, each way of computing a run, is a subclass of Simulation: see fredsim.simulation.paths.snapshots, .fused, .hand
and .scheduled. All paths give the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from fredsim.compute.engines import Engine, Part
from fredsim.compute.metrics import Metrics
from fredsim.compute.objectives import Measure
from fredsim.compute.problem_engine import ProblemMetrics
from fredsim.compute.storage import Limits, Pool
from fredsim.config.choices import Backend, PathName
from fredsim.data.sampling import Sampler
from fredsim.errors import SimulationError
from fredsim.networks.network import Network
from fredsim.numerics.arrays import Array
from fredsim.numerics.streams import Streams
from fredsim.plugins.guarded import Guarded
from fredsim.plugins.outside import Outside
from fredsim.plugins.state.states import State, Stateful, part_of
from fredsim.simulation.clients.holdings import Holdings
from fredsim.simulation.clients.pushes import EventObserver, Pushes
from fredsim.simulation.clients.stages import StagePlan
from fredsim.simulation.paths.choice import Choice
from fredsim.simulation.paths.pace import Pace
from fredsim.simulation.paths.probe import Probe
from fredsim.simulation.plugins.client_work import clients_at_work
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from fredsim.simulation.plugins.guarded_server import GuardedServer
from fredsim.simulation.plugins.protocol import Protocol
from fredsim.simulation.record.recorder import TEST, Recorder
from fredsim.simulation.record.status import Status
from fredsim.simulation.schedule.event_log import EventLog
from fredsim.simulation.schedule.guarded_clock import expected_events
from fredsim.simulation.schedule.length import Goal, Interval, Length

__all__ = ["Diverged", "Outcome", "Parts", "Simulation", "StopRequested", "evaluate"]

#: The most rows between two events.
MOST_ROWS = 1_000_000
#: After how many events without an update a run that only its updates end is given up; and how many for each client.
LONGEST_WAIT, LONGEST_WAIT_BY_CLIENT = 1_000_000, 1_000

Measurements = tuple[tuple[float, float], str, dict[str, float]]


@dataclass(frozen=True)
class Outcome:
    """How a run ended. After a divergence, `iterations` events count, and the one after them was not finite.

    `params` (P,) are those to evaluate; `raw_params` are the server's current ones, if `params` is an average, else
    None. `seconds` leaves out evaluation and the probe. `seconds_kernels` of these were spent in compiled code (NaN
    for a backend without any); `shares` are the shares of this time by activity, if the path measures them.
    """

    status: Status
    iterations: int
    params: Array
    raw_params: Array | None
    seconds: float
    seconds_evaluation: float
    seconds_kernels: float
    choice: Choice
    shares: dict[str, float] | None
    seconds_probe: float | None = None


class Diverged(Exception):  # noqa: N818  it reports an outcome, not an error
    """At this iteration a parameter of the server, or of a client, was no longer finite."""

    def __init__(self, iteration: int) -> None:
        super().__init__(iteration)
        self.iteration = iteration


class StopRequested(Exception):  # noqa: N818  it reports a wish, not an error
    """The run was asked to stop while it waited for a client, before an event had happened."""


@dataclass(frozen=True)
class Parts:
    """What a run is made of; the server, the dispatcher, the gates and the compressor are not started yet."""

    model: Network
    params: Array
    engine: Engine
    server: GuardedServer
    dispatcher: GuardedDispatcher
    protocol: Protocol
    sampler: Sampler
    streams: Streams
    clients: int
    length: Length
    drawn: Length  # up to where a whole schedule is drawn: what this process is to run, `length` at most
    limits: Limits
    path: PathName | Literal["live"]
    backend: Backend
    interval: Interval
    recorder: Recorder
    progress: Callable[[int, int, float], None]
    stop: Callable[[], bool]
    stop_at: int | None = None  # an iteration at which to stop, because the recorded run stopped there
    probe: Probe | None = None
    log: EventLog | None = None
    goal: Goal | None = None
    test: bool = False  # whether rows also have the loss and the error over the test data
    measures: Mapping[str, Measure] = field(default_factory=dict)  # functions of the parameters, by column name
    single: Callable[[], Engine] | None = None  # makes an engine for single samples, whose gradients are clipped
    metrics: Metrics | ProblemMetrics | None = None  # of the outputs
    outside: Outside | None = None  # what users' functions keep, which the state lacks
    pushes: Callable[[Holdings], Pushes] = Pushes  # where pushes come from
    stages: StagePlan | None = None  # of clients that are pipelines
    pace: Pace = field(default_factory=Pace)  # how many events are processed at once where all is known ahead
    observer: EventObserver | None = None  # is told of each event; only on the path `snapshots`, or live

    @property
    def events(self) -> int | None:
        """The largest possible number of events; an estimate if the clock ends the run; None if it is unknown."""
        return expected_events(self.length, self.dispatcher)

    @cached_property
    def pool(self) -> Pool:
        """The pool of arrays for what clients hold, and for what the server keeps for each of them."""
        return self.engine.operations.pool(len(self.params), self.limits)

    @property
    def at_work(self) -> int:
        """How many clients are at work at once."""
        return clients_at_work(self.clients, self.protocol.fraction)

    def most_tasks(self, tasks: int) -> int:
        """Return `tasks`, how many tasks may be under way at once, or the number of events if that is smaller."""
        events = self.events
        return tasks if events is None else min(tasks, events)


class Simulation:
    """Base of the paths: one pass over a run's events, from the initial parameters or from a state."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        self._parts = parts
        #: The path, and why it is not a faster one.
        self.choice = choice
        self.server = parts.server
        self._layout = parts.model.layout
        self._engine, self._operations = parts.engine, parts.engine.operations
        self._dispatcher = parts.dispatcher
        self._protocol = parts.protocol
        self._sampler = parts.sampler
        self._recorder = parts.recorder
        self._log = parts.log
        self._interval = parts.interval
        self.iteration = 0
        self.time = 0  # of the last event, in nanoseconds, if there is a clock
        self._rows_on_clock = 0  # how many rows that the clock determines are recorded
        self._measured: tuple[int, Measurements] | None = None  # the last measurements, and at which iteration
        self._ended = False  # whether the clock has passed the run's end
        self._updated = 0, 0  # the timestamp, and the iteration at which it was first seen
        self._seconds_before = self._seconds_evaluation = self._began = 0.0
        #: The seconds that the run had taken when it was last stopped, by their names in summary.json.
        self.spent: dict[str, float] = {}

    def run(self, length: Length, on_interrupt: Callable[[], None] = lambda: None) -> Outcome:
        """Run to the end and return how it ended; if it is stopped, call `on_interrupt` before the last row.

        Raises Diverged, ConfigError, SimulationError.
        """
        self._began, self._seconds_before = time.perf_counter(), self._engine.seconds
        status = self.process_until(length)
        if status == "interrupted":
            on_interrupt()
        if self._ended and length.until is not None:
            self._record_rows_before(length.until + 1)
            if not self._goal_reached:
                self.time = length.until
        last = self._recorder.last
        if last is None or (last.iteration, last.time) != (self.iteration, self._now):
            self._record()
        if self._log is not None:
            self._log.flush()
        server, spent = self.server, self.spent_so_far()
        # A copy: a user's class may hand over its average in the same array.
        raw = np.array(np.asarray(server.params)) if server.contract.averaged_params else None
        return Outcome(
            status,
            self.iteration,
            np.asarray(server.evaluated_params),
            raw,
            spent["seconds"],
            spent["seconds_evaluation"],
            spent["seconds_kernels"],
            self.choice,
            self._shares(),
            spent.get("seconds_probe"),
        )

    def spent_so_far(self) -> dict[str, float]:
        """Return the seconds that the run has taken, by their names in summary.json, earlier processes included."""
        probe = self._parts.probe
        found = {"seconds_evaluation": self._seconds_evaluation} | ({"seconds_probe": probe.seconds} if probe else {})
        found["seconds"] = time.perf_counter() - self._began - sum(found.values())
        found["seconds_kernels"] = self._engine.seconds - self._seconds_before
        return {name: seconds + self.spent.get(name, 0.0) for name, seconds in found.items()}

    def process_until(self, length: Length) -> Status:
        """Process events until the run has this length or is stopped. Record only the rows that are due."""
        if self._recorder.last is None:
            self._record()
        server = self.server
        self._start()
        while not (self._ended or self._goal_reached) and length.events_left(self.iteration, server.timestamp) != 0:
            if self._parts.stop() or self.iteration == self._parts.stop_at:
                return "interrupted"
            try:
                self._advance(length)
            except StopRequested:
                return "interrupted"
            self._parts.progress(self.iteration, server.timestamp, self._now)
            if length.iterations is None and length.until is None:
                self._refuse_endless()
        return "finished"

    def _refuse_endless(self) -> None:
        """Raise SimulationError if a run that only its updates end has made none for very many events."""
        timestamp, since = self._updated
        if self.server.timestamp != timestamp:
            self._updated = self.server.timestamp, self.iteration
        elif self.iteration - since > max(LONGEST_WAIT, LONGEST_WAIT_BY_CLIENT * self._parts.clients):
            raise SimulationError(
                f"iteration {self.iteration}: {self.server.contract.name} has made no update for "
                f"{self.iteration - since:,} iterations, after {timestamp:,}; what it waits for does not come, such as "
                "pushes of a client that never arrives: give another dispatcher, or iterations"
            )

    @property
    def _goal_reached(self) -> bool:
        """Whether the last row has reached the run's goal."""
        goal, last = self._parts.goal, self._recorder.last
        return goal is not None and last is not None and goal.reached(last)

    @property
    def timed(self) -> bool:
        """Whether there is a clock."""
        return self._dispatcher.timed

    @property
    def work_bytes(self) -> int:
        """The most bytes so far of the arrays in which clients take local steps."""
        return 0

    @property
    def declares_state(self) -> bool:
        """Whether the state is certain to be complete: false if a user's class does not declare its state."""
        parts = [*self._stateful_parts().values(), self._protocol.work.optimizer]
        return all(part.declares_state for part in parts if isinstance(part, Guarded))

    def take_state(self) -> State:
        """Return copies of all that is needed to continue. Raises SimulationError if a user's state cannot be saved."""
        states = {part: found.take_state() for part, found in self._stateful_parts().items()}
        values = {f"{part}.{name}": value for part, state in states.items() for name, value in state.items()}
        return {"iteration": self.iteration, "time": self.time, "rows_on_clock": self._rows_on_clock} | values

    def put_state(self, state: State) -> None:
        """Restore a state that was taken of the same experiment on the same path."""
        self.iteration, self.time = int(state["iteration"]), int(state["time"])
        self._rows_on_clock, self._measured = int(state["rows_on_clock"]), None
        for name, part in self._stateful_parts().items():
            part.put_state(part_of(state, name))

    def _stateful_parts(self) -> dict[str, Stateful]:
        """Return the parts that have a state, by name, in the order in which their states are restored."""
        protocol, parts = self._protocol, self._parts
        found: dict[str, Stateful | None] = {
            "server": self.server,
            "dispatcher": self._dispatcher,
            "push_gate": protocol.push_gate,
            "fetch_gate": protocol.fetch_gate,
            "compressor": protocol.compressor,
            "recorder": self._recorder,
            "probe": parts.probe,
            "log": parts.log,
            "outside": parts.outside,
        }
        return {name: part for name, part in found.items() if part is not None}

    def _shares(self) -> dict[str, float] | None:
        """Return which share of the kernels' time each activity took, by name; None if the path does not measure it."""
        return None

    def _start(self) -> None:
        """Do what comes before the next events, at the start of the run or after a stop."""

    def _advance(self, length: Length) -> None:
        """Process some events, none beyond the run's length. Raises StopRequested, Diverged, SimulationError."""
        raise NotImplementedError

    @property
    def _now(self) -> float:
        """The time that a row gets: simulated seconds, or the iteration if there is no clock."""
        return self.time / 1e9 if self._dispatcher.timed else float(self.iteration)

    def _record_rows_before(self, time: int) -> None:
        """Record the rows that are due on the clock before an event at `time`, in nanoseconds.

        Raises SimulationError if they are far too many.
        """
        if self._interval.next_time(self._rows_on_clock + MOST_ROWS) < time:
            every, seconds = self._interval.every / 1e9, (time - self.time) / 1e9
            raise SimulationError(
                f"iteration {self.iteration}: nothing happens for {seconds:g} seconds, and evaluation.every is "
                f"{every:g}, so that more than {MOST_ROWS:,} rows would be the same: give a larger every, or "
                "shorter times (of a trace: subtract its first time)"
            )
        while not self._goal_reached and (due := self._interval.next_time(self._rows_on_clock)) < time:
            self.time = int(due)
            self._record()
            self._rows_on_clock += 1

    def _record(self) -> None:
        """Record a row; consecutive rows without an event between them share their measurements."""
        if self._measured is None or self._measured[0] != self.iteration:
            self._measured = self.iteration, self._measurements()
        self._recorder.record_row(self.iteration, self.server.timestamp, self._now, *self._measured[1])

    def _measurements(self) -> Measurements:
        """Return loss and error over the validation data, the parameters' digest, and the optional columns."""
        begin, kernels = time.perf_counter(), self._engine.seconds
        result = self.server.evaluated_params
        validation = evaluate(self._engine, result, "validation")
        test = evaluate(self._engine, result, "test") if self._parts.test else ()
        more = dict(zip(TEST, test, strict=False))
        if self._parts.measures:
            finite, params = self._operations.finite(result), np.asarray(result)
            for name, measure in self._parts.measures.items():
                more[name] = measure(params) if finite else math.nan
        if (metrics := self._parts.metrics) is not None:
            more |= metrics(result) if self._operations.finite(result) else dict.fromkeys(metrics.columns, math.nan)
        self._seconds_before += self._engine.seconds - kernels
        self._seconds_evaluation += time.perf_counter() - begin
        return validation, self._layout.digest(np.asarray(self.server.params)), more


def evaluate(engine: Engine, params: Array, part: Part) -> tuple[float, float]:
    """Return the mean loss and the error rate over a part of the data set; NaN if a parameter is not finite.

    A server's parameters are finite, but their average may overflow. Backends need not agree on what a network computes
    from such parameters.
    """
    return engine.evaluate(params, part) if engine.operations.finite(params) else (math.nan, math.nan)
