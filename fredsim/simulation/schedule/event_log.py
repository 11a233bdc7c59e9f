"""Collects a row for each event of a run, the content of events.parquet, and hands the rows on in groups.

Nothing in this module changes the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fredsim.dispatchers.base import DONE, STAGES, earlier_arrivals
from fredsim.numerics.arrays import Integers
from fredsim.plugins.state.states import State, Stateful
from fredsim.simulation.schedule.schedule import Schedule

__all__ = ["EVENTS", "EventLog", "EventSink"]

#: Columns of every events.parquet, and their types.
EVENTS = {
    "iteration": "int64", "time": "float64", "client": "int32", "number": "int64", "begun": "int64",
    "timestamp": "int64", "staleness": "int64", "pushed": "bool", "fetched": "int32", "bytes_pushed": "int64",
    "bytes_fetched": "int64", "sent": "int64",
}  # fmt: skip
#: Further columns of runs on a clock.
CLOCK = dict.fromkeys(STAGES, "int64")
#: A further column of runs on a clock on which tasks may be given up.
GIVEN_UP = {"given_up": "bool"}
#: Further columns of runs in which a push is gated or compressed as soon as its gradient is done, before it arrives:
#: lists of the clients whose gradients were done since the previous event, and of the numbers of their tasks.
LISTS = dict(zip(DONE, ("list of int32", "list of int64"), strict=True))

#: The most rows that are kept in memory before they are written.
MOST = 2**18


class EventSink(Protocol):
    """Writes groups of rows, for instance to a file."""

    @property
    def wanted(self) -> int:
        """How many rows the next group is to have, MOST at most."""

    def write(self, columns: Mapping[str, Any], offsets: Integers) -> None:
        """Write a group: arrays (n,) by column; of list columns all values, those of row i from offsets[i] on."""


class EventLog(Stateful):
    """Collects rows of events, and hands them to a sink in groups."""

    state_names = ("_last", "_done", "_done_until")

    def __init__(self, sink: EventSink, clients: int, *, timed: bool, may_give_up: bool = False) -> None:
        """Start empty. `timed`: the run has a clock; `may_give_up`: on that clock tasks may be given up."""
        self._sink, self._timed, self._may_give_up = sink, timed, may_give_up
        #: Whether pushes are gated or compressed as soon as their gradients are done, before they arrive.
        self.early = False
        self._kept = [name for name in self.columns if name != "time"]
        self._rows = np.empty((len(self._kept), MOST), np.int64)  # pages never written to take no memory
        self._count = 0
        self._last = np.zeros(clients if timed else 0, np.int64)  # when each client's task may have begun, nanoseconds
        self._begun: list[tuple[int, int]] = []  # clients that begin a task after the next rows, and when
        self._done: list[int] = []  # client, number, client, number, …
        self._done_until: list[int] = [0]  # the length of `_done` before each row, and after the last

    @property
    def columns(self) -> dict[str, str]:
        """The columns of this run's events, and their types."""
        clock, given_up = CLOCK if self._timed else {}, GIVEN_UP if self._may_give_up else {}
        return EVENTS | clock | given_up | (LISTS if self.early else {})

    def note_done(self, client: int, number: int) -> None:
        """Note that a client's gradient is done and its push has been gated and compressed."""
        self._done += (client, number)

    def note_begun(self, client: int, time: int) -> None:
        """Note that a client begins a task at `time`, in nanoseconds, after the rows that are added next.

        For a client that does not begin at its arrival: it was held, or its task was given up.
        """
        if self._timed:
            self._begun.append((client, time))

    def add(
        self,
        schedule: Schedule,
        iteration: int,
        timestamp: Integers,
        staleness: Integers,
        *,
        copies: Sequence[Any],
    ) -> None:
        """Add the n events of a schedule, of which `iteration` is the first.

        `timestamp` (n,) is the server's before each event, `staleness` (n,) that of each push. `copies` are four
        values, each (n,) or one for all events: whether the push passed, how many clients fetched after it, the bytes
        pushed and the bytes fetched.
        """
        n = len(schedule)
        iterations = np.arange(iteration, iteration + n)
        known = (schedule.client, schedule.number, schedule.begun, timestamp, staleness)
        sent = iterations if schedule.sent is None else schedule.sent
        values = (iterations, *known, *copies, sent, *(self._times(schedule) if self._timed else ()))
        values += (schedule.given_up,) if self._may_give_up else ()
        begin = 0
        while begin < n:
            end = min(n, begin + self._sink.wanted - self._count)
            target = self._rows[:, self._count : self._count + end - begin]
            for row, value in zip(target, values, strict=True):
                row[...] = value[begin:end] if isinstance(value, np.ndarray) else value
            self._count += end - begin
            if self.early:  # then events are added one by one
                self._done_until.append(len(self._done))
            begin = end
            if self._count == self._sink.wanted:
                self.flush()

    def _times(self, schedule: Schedule) -> tuple[Integers, ...]:
        """Return, for each event, when its task began and was done, and when the server received and finished it."""
        time, clients = schedule.time, schedule.client
        assert time is not None
        if schedule.stages is not None:
            self._begun.clear()
            return *schedule.stages.T, time
        before = earlier_arrivals(clients)[1]
        began = np.where(before >= 0, time[before], self._last[clients])
        self._last[clients] = time  # if a client arrives several times, its last time is kept
        for client, at in self._begun:
            self._last[client] = at
        self._begun.clear()
        return began, time, time, time

    def flush(self) -> None:
        """Write the rows kept so far."""
        if not self._count:
            return
        found: dict[str, Any] = dict(zip(self._kept, self._rows[:, : self._count], strict=True))
        found["time"] = found["time_ns"] / 1e9 if self._timed else found["iteration"]
        offsets = np.zeros(1, np.int64)
        if self.early:
            end = self._done_until[-1]
            found |= {name: np.array(self._done[first:end:2], np.int64) for first, name in enumerate(DONE)}
            offsets = np.array(self._done_until, np.int64) // 2
            self._done, self._done_until = self._done[end:], [0]
        self._sink.write({name: found[name] for name in self.columns}, offsets)
        self._count = 0

    def take_state(self) -> State:
        """Return the state, including the rows that are not written yet."""
        return super().take_state() | {"rows": self._rows[:, : self._count].copy()}

    def put_state(self, state: State) -> None:
        """Restore the state, including the rows that were not written yet."""
        super().put_state(state)
        self._count = state["rows"].shape[1]
        self._rows[:, : self._count] = state["rows"]
