"""From an experiment to its folder of results: one run, or the runs of a sweep one after another."""

from __future__ import annotations

import csv
import json
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors.numpy import save_file

from fredsim.backends import make_engine
from fredsim.datasets import Dataset, data_root, load_dataset
from fredsim.document import Document, dump_yaml, read_document
from fredsim.errors import ConfigError, OutputError
from fredsim.experiment import Experiment, Plan, check_batch, expand, resolve
from fredsim.models import Mlp
from fredsim.recorder import METRICS, Recorder, Row, write_histogram
from fredsim.registry import build
from fredsim.results import Result, Results, load
from fredsim.sampling import make_sampler
from fredsim.simulation import Diverged, Interval, Length, Outcome, Simulation
from fredsim.streams import Streams

__all__ = ["Observer", "execute", "open_source", "run", "run_plan"]

Source = str | os.PathLike[str] | Mapping[str, Any]


class Observer(Protocol):
    """Who watches a run: the progress bar, or nobody. Nothing that it does changes a bit."""

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Take note that a run begins; one of its two lengths is known."""
        ...

    def advance(self, iteration: int, timestamp: int) -> None:
        """Take note of how far the run is."""
        ...

    def row(self, row: Row) -> None:
        """Take note of a row."""
        ...

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Take note that the run has ended and its files are written."""
        ...


class Silent:
    """Watches nothing."""

    def begin(self, label: str, iterations: int | None, updates: int | None) -> None:
        """Do nothing."""

    def advance(self, iteration: int, timestamp: int) -> None:
        """Do nothing."""

    def row(self, row: Row) -> None:
        """Do nothing."""

    def end(self, label: str, summary: Mapping[str, Any]) -> None:
        """Do nothing."""


def open_source(source: Source) -> Document:
    """Return the document of a YAML file, of an experiment that comes with fredsim, or of a dict.

    Raises ConfigError where there is no such file.
    """
    if isinstance(source, Mapping):
        return Document(dict(source))
    path = Path(source)
    if path.is_dir() and (path / "config.yaml").is_file():
        path = path / "config.yaml"
    if not path.exists():
        shipped = Path(str(resources.files("fredsim") / "experiments")) / path.with_suffix(".yaml")
        if not shipped.is_file():
            raise ConfigError(
                f"{path}: no such file, and no experiment of this name; "
                "`fredsim list experiments` names those that come with fredsim"
            )
        path = shipped
    document = read_document(path)
    document.data.setdefault("name", path.stem)
    return document


def run(
    source: Source,
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    *,
    data_root: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Result | Results:
    """Run an experiment or a sweep and return its result.

    Args:
        source: a YAML file, the name of an experiment that comes with fredsim, or a dict of the same shape.
        overrides: `KEY=VALUE` strings with dotted keys, applied last.
        out: the folder of results; results/NAME where None.
        data_root: where data files are kept; see fredsim.datasets.data_root.
        resume: skip the runs of a sweep that have finished.

    Raises:
        ConfigError: the experiment is not valid. DataError: its data is missing or damaged. OutputError: the folder
        holds another experiment. SimulationError: a server or dispatcher broke its contract.

    """
    return run_plan(expand(open_source(source), overrides), out, root=data_root, resume=resume)


def run_plan(
    plan: Plan,
    out: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> Result | Results:
    """Run what a plan holds, one run after another; see `run`."""
    observer = observer or Silent()
    folder = Path(out) if out is not None else Path("results") / plan.name
    with stop_on_interrupt() as stop:
        if not plan.is_sweep:
            (experiment,) = plan.experiments
            execute(experiment, folder, root=root, observer=observer, stop=stop)
            return load(folder)
        claim(folder, "sweep.yaml", dump_yaml(plan.source))
        rows: list[dict[str, Any]] = []
        for experiment, label, axes in zip(plan.experiments, plan.labels, plan.axes, strict=True):
            name = f"{label}-{experiment.digest[:8]}" if label else experiment.digest[:8]
            path = folder / name
            if not (resume and finished(path, experiment)):
                execute(experiment, path, root=root, observer=observer, stop=stop, label=label)
            rows.append({"run": name, **_flat(axes), **_summary_columns(path)})
            _write_runs(folder / "runs.csv", rows)
            if stop():
                break
    return load(folder)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Turn the first interrupt (Ctrl-C) into a request to stop after the events at hand; a second one kills."""
    asked = threading.Event()

    def ask(number: int, frame: object) -> None:
        del number, frame
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def claim(folder: Path, name: str, content: str) -> None:
    """Make `folder` ours by writing `content` to its file `name`.

    Raises OutputError where the folder holds anything that is not of the same experiment.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = folder / name
        if present.is_file():
            if not _same_bits(present, content):
                raise OutputError(
                    f"{folder} already holds another experiment; choose another folder by --out, or remove it"
                )
        elif any(folder.iterdir()):
            raise OutputError(f"{folder} is not empty and holds no {name}; choose another folder by --out")
        present.write_text(content, encoding="utf-8")
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise OutputError(f"{folder}: {what}; choose another folder by --out") from None


def _same_bits(present: Path, content: str) -> bool:
    """Whether two resolved experiments give the same bits; two sweeps, whether their texts are the same."""
    if present.name != "config.yaml":
        return present.read_bytes() == content.encode()
    try:
        before = resolve(read_document(present).data)
    except ConfigError:
        return False
    return before.digest == _parsed(content).digest


def _parsed(content: str) -> Experiment:
    from ruamel.yaml import YAML

    return resolve(YAML(typ="safe", pure=True).load(content))


def finished(folder: Path, experiment: Experiment) -> bool:
    """Return whether the folder holds this experiment's finished or diverged run."""
    try:
        summary = Result(folder).summary
    except OutputError:
        return False
    return summary.get("experiment") == experiment.digest and summary.get("status") in {"finished", "diverged"}


@dataclass(frozen=True)
class Prepared:
    """What one run needs: its resolved experiment, data, model and length."""

    experiment: Experiment
    dataset: Dataset
    model: Mlp
    length: Length
    batches: int  # minibatches in an epoch


def prepare(experiment: Experiment, root: str | os.PathLike[str] | None) -> Prepared:
    """Load the data and settle what depends on it. Raises ConfigError, DataError."""
    dataset = load_dataset(experiment.data.name, experiment.data.train, experiment.data.validation, data_root(root))
    rows = {"train": len(dataset.train), "validation": len(dataset.validation)}
    experiment = experiment.model_copy(update={"data": experiment.data.model_copy(update=rows)})
    check_batch(experiment, len(dataset.train))
    init = experiment.model.init
    model = Mlp(
        sizes=(dataset.inputs, *experiment.model.hidden, dataset.classes),
        init=init if isinstance(init, str) else init.name,
        std=1.0 if isinstance(init, str) else init.std,
    )
    batches = len(dataset.train) // experiment.clients.batch_size
    iterations = experiment.epochs * batches if experiment.epochs else experiment.iterations
    return Prepared(experiment, dataset, model, Length(iterations, experiment.updates), batches)


def execute(
    experiment: Experiment,
    folder: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    label: str = "",
    until: int | None = None,
) -> None:
    """Run one experiment into its folder; `until` ends it after that many iterations, as an interrupt would have."""
    observer = observer or Silent()
    prepared = prepare(experiment, root)
    experiment, length = prepared.experiment, prepared.length
    claim(folder, "config.yaml", dump_yaml(experiment.plain()))
    (folder / "summary.json").unlink(missing_ok=True)
    engine = make_engine(experiment.backend, prepared.model, prepared.dataset, experiment.threads)
    try:
        simulate = _Simulate(prepared, engine, folder, observer, stop)
        observer.begin(label or experiment.name, length.iterations, length.updates)
        outcome, recorder = simulate(length if until is None else Length(until, None))
        test_loss, test_error = engine.evaluate(outcome.params, "test")
        del test_loss
    finally:
        engine.close()
    status = "interrupted" if until is not None and until < (length.iterations or until + 1) else outcome.status
    last = recorder.rows[-1]
    save_file(prepared.model.layout.split(outcome.params), folder / "params.safetensors")
    write_histogram(folder / "staleness.csv", recorder.histogram)
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
        "iterations_per_second": outcome.iterations / outcome.seconds,
        "experiment": experiment.digest,
        "backend": experiment.backend,
        "threads": engine.threads,
        "machine": platform.machine(),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in ("fredsim", "numpy", "numba")}},
    }
    arriving = folder / "summary.json.part"
    arriving.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    arriving.replace(folder / "summary.json")
    observer.end(label or experiment.name, summary)


class _Simulate:
    """Runs the events of one experiment, anew after a divergence, streaming metrics.csv."""

    def __init__(
        self, prepared: Prepared, engine: Any, folder: Path, observer: Observer, stop: Callable[[], bool]
    ) -> None:
        self._prepared = prepared
        self._engine = engine
        self._folder = folder
        self._observer = observer
        self._stop = stop

    def __call__(self, length: Length) -> tuple[Outcome, Recorder]:
        """Return how the run ended and its record.

        An update works in place, so the last finite parameters of a diverged run are had by running it again, to the
        event before.
        """
        try:
            return self._once(length, self._stop)
        except Diverged as diverged:
            outcome, recorder = self._once(Length(diverged.iteration, None), lambda: False)
            return Outcome(
                "diverged", outcome.iterations, outcome.params, outcome.seconds, outcome.seconds_evaluation
            ), recorder

    def _once(self, length: Length, stop: Callable[[], bool]) -> tuple[Outcome, Recorder]:
        prepared, experiment = self._prepared, self._prepared.experiment
        streams = Streams(experiment.seed)
        dispatcher = build("dispatcher", experiment.dispatcher.name, experiment.dispatcher.hyper)
        dispatcher.init(experiment.clients.count, streams)
        size = experiment.clients.batch_size
        with (self._folder / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(METRICS)

            def on_row(row: Row) -> None:
                writer.writerow(row.values())
                file.flush()
                self._observer.row(row)

            recorder = Recorder(on_row)
            simulation = Simulation(
                model=prepared.model,
                params=prepared.model.initial(streams),
                engine=self._engine,
                server=build("server", experiment.server.name, experiment.server.hyper),
                dispatcher=dispatcher,
                sampler=make_sampler(experiment.clients.sampling, len(prepared.dataset.train), size, streams),
                clients=experiment.clients.count,
                wait=experiment.dispatcher.wait,
                window=experiment.window,
                interval=self._interval(),
                recorder=recorder,
                progress=self._observer.advance,
                stop=stop,
            )
            return simulation.run(length), recorder

    def _interval(self) -> Interval:
        evaluation = self._prepared.experiment.evaluation
        every = evaluation.every * (self._prepared.batches if evaluation.unit == "epochs" else 1)
        return Interval(every, in_updates=evaluation.unit == "updates")


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


SUMMARY_COLUMNS = (
    "status", "iterations", "updates", "validation_loss", "validation_error", "test_error",
    "bytes_pushed", "bytes_fetched", "digest",
)  # fmt: skip


def _summary_columns(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {key: summary[key] for key in SUMMARY_COLUMNS}


def _flat(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes' values as columns, those of a mapping under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in axes.items():
        if isinstance(value, Mapping):
            flat |= _flat({f"{key}.{name}": item for name, item in value.items()})
        else:
            flat[key] = value
    return flat


def _write_runs(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = list(dict.fromkeys(key for row in rows for key in row if key not in SUMMARY_COLUMNS))
    arriving = path.with_suffix(".csv.part")
    with arriving.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*axes, *SUMMARY_COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    arriving.replace(path)
