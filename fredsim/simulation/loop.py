"""The event loop: a client arrives, the server is updated, and whom it releases goes on.

The loop knows no algorithm by name. An event is the arrival of one client's gradient; `iteration` counts events. Each
way of computing a run is a Simulation of its own: fredsim.simulation.snapshots, .fused, .in_hand, .scheduled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Engine, Part
from fredsim.compute.objectives import Measure
from fredsim.compute.storage import Limits, Pool
from fredsim.config.choices import Backend, PathName
from fredsim.data.sampling import Sampler
from fredsim.models.mlp import Model
from fredsim.numerics.streams import Streams
from fredsim.plugins.guarded import Guarded
from fredsim.plugins.states import State, Stateful, part_of
from fredsim.simulation.event_log import EventLog
from fredsim.simulation.guarded_clock import GuardedClock
from fredsim.simulation.guarded_plugins import GuardedDispatcher
from fredsim.simulation.guarded_server import GuardedServer
from fredsim.simulation.length import Goal, Interval, Length
from fredsim.simulation.paths import Choice
from fredsim.simulation.probe import Probe
from fredsim.simulation.protocol import Protocol
from fredsim.simulation.recorder import TEST, Recorder

__all__ = ["Diverged", "Outcome", "Parts", "Simulation", "evaluate"]

Array = NDArray[np.float32]
Measurements = tuple[tuple[float, float], str, dict[str, float]]
Status = Literal["finished", "diverged", "interrupted"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended. After a divergence, `iterations` events stand and the next one was not finite.

    `params` (P,) are those to evaluate; `raw_params` the server's own, where it averages. `seconds` leaves out
    evaluation and the probe; `seconds_kernels` of them were spent in compiled code, NaN where there is none, and
    `shares` says on what, where that is known.
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
    """At this iteration a parameter of the server, or of a client, was not finite any more."""

    def __init__(self, iteration: int) -> None:
        super().__init__(iteration)
        self.iteration = iteration


@dataclass(frozen=True)
class Parts:
    """What a run is made of; server, dispatcher, gates and compressor are not started."""

    model: Model
    params: Array
    engine: Engine
    server: GuardedServer
    dispatcher: GuardedDispatcher
    protocol: Protocol
    sampler: Sampler
    streams: Streams
    clients: int
    length: Length
    drawn: Length  # of a schedule that is known whole: what is run of it, `length` at most
    limits: Limits
    path: PathName
    backend: Backend
    interval: Interval
    recorder: Recorder
    progress: Callable[[int, int, float], None]
    stop: Callable[[], bool]
    stop_at: int | None = None  # an iteration, where a run stops that paused there before
    probe: Probe | None = None
    log: EventLog | None = None
    goal: Goal | None = None
    test: bool = False  # whether rows have the loss and the error of the test rows, too
    measures: Mapping[str, Measure] = field(default_factory=dict)  # of the parameters, by the names of their columns

    @property
    def events(self) -> int | None:
        """How many events there will be at most, where that is known, on a clock about so many."""
        if self.length.until is None or not isinstance(self.dispatcher, GuardedClock):
            return self.length.events
        return self.dispatcher.about(self.length.until)

    @cached_property
    def pool(self) -> Pool:
        """Where what clients hold, and what the server keeps for each of them, have their room."""
        return self.engine.pool(len(self.params), self.limits)

    def most(self, works: int) -> int:
        """Return how many works are begun, of so many that there may be at once."""
        events = self.events
        return works if events is None else min(works, events)


class Simulation:
    """One pass over a run's events, from the initial parameters."""

    def __init__(self, parts: Parts, choice: Choice) -> None:
        self._parts = parts
        self._choice = choice
        self._server = parts.server
        self._layout = parts.model.layout
        self._engine = parts.engine
        self._dispatcher = parts.dispatcher
        self._protocol = parts.protocol
        self._sampler = parts.sampler
        self._recorder = parts.recorder
        self._log = parts.log
        self._interval = parts.interval
        self.iteration = 0
        self.time = 0  # of the last event, in nanoseconds, where there is a clock
        self._rows_on_clock = 0  # that are recorded
        self._measured: tuple[int, Measurements] | None = None  # at which iteration, and what
        self._over = False  # whether the clock has passed the run's end
        self._seconds_before = self._seconds_evaluation = self._began = 0.0
        #: What the run had taken when it was last stopped, by the names of summary.json.
        self.spent: dict[str, float] = {}

    def run(self, length: Length, on_interrupt: Callable[[], None] = lambda: None) -> Outcome:
        """Run to the end and return how it ended; call `on_interrupt` where it is stopped, before its last row.

        Raises Diverged, ConfigError, SimulationError.
        """
        self._began, self._seconds_before = time.perf_counter(), self._engine.seconds
        status = self.go_on(length)
        if status == "interrupted":
            on_interrupt()
        if self._over and length.until is not None:
            self._rows_before(length.until + 1)
            if not self._reached:
                self.time = length.until
        if self._recorder.rows[-1].iteration != self.iteration or self._recorder.rows[-1].time != self._now:
            self._record()
        if self._log is not None:
            self._log.flush()
        server, spent = self._server, self.spent_so_far()
        raw = server.params if server.contract.averaged_params else None
        return Outcome(
            status,
            self.iteration,
            np.asarray(server.result),
            None if raw is None else np.asarray(raw),
            spent["seconds"],
            spent["seconds_evaluation"],
            spent["seconds_kernels"],
            self._choice,
            self._shares(),
            spent.get("seconds_probe"),
        )

    def spent_so_far(self) -> dict[str, float]:
        """Return what the run has taken, by the names of summary.json: in this process, and before in others."""
        probe = self._parts.probe
        found = {"seconds_evaluation": self._seconds_evaluation} | ({"seconds_probe": probe.seconds} if probe else {})
        found["seconds"] = time.perf_counter() - self._began - sum(found.values())
        found["seconds_kernels"] = self._engine.seconds - self._seconds_before
        return {name: seconds + self.spent.get(name, 0.0) for name, seconds in found.items()}

    def go_on(self, length: Length) -> Status:
        """Let events happen until the run has this length, or is stopped; no row is recorded but those that are due."""
        if not self._recorder.rows:
            self._record()
        while not (self._over or self._reached) and length.left(self.iteration, self._server.timestamp) != 0:
            if self._parts.stop() or self.iteration == self._parts.stop_at:
                return "interrupted"
            self._advance(length)
            self._parts.progress(self.iteration, self._server.timestamp, self._now)
        return "finished"

    @property
    def _reached(self) -> bool:
        """Whether a row has reached the run's goal."""
        goal, rows = self._parts.goal, self._recorder.rows
        return goal is not None and bool(rows) and goal.reached(rows[-1])

    @property
    def server(self) -> GuardedServer:
        """The server."""
        return self._server

    @property
    def choice(self) -> Choice:
        """The path, and why it is no faster one."""
        return self._choice

    @property
    def timed(self) -> bool:
        """Whether there is a clock."""
        return self._dispatcher.timed

    @property
    def says_its_state(self) -> bool:
        """Whether its state is sure to be complete: that of a user's class may not be, where it has no `take_state`."""
        return all(part.says_its_state for part in self._owners().values() if isinstance(part, Guarded))

    def take_state(self) -> State:
        """Return all that the run goes on from, as copies. Raises SimulationError where a user's part keeps other."""
        states = {owner: part.take_state() for owner, part in self._owners().items()}
        parts = {f"{owner}.{name}": value for owner, state in states.items() for name, value in state.items()}
        return {"iteration": self.iteration, "time": self.time, "rows_on_clock": self._rows_on_clock} | parts

    def put_state(self, state: State) -> None:
        """Go on from a state of a simulation of the same experiment, on the same path."""
        self.iteration, self.time = int(state["iteration"]), int(state["time"])
        self._rows_on_clock, self._measured = int(state["rows_on_clock"]), None
        for name, part in self._owners().items():
            part.put_state(part_of(state, name))

    def _owners(self) -> dict[str, Stateful]:
        """Return who keeps something from event to event, by name, in the order in which they take it up."""
        protocol, parts = self._protocol, self._parts
        owners: dict[str, Stateful | None] = {
            "server": self._server,
            "dispatcher": self._dispatcher,
            "push_gate": protocol.push_gate,
            "fetch_gate": protocol.fetch_gate,
            "compressor": protocol.compressor,
            "recorder": self._recorder,
            "probe": parts.probe,
            "log": parts.log,
        }
        return {name: owner for name, owner in owners.items() if owner is not None}

    def _shares(self) -> dict[str, float] | None:
        """Return the shares of the kernels' time by what they did, where that is known."""
        return None

    def _advance(self, length: Length) -> None:
        """Let some events happen, none beyond the run's length."""
        raise NotImplementedError

    @property
    def _now(self) -> float:
        """What rows have as their time: simulated seconds, or the iteration where there is no clock."""
        return self.time / 1e9 if self._dispatcher.timed else float(self.iteration)

    def _rows_before(self, time: int) -> None:
        """Record the rows on the clock that are due before an event at this time, in nanoseconds."""
        while not self._reached and (due := self._interval.next_time(self._rows_on_clock)) < time:
            self.time = int(due)
            self._record()
            self._rows_on_clock += 1

    def _record(self) -> None:
        """Record a row; what it says of the parameters is found once, where rows on the clock follow each other."""
        if self._measured is None or self._measured[0] != self.iteration:
            self._measured = self.iteration, self._measurements()
        self._recorder.row(self.iteration, self._server.timestamp, self._now, *self._measured[1])

    def _measurements(self) -> Measurements:
        """Return loss and error of the validation rows, the digest, and the columns that not every run has."""
        begin = time.perf_counter()
        kernels = self._engine.seconds
        result = self._server.result
        validation = evaluate(self._engine, result, "validation")
        test = evaluate(self._engine, result, "test") if self._parts.test else ()
        more = dict(zip(TEST, test, strict=False))
        if self._parts.measures:
            finite, params = self._engine.finite(result), np.asarray(result)
            for name, measure in self._parts.measures.items():
                more[name] = measure(params) if finite else math.nan
        self._seconds_before += self._engine.seconds - kernels
        self._seconds_evaluation += time.perf_counter() - begin
        return validation, self._layout.digest(np.asarray(self._server.params)), more


def evaluate(engine: Engine, params: Array, part: Part) -> tuple[float, float]:
    """Return the mean loss and the error rate over a part of the data set; NaN where a parameter is not finite.

    Those of a server are finite, but their average may overflow. What a network makes of such parameters is nowhere
    defined.
    """
    return engine.evaluate(params, part) if engine.finite(params) else (math.nan, math.nan)
