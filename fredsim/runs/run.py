"""One run's simulation, and the files that grow while it goes on."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from fredsim.compute.engines import Engine
from fredsim.compute.storage import Limits
from fredsim.config.choices import Backend
from fredsim.data.sampling import make_sampler
from fredsim.errors import ConfigError, SimulationError
from fredsim.numerics.streams import Streams
from fredsim.plugins.states import State
from fredsim.runs.event_file import EventFile
from fredsim.runs.folders import write_errors
from fredsim.runs.observer import Observer
from fredsim.runs.opening import make_dispatcher, make_server
from fredsim.runs.prepared import Prepared
from fredsim.simulation.event_log import EventLog
from fredsim.simulation.length import Length
from fredsim.simulation.loop import Diverged, Outcome, Parts, Simulation
from fredsim.simulation.probe import Probe
from fredsim.simulation.recorder import Recorder, Row
from fredsim.simulation.start import make_simulation

__all__ = ["Run"]

#: Seconds between two states that are kept in memory: a run that diverges is run again from the last one.
KEEP_SECONDS = 60.0
#: No state is kept where the clients' parameters take more bytes, or a user's class does not say its state.
KEEP_BYTES = 2**28


class GrowingFile:
    """A text file that is open in a `with` statement, cut to `size` bytes. Raises OutputError where it cannot be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0  # in bytes

    def __enter__(self) -> Self:
        with write_errors(self._path):
            self._stream = self._path.open("r+" if self.size else "w", newline="", encoding="utf-8")
            self._stream.truncate(self.size)
            self._stream.seek(self.size)
        return self

    def __exit__(self, *exception: object) -> None:
        with write_errors(self._path):
            self._stream.close()

    def write(self, text: str) -> None:
        """Append to the file; a reader sees it at once."""
        with write_errors(self._path):
            self._stream.write(text)
            self._stream.flush()
        self.size += len(text.encode())


class Run:
    """Simulates one experiment, writing metrics.csv and probe.csv as it goes.

    The constructor refuses parts that do not go together; it touches no file.
    """

    def __init__(
        self,
        prepared: Prepared,
        backend: Backend,
        engine: Engine,
        folder: Path,
        observer: Observer,
        stop: Callable[[], bool],
        length: Length,
    ) -> None:
        self._prepared, self._backend, self._engine = prepared, backend, engine
        self._observer, self._stop, self._length, self._drawn = observer, stop, length, length
        self._folder = folder
        self._metrics, self._probe = GrowingFile(folder / "metrics.csv"), GrowingFile(folder / "probe.csv")
        self._events = EventFile(folder / "events.parquet")
        self._files: list[GrowingFile | EventFile] = [self._metrics]
        if prepared.experiment.probe is not None:
            self._files.append(self._probe)
        if prepared.experiment.events:
            self._files.append(self._events)
        clients = prepared.experiment.clients.count
        self._since = time.perf_counter()
        small = 4 * clients * prepared.model.layout.size <= KEEP_BYTES
        self._kept: tuple[State, list[int]] | None = None
        self.simulation, self.recorder = self._make()
        self._keeps = self.simulation.says_its_state and small

    def __call__(self) -> tuple[Outcome, Recorder]:
        """Run to the end; return how it ended and its record.

        Updates work in place. So where the run diverges, it is run again from the last state kept, else from the
        beginning, to the event before: that gives its last finite parameters.
        """
        try:
            return self._run()
        except Diverged as diverged:
            self._length, self._stop, self._keeps = Length(diverged.iteration), lambda: False, False
            self.simulation, self.recorder = self._make()
            state, sizes = self._kept or (None, [0] * len(self._files))
            if state is not None:
                self.simulation.put_state(state)
            for file, size in zip(self._files, sizes, strict=True):
                file.size = size
            outcome, recorder = self._run()
            return replace(outcome, status="diverged"), recorder

    @np.errstate(all="ignore")  # a run that overflows diverges, and says so
    def _run(self) -> tuple[Outcome, Recorder]:
        self._since = time.perf_counter()
        with ExitStack() as opened:
            for file in self._files:
                opened.enter_context(file)
            if not self._metrics.size:
                csv.writer(self._metrics, lineterminator="\n").writerow(self.recorder.columns)
            return self.simulation.run(self._length), self.recorder

    def _progress(self, iteration: int, timestamp: int) -> None:
        """Tell the observer how far the run is, and keep its state now and then."""
        self._observer.advance(iteration, timestamp)
        if self._keeps and time.perf_counter() - self._since >= KEEP_SECONDS:
            with suppress(SimulationError):  # of a user's take_state: the run may yet end without it
                self._kept = self.simulation.take_state(), [file.size for file in self._files]
            self._since = time.perf_counter()

    @np.errstate(all="ignore")
    def _make(self) -> tuple[Simulation, Recorder]:
        """Return a simulation that has not begun, and its record."""
        prepared, experiment = self._prepared, self._prepared.experiment
        streams = Streams(experiment.seed)
        dispatcher = make_dispatcher(experiment)
        server, protocol = make_server(experiment)
        size = experiment.clients.batch_size
        params = prepared.model.initial(streams)
        if not np.isfinite(params).all():
            raise ConfigError("model.init gives parameters that are not finite in float32; choose smaller ones")
        writer = csv.writer(self._metrics, lineterminator="\n")

        def on_row(row: Row) -> None:
            writer.writerow(row.values())
            self._observer.row(row)

        evaluation, clients = experiment.evaluation, experiment.clients.count
        recorder = Recorder(on_row, test=evaluation.test, clients=clients if evaluation.per_client else 0)
        log = EventLog(self._events, clients, timed=dispatcher.timed) if experiment.events else None
        parts = Parts(
            model=prepared.model,
            params=params,
            engine=self._engine,
            server=server,
            dispatcher=dispatcher,
            protocol=protocol,
            sampler=make_sampler(
                experiment.clients.sampling, len(prepared.dataset.train), size, streams, prepared.shards
            ),
            streams=streams,
            clients=experiment.clients.count,
            length=prepared.length,  # of the whole run, whatever part is done now: it decides the path
            drawn=self._drawn,
            limits=Limits(experiment.window, self._memory(), self._folder),
            path=experiment.path,
            backend=self._backend,
            interval=prepared.interval,
            test=experiment.evaluation.test,
            recorder=recorder,
            progress=self._progress,
            stop=self._stop,
            probe=Probe(experiment.probe.every, self._probe) if experiment.probe else None,
            log=log,
        )
        simulation = make_simulation(parts)
        if log is not None:
            self._events.columns = log.columns
        return simulation, recorder

    def _memory(self) -> int | None:
        """Return how many bytes of the limit `memory` the data leaves for what clients hold; None without a limit."""
        limit, dataset = self._prepared.experiment.memory, self._prepared.dataset
        if limit is None:
            return None
        return max(0, int(limit) - sum(part.x.nbytes for part in (dataset.train, dataset.validation, dataset.test)))
