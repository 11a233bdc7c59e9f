"""One run: from a resolved experiment to the files of its folder."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import save

from fredsim.compute.engines import Backend, Engine, NativeEngine, found_backend, make_engine
from fredsim.compute.shelf import Limits
from fredsim.config.document import dump_yaml, read_document
from fredsim.config.experiment import Experiment
from fredsim.data.sampling import make_sampler
from fredsim.errors import ConfigError
from fredsim.numerics.streams import Streams
from fredsim.plugins.digests import another_version, own_code
from fredsim.runs.folders import claim, kept, put, writing
from fredsim.runs.observer import Observer, Silent
from fredsim.runs.opening import make_dispatcher, make_server
from fredsim.runs.prepared import Prepared, prepare
from fredsim.runs.results import config_digest, file_digests
from fredsim.simulation.foreseen import make_simulation
from fredsim.simulation.probe import Probe
from fredsim.simulation.recorder import Recorder, Row, histogram_text
from fredsim.simulation.simulation import Diverged, Interval, Length, Outcome, Parts, Simulation, evaluate
from fredsim.system.memory import short_of_memory
from fredsim.system.notices import telling

__all__ = ["execute"]


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
    code: Mapping[str, str] | None = None,
) -> None:
    """Run one experiment into its folder.

    `heading`, lines of comment, stand above its configuration; `until` ends it after that many iterations, as an
    interrupt would have; `share` is its number of threads where the experiment gives none; `code` what the user's
    modules must be, by their digests.
    """
    observer = observer or Silent()
    prepared = prepare(experiment, root)
    backend, threads = found_backend(experiment.backend), experiment.threads or share
    size, length = experiment.clients.batch_size, prepared.length
    with ExitStack() as opened:
        opened.enter_context(telling(observer.compiling))
        engine = make_engine(backend, prepared.model, prepared.dataset, size, threads)
        opened.callback(engine.close)
        run_length = length if until is None else Length(until, None)
        simulate = _Simulate(prepared, backend, engine, folder, observer, stop, run_length)
        found = own_code(experiment.plain())
        if code is not None and found != code:
            raise another_version(code, found)
        opened.enter_context(kept(folder))
        config = heading + dump_yaml(prepared.experiment.plain())
        claim(folder, "config.yaml", config, experiment.digest)
        with writing(folder):
            for name in ("summary.json", "metrics.csv", "probe.csv"):  # what there is from now on is of this run
                (folder / name).unlink(missing_ok=True)
        observer.begin(label or experiment.name, length.iterations, length.updates)
        outcome, recorder = simulate()
        _, test_error = evaluate(engine, outcome.params, "test")
        early = until is not None and until < (length.iterations or until + 1)
        summary = {
            "name": experiment.name,
            "status": "interrupted" if early else outcome.status,
            **_results(outcome, recorder.rows[-1], test_error),
            "experiment": experiment.digest,
            "config": config_digest(read_document(folder / "config.yaml").data),
            "code": found,
            **_circumstances(backend, engine, outcome),
        }
        with writing(folder):
            _write(folder, prepared, outcome, recorder)
            summary["files"] = file_digests(folder)
            put(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    observer.end(label or experiment.name, summary)


def _write(folder: Path, prepared: Prepared, outcome: Outcome, recorder: Recorder) -> None:
    """Write what a run leaves behind, but for summary.json. Raises OSError."""
    split = prepared.model.layout.split
    put(folder / "params.safetensors", save(split(np.ascontiguousarray(outcome.params))))
    (folder / "params_raw.safetensors").unlink(missing_ok=True)
    if outcome.raw_params is not None:
        put(folder / "params_raw.safetensors", save(split(outcome.raw_params)))
    put(folder / "staleness.csv", histogram_text(recorder.histogram))


def _results(outcome: Outcome, last: Row, test_error: float) -> dict[str, Any]:
    """Return what summary.json says of a run's numbers."""
    return {
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
    }


def _circumstances(backend: Backend, engine: Engine, outcome: Outcome) -> dict[str, Any]:
    """Return what summary.json says of how and where a run was computed."""
    packages = ("fredsim", "numpy", "numba", *(("torch",) if isinstance(engine, NativeEngine) else ()))
    return {
        "backend": backend,
        "device": engine.device_name,
        "threads": engine.threads,
        "path": outcome.choice.path,
        "path_why": outcome.choice.why,
        "machine": platform.machine(),
        **(engine.facts() if isinstance(engine, NativeEngine) else {"numerics": "portable"}),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
    }


class _LateFile:
    """A text file that is written anew from `with` on. Raises OutputError where it cannot be."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        with writing(self._path):
            self._stream = self._path.open("w", newline="", encoding="utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        with writing(self._path):
            self._stream.close()

    def write(self, text: str) -> None:
        """Write; a reader sees it at once."""
        with writing(self._path):
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

    @np.errstate(all="ignore")  # a run that overflows diverges, and says so
    def _run(self) -> tuple[Outcome, Recorder]:
        simulation, recorder, length, files = self._made
        with ExitStack() as opened:
            for file in files:
                opened.enter_context(file)
            csv.writer(files[0], lineterminator="\n").writerow(recorder.columns)
            return simulation.run(length), recorder

    @np.errstate(all="ignore")
    def _make(
        self, length: Length, stop: Callable[[], bool]
    ) -> tuple[Simulation, Recorder, Length, Sequence[_LateFile]]:
        prepared, experiment = self._prepared, self._prepared.experiment
        streams = Streams(experiment.seed)
        dispatcher = make_dispatcher(experiment)
        server, protocol = make_server(experiment)
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

        recorder = Recorder(on_row, test=experiment.evaluation.test)
        parts = Parts(
            model=prepared.model,
            params=params,
            engine=self._engine,
            server=server,
            dispatcher=dispatcher,
            protocol=protocol,
            sampler=make_sampler(experiment.clients.sampling, len(prepared.dataset.train), size, streams),
            streams=streams,
            clients=experiment.clients.count,
            length=prepared.length,  # of the whole run, whatever part is done now: the path hangs on it
            limits=Limits(experiment.window, self._memory(), self._folder),
            path=experiment.path,
            backend=self._backend,
            interval=self._interval(),
            test=experiment.evaluation.test,
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
