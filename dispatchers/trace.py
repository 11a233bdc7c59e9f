"""A recorded trace of which client arrived when: by `events: true`, or on a real cluster.

Each row is an event. The column `client` says who arrives; `time_ns`, or `time` in seconds, says when the server is
done with the arrival, which makes the trace a clock. It may have other columns of events.parquet, too: `number`,
`begun`, `sent`, `given_up`, the stages `began_ns`, `done_ns`, `received_ns`, and `done_client` with `done_number`. With
these, servers and gates see the same as those of the recorded run. For a different run (`check: false`), a trace still
gives the order of arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fredsim.dispatchers.base import Order, Timeline, earlier_arrivals
from fredsim.dispatchers.local_steps import VariedSteps
from fredsim.dispatchers.trace_file import read, survey
from fredsim.errors import ConfigError, SimulationError
from fredsim.hyper import HyperParameters, Printable
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Streams
from fredsim.plugins.state.states import State
from fredsim.system.files import content_digest

__all__ = ["Trace"]


class Trace(Timeline):
    """Follows a table of recorded arrivals."""

    idea = "who arrived when, from a recorded run or a cluster: a CSV or Parquet file"
    fraction = 1.0  # the run's clients.fraction, which messages name
    state_names = ("_row", "_numbers", "_done", "_count", "_waiting")

    class Hyper(HyperParameters):
        """The table, and which of its columns are used."""

        file: Printable
        """A CSV file with a header, or a Parquet file such as events.parquet, relative to the current folder."""
        sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(None, validate_default=True)
        """The SHA-256 of the file: filled in if it is null, otherwise checked."""
        check: bool = True
        """True: the run must be the recorded one, and agree with the columns `number`, `begun` and `sent` if they
        exist. False ignores them: the trace says only who arrives when."""

        @field_validator("sha256")
        @classmethod
        def fill_in(cls, sha256: str | None, info: ValidationInfo) -> str | None:
            """Fill in the file's digest; a missing file is reported when the trace is opened."""
            return content_digest(str(info.data.get("file"))) if sha256 is None else sha256

    def expect(self, clients: int) -> None:
        """Raise ConfigError if the file is not a trace of so many clients, or has another SHA-256."""
        path, known = self.hyper.file, self.hyper.sha256
        found = content_digest(path)
        if known is not None and found is not None and found != known:
            what = f"SHA-256 {found} is not dispatcher.sha256, {known}"
            raise ConfigError(f"{path}: {what}; put the file back, or leave that key out")
        self._survey = survey(path, clients)
        if self.hyper.check and self._survey.impossible:
            raise ConfigError(
                f"{path}, {self._survey.impossible}; leave that column out, or give dispatcher.check: false"
            )
        self.timed = self._survey.timed
        self.may_give_up = self.hyper.check and "given_up" in self._survey.names

    def check_length(self, events: int | None) -> None:
        """Raise ConfigError if the trace has fewer events than the run."""
        rows = self._survey.rows
        if events is not None and rows < events:
            raise ConfigError(_too_short(self.hyper.file, rows, events))

    def init(self, clients: int, streams: Streams) -> None:
        """Start over with the first row."""
        self.expect(clients)
        self._clients = clients
        self.configure()

    @property
    def sends_on_arrival(self) -> bool:
        """Whether a push is gated and compressed when it arrives; not if the trace says when gradients were done."""
        return not (self.hyper.check and self._survey.early)

    def configure(
        self, *, reacts: bool = True, size: int = 0, steps: int | VariedSteps = 1, until: int | None = None
    ) -> None:
        """Start at the first row; what is known about the run makes no difference, but for when it ends."""
        self._until = until
        self._row = self._count = 0  # how many events there were, and how many gradients were done
        self._numbers = np.zeros(self._clients, np.int64)  # the number of each client's next task
        self._waiting: set[int] = set()  # clients that are held
        self._done: dict[int, int] = {}  # by client whose gradient is done: how many gradients were done before it
        self._seek()

    def _seek(self) -> None:
        """Open the file at the next row."""
        self._parts: Iterator[dict[str, Any]] = read(self.hyper.file, self._survey, self._clients, self._row)
        self._part: dict[str, Any] = {"client": ()}
        self._at = 0

    def expected_arrivals(self, nanoseconds: int) -> int | None:
        """Return how many arrivals the trace has."""
        return self._survey.rows

    def draw(self, count: int) -> Order:
        """Return at most `count` next arrivals; none if the trace has ended, or the run's time is over.

        Raises SimulationError if one is impossible in this run; rows after the run's end are not looked at.
        """
        if self._at == len(self._part["client"]):
            self._part, self._at = next(self._parts, self._part), 0  # the last part has no rows
        stop = self._at + count
        if self._until is not None and "time" in self._part:
            stop = min(stop, int(np.searchsorted(self._part["time"], self._until, side="right")))
        part = {name: values[self._at : stop] for name, values in self._part.items()}
        clients = part["client"]
        self._at += len(clients)
        if self.on_gradient_done is not None and "done" in part:  # one event at a time then
            part["done"] = part["done"][:1]
            self._send(part["done"], clients, part.get("sent"))
        if self._waiting:
            self._check_waiting(clients)
        first, self._row = self._row, self._row + len(clients)
        known = part if self.hyper.check else {}
        number = self._number(clients, known.get("number"), first)
        more = {name: known.get(name) for name in ("sent", "given_up", "begun")}
        return Order(clients, number, part.get("time"), stages=part.get("stages"), **more)

    def _send(self, done: Any, clients: Integers, sent: Integers | None) -> None:
        """Call `on_gradient_done` for each gradient that was done before the next event."""
        assert self.on_gradient_done is not None
        for pairs in done:
            for client, number in pairs:
                if client in self._done or client in self._waiting:
                    raise self._wrong(self._row, f"done_client names client {client}, which has no gradient under way")
                self._done[client] = self._count
                self._count += 1
                self.on_gradient_done(client, number, self._count - 1)
        for client in clients[:1].tolist():
            before = self._done.pop(client, None)
            if before is None or (sent is not None and before != sent[0]):
                raise self._wrong(self._row, f"done_client does not say when the gradient of client {client} was done")

    def _check_waiting(self, clients: Integers) -> None:
        for i, client in enumerate(clients.tolist()):
            if client in self._waiting:
                row = self._row + i
                why = "the server holds it; release clients as the recorded run's did, or give a trace of such a server"
                if self.fraction < 1:
                    remedy = "leave that key out, or give a trace of a run of this fraction, seed and kind of server"
                    why = f"by clients.fraction, {self.fraction:g}, it is not at work then: {remedy}"
                where = f"iteration {row}: client {client} arrives in the trace ({self.hyper.file}, row {row})"
                raise SimulationError(f"{where}, and {why}")

    def _number(self, clients: Integers, given: Integers | None, first: int) -> Integers:
        """Return which of its client's tasks each arrival is: as recorded, if that is possible."""
        ranks, before = earlier_arrivals(clients)
        least = self._numbers[clients] + ranks
        if given is not None:
            least = np.where(before >= 0, given[before] + 1, self._numbers[clients])
            wrong = np.flatnonzero(given < least)
            if len(wrong):
                at = int(wrong[0])
                what = f"number is {given[at]}; client {clients[at]} has begun {least[at]} tasks before"
                raise self._wrong(first + at, what)
            least = given
        self._numbers[clients] = least + 1  # if a client arrives several times, its last arrival counts
        return least

    def _wrong(self, row: int, what: str) -> SimulationError:
        remedy = "the run is not the recorded one: give dispatcher.check: false to follow who arrives when alone"
        return SimulationError(f"{self.hyper.file}, row {row}: {what}; {remedy}")

    def hold(self, client: int) -> None:
        """Note that a client is held."""
        self._waiting.add(client)

    def release(self, client: int, size: int | None = None) -> None:
        """Note that a client continues."""
        self._waiting.discard(client)

    def restart(self, client: int, size: int | None = None) -> None:
        """Note that a client gives up its task, or its push under way."""
        self._numbers[client] += 1
        self._done.pop(client, None)

    def ended_error(self, step: int, events: int | None) -> SimulationError:
        """Return the error for a run that is longer than the trace."""
        return SimulationError(_too_short(self.hyper.file, step, events))

    def put_state(self, state: State) -> None:
        """Restore a state."""
        super().put_state(state)
        self._seek()


def _too_short(file: str, rows: int, events: int | None) -> str:
    more = "more" if events is None else f"{events:,}"
    return (
        f"{file}: the trace ends after {rows:,} events; the run has {more}: give iterations: {rows}, or a longer trace"
    )
