"""One run: from a resolved experiment to the files of its folder."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from safetensors.numpy import save_file

from fredsim import notices
from fredsim.backends import Backend, Engine, NativeEngine, found_backend, make_engine
from fredsim.document import dump_yaml, read_document
from fredsim.errors import ConfigError, OutputError
from fredsim.experiment import Experiment
from fredsim.foreseen import make_simulation
from fredsim.memory import short_of_memory
from fredsim.nodes import parse_yaml
from fredsim.observer import Observer, Silent
from fredsim.prepared import Prepared, prepare
from fredsim.probe import Probe
from fredsim.protocol import make_protocol
from fredsim.recorder import METRICS, Recorder, Row, write_histogram
from fredsim.registry import build
from fredsim.resolution import resolve
from fredsim.results import Result
from fredsim.sampling import make_sampler
from fredsim.servers.window_average import WindowAverage
from fredsim.shelf import Limits
from fredsim.simulation import Diverged, Interval, Length, Outcome, Parts, Simulation, evaluate
from fredsim.streams import Streams

if TYPE_CHECKING:
    pass

__all__ = ["claim", "execute", "finished"]


#: What is drawn of runs and beside them changes no run: it may be another when a sweep goes on.
BESIDE = {"published": None, "figures": None}


def claim(folder: Path, name: str, content: str) -> None:
    """Make `folder` ours by writing `content` to its file `name`.

    Raises OutputError where the folder holds anything that is not of the same experiment.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present, arriving = folder / name, folder / f"{name}.part"
        if present.is_file():
            if not _same_bits(present, content):
                raise OutputError(
                    f"{folder} already holds another experiment; choose another folder by --out, or remove it"
                )
        elif any(path != arriving for path in folder.iterdir()):
            raise OutputError(f"{folder} is not empty and holds no {name}; choose another folder by --out")
        arriving.write_text(content, encoding="utf-8")
        arriving.replace(present)  # whole, or not at all, whenever it is killed
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise OutputError(f"{folder}: {what}; choose another folder by --out") from None


def _same_bits(present: Path, content: str) -> bool:
    """Whether two resolved experiments give the same bits; two sweeps, whether they say the same of their runs."""
    try:
        before, now = read_document(present).data, parse_yaml(content, str(present))
        if present.name != "config.yaml":
            return bool(before | BESIDE == now | BESIDE)
        return resolve(before).digest == resolve(now).digest
    except ConfigError:
        return False


def finished(folder: Path, experiment: Experiment) -> bool:
    """Return whether the folder holds this experiment's finished or diverged run."""
    try:
        summary = Result(folder).summary
    except OutputError:
        return False
    return summary.get("experiment") == experiment.digest and summary.get("status") in {"finished", "diverged"}


@short_of_memory()
def execute(
    experiment: Experiment,
    folder: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    label: str = "",
    heading: str = "",
    until: int | None = None,
    share: int | None = None,
) -> None:
    """Run one experiment into its folder.

    `heading`, lines of comment, stand above its configuration; `until` ends it after that many iterations, as an
    interrupt would have; `share` is its number of threads where the experiment gives none.
    """
    observer = observer or Silent()
    notices.compiling = observer.compiling
    digest = experiment.digest
    prepared = prepare(experiment, root)
    experiment, length = prepared.experiment, prepared.length
    backend, threads = found_backend(experiment.backend), experiment.threads or share
    engine = make_engine(backend, prepared.model, prepared.dataset, experiment.clients.batch_size, threads)
    try:
        run_length = length if until is None else Length(until, None)
        simulate = _Simulate(prepared, backend, engine, folder, observer, stop, run_length)
        claim(folder, "config.yaml", heading + dump_yaml(experiment.plain()))
        # Anew, each under its name: a run that was killed may be writing to its own for a moment yet.
        for name in ("summary.json", "metrics.csv", "probe.csv"):
            (folder / name).unlink(missing_ok=True)
        observer.begin(label or experiment.name, length.iterations, length.updates)
        outcome, recorder = simulate()
        _, test_error = evaluate(engine, outcome.params, "test")
    finally:
        engine.close()
    status = "interrupted" if until is not None and until < (length.iterations or until + 1) else outcome.status
    last = recorder.rows[-1]
    layout = prepared.model.layout
    save_file(layout.split(np.ascontiguousarray(outcome.params)), folder / "params.safetensors")
    (folder / "params_raw.safetensors").unlink(missing_ok=True)
    if outcome.raw_params is not None:
        save_file(layout.split(outcome.raw_params), folder / "params_raw.safetensors")
    write_histogram(folder / "staleness.csv", recorder.histogram)
    packages = ("fredsim", "numpy", "numba", *(("torch",) if isinstance(engine, NativeEngine) else ()))
    summary = {
        "name": experiment.name,
        "status": status,
        "digest": last.digest,
        "iterations": outcome.iterations,
        "updates": last.timestamp,
        "validation_loss": _finite(last.validation_loss),
        "validation_error": _finite(last.validation_error),
        "test_error": _finite(test_error),
        "pushes": last.pushes,
        "fetches": last.fetches,
        "bytes_pushed": last.bytes_pushed,
        "bytes_fetched": last.bytes_fetched,
        "seconds": outcome.seconds,
        "seconds_evaluation": outcome.seconds_evaluation,
        **({} if outcome.seconds_probe is None else {"seconds_probe": outcome.seconds_probe}),
        "seconds_kernels": _finite(outcome.seconds_kernels),
        "shares_kernels": outcome.shares,
        "iterations_per_second": outcome.iterations / outcome.seconds,
        "experiment": digest,
        "backend": backend,
        "device": engine.device_name,
        "threads": engine.threads,
        "path": outcome.choice.path,
        "path_why": outcome.choice.why,
        "machine": platform.machine(),
        **(engine.facts() if isinstance(engine, NativeEngine) else {"numerics": "portable"}),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
    }
    arriving = folder / "summary.json.part"
    arriving.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    arriving.replace(folder / "summary.json")
    observer.end(label or experiment.name, summary)


class _LateFile:
    """A text file that is written anew from `open` on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._stream = self._path.open("w", newline="", encoding="utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def write(self, text: str) -> None:
        """Write; a reader sees it at once."""
        self._stream.write(text)
        self._stream.flush()


class _Simulate:
    """Runs the events of one experiment, anew after a divergence, streaming metrics.csv and probe.csv.

    It is made, and what does not go together is refused, before any file is touched.
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
        self._prepared = prepared
        self._backend = backend
        self._engine = engine
        self._folder = folder
        self._observer = observer
        self._made = self._make(length, stop)

    def __call__(self) -> tuple[Outcome, Recorder]:
        """Return how the run ended and its record.

        An update works in place, so the last finite parameters of a diverged run are had by running it again, to the
        event before.
        """
        try:
            return self._run()
        except Diverged as diverged:
            self._made = self._make(Length(diverged.iteration, None), lambda: False)
            outcome, recorder = self._run()
            return replace(outcome, status="diverged"), recorder

    def _run(self) -> tuple[Outcome, Recorder]:
        simulation, recorder, length, files = self._made
        with ExitStack() as opened:
            for file in files:
                opened.enter_context(file)
            csv.writer(files[0], lineterminator="\n").writerow(METRICS)
            return simulation.run(length), recorder

    def _make(
        self, length: Length, stop: Callable[[], bool]
    ) -> tuple[Simulation, Recorder, Length, Sequence[_LateFile]]:
        prepared, experiment = self._prepared, self._prepared.experiment
        streams = Streams(experiment.seed)
        dispatcher = build("dispatcher", experiment.dispatcher.name, experiment.dispatcher.hyper)
        dispatcher.init(experiment.clients.count, streams)
        server = build("server", experiment.server.name, experiment.server.hyper)
        if experiment.average is not None:
            server = WindowAverage(server, **experiment.average.hyper)
        size = experiment.clients.batch_size
        files, probe = [_LateFile(self._folder / "metrics.csv")], None
        if experiment.probe is not None:
            files.append(_LateFile(self._folder / "probe.csv"))
            probe = Probe(experiment.probe.every, files[1])
        writer = csv.writer(files[0], lineterminator="\n")
        params = prepared.model.initial(streams)
        if not np.isfinite(params).all():
            raise ConfigError("model.init gives parameters that are not finite in float32; choose smaller ones")

        def on_row(row: Row) -> None:
            writer.writerow(row.values())
            self._observer.row(row)

        recorder = Recorder(on_row)
        parts = Parts(
            model=prepared.model,
            params=params,
            engine=self._engine,
            server=server,
            dispatcher=dispatcher,
            protocol=make_protocol(experiment, server, prepared.model.layout, streams),
            sampler=make_sampler(experiment.clients.sampling, len(prepared.dataset.train), size, streams),
            streams=streams,
            clients=experiment.clients.count,
            length=length,
            limits=Limits(experiment.window, self._memory(), self._folder),
            path=experiment.path,
            backend=self._backend,
            interval=self._interval(),
            recorder=recorder,
            progress=self._observer.advance,
            stop=stop,
            probe=probe,
        )
        return make_simulation(parts), recorder, length, files

    def _memory(self) -> int | None:
        """Return what is left of the memory limit for what clients hold, beside the data."""
        limit, dataset = self._prepared.experiment.memory, self._prepared.dataset
        if limit is None:
            return None
        return max(0, int(limit) - sum(part.x.nbytes for part in (dataset.train, dataset.validation, dataset.test)))

    def _interval(self) -> Interval:
        evaluation = self._prepared.experiment.evaluation
        every = evaluation.every * (self._prepared.batches if evaluation.unit == "epochs" else 1)
        return Interval(every, in_updates=evaluation.unit == "updates")


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
