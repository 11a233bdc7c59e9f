"""Executes one run: from a resolved experiment to the files in its folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from fredsim.compute.engines import Engine, Part
from fredsim.config.choices import Backend
from fredsim.config.document import Document, dump_yaml
from fredsim.config.experiment import Experiment, config_digest
from fredsim.config.registry import code_digests, own_modules
from fredsim.data.datasets import Dataset
from fredsim.errors import FredsimError, SimulationError, option
from fredsim.plugins.user_code import user_code_digests, version_mismatch_error
from fredsim.runs.checkpoint.checkpoints import (
    NO_CHECKPOINTS,
    Checkpoint,
    CheckpointPolicy,
    Checkpoints,
    resume_errors,
)
from fredsim.runs.folder.folders import claim, locked
from fredsim.runs.folder.per_client import clients_text
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import FILES, file_digests, summary_text
from fredsim.runs.processes.apart import do_apart
from fredsim.runs.processes.forking import start_early
from fredsim.runs.processes.isolation import (
    begin_here,
    end_here,
    must_be_apart,
    note_code,
    note_run,
    surroundings_kept,
)
from fredsim.runs.processes.observer import Observer, PassingEnd
from fredsim.runs.single.backend_choice import chosen_backend
from fredsim.runs.single.opening import check
from fredsim.runs.single.preloading import OneRun
from fredsim.runs.single.prepared import ANYTHING, Prepared, Wanted, prepare
from fredsim.runs.single.provenance import provenance
from fredsim.runs.single.run import SIMULATED_RUN, Hooks, Run
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.paths.loop import Outcome, evaluate
from fredsim.simulation.record.recorder import ClientCounts, Recorder, Row, histogram_text
from fredsim.simulation.schedule.length import Length
from fredsim.system.files import write_atomic, write_errors
from fredsim.system.heap import release_free_memory
from fredsim.system.machine import current_commit
from fredsim.system.memory import memory_errors, peak_memory
from fredsim.system.notices import on_notices

__all__ = ["Execution", "execute", "load_early", "remove_earlier"]

#: How many samples the rows of a beginning must evaluate, or how long, for the time of one to be known by them.
ENOUGH_SAMPLES, ENOUGH_SECONDS = 512, 2e-3


def execute(
    experiment: Experiment,
    folder: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    hooks: Hooks = SIMULATED_RUN,
    **how: Any,
) -> Result:
    """Run one experiment and write its folder, in a process of its own if it has to (fredsim.runs.processes.isolation).

    `hooks`: what a live run does differently; `how`: further arguments of `execute_here`. The result that is returned
    has the summary of this run, whoever writes into the folder after it. Raises ConfigError, DataError, OutputError,
    SimulationError.
    """
    ended = PassingEnd(observer or Observer())
    observer = cast(Observer, ended)
    if hooks is not SIMULATED_RUN or not must_be_apart(experiment):
        if note_run(experiment):
            check(experiment, Document(experiment.plain()).place)
        begin_here(experiment)
        try:
            with surroundings_kept():
                execute_here(experiment, folder, root=root, observer=observer, stop=stop, hooks=hooks, **how)
        finally:
            end_here(experiment)
    elif failure := do_apart(Execution(experiment, folder, root, how), observer, stop):
        raise failure
    return Result(folder, summary=ended.summary)


def load_early(experiment: Experiment, root: str | os.PathLike[str] | None, *, jobs: int) -> None:
    """If the next run, this one, will be in another process, let that be prepared while this process checks it."""
    if jobs > 1 or must_be_apart(experiment):
        start_early(Execution(experiment, Path(), root, {}))


@dataclass(frozen=True)
class Execution(OneRun):
    """A run as a task for a process of its own: the arguments of `execute_here`."""

    experiment: Experiment
    folder: Path
    root: str | os.PathLike[str] | None
    how: Mapping[str, Any]

    def do(self, observer: Observer, stop: Callable[[], bool], threads: int | None = None) -> FredsimError | None:
        """Do the run; return why it failed, or None."""
        try:
            execute(self.experiment, self.folder, root=self.root, observer=observer, stop=stop, **self.how)
        except FredsimError as error:
            return error
        return None


@memory_errors()
def execute_here(
    experiment: Experiment,
    folder: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    label: str = "",
    heading: str = "",
    most_iterations: int | None = None,
    most_updates: int | None = None,
    default_threads: int | None = None,
    wanted: Wanted = ANYTHING,
    policy: CheckpointPolicy = NO_CHECKPOINTS,
    stop_at: int | None = None,
    evaluate_end: bool = True,
    hooks: Hooks = SIMULATED_RUN,
) -> None:
    """Run one experiment in this process and write its folder, from the newest checkpoint there if it has not ended.

    `heading`: comment lines above its config.yaml; `most_iterations`: stop after this many, as an interrupt would, or
    after `most_updates`, given with them; `stop_at`: stop at this iteration, at which the recorded run wrote a
    checkpoint; `evaluate_end`: evaluate test rows and clients; `hooks`: what a live run does differently; `wanted`:
    what it is made from; `default_threads`: if the experiment gives none; `policy`: when to write checkpoints.
    """
    observer, commit = observer or Observer(), current_commit()  # now: it, and the current folder, may change
    release_free_memory()  # what an earlier run in this process has left
    prepared, name = prepare(experiment, root), label or experiment.name
    length = prepared.length
    with on_notices(observer.compiling, observer.note), ExitStack() as opened:
        backend, engine = _engine(experiment, prepared, default_threads)
        opened.enter_context(closing(engine))
        part = length if most_iterations is None else Length(most_iterations, most_updates, length.until)
        run = Run(prepared, backend, engine, folder, observer, stop, part, policy=policy, stop_at=stop_at, hooks=hooks)
        opened.enter_context(closing(run))
        found = _checked_code(experiment, wanted, prepared) | dict(prepared.model.code)
        opened.enter_context(locked(folder))
        run.identify(found)
        goes_on = not hooks.replayable and not Result(folder).has_finished and run.can_go_on()
        _claim(folder, heading, prepared.experiment, experiment, goes_on=goes_on)
        observer.begin(name, length.iterations, length.updates, experiment.seconds)
        checkpoint = _begin(run, folder, keep=policy.keep)
        opened.enter_context(resume_errors(checkpoint, folder))
        outcome, recorder = run(checkpoint)
        summary = {
            "name": experiment.name,
            "status": outcome.status if most_iterations is None else "interrupted",
            **_results(run, outcome, recorder.last, evaluate_end=evaluate_end),
            **({} if evaluate_end else _without_end(run, outcome.params, prepared.dataset)),
            "experiment": experiment.digest,
            "config": config_digest(prepared.experiment.plain()),  # as _claim has written it
            "code": found,
            **provenance(backend, run.engine, outcome.choice, prepared.dataset, commit),
            **({"model_files": read} if (read := prepared.model_files) else {}),
            **hooks.facts(),
        }
        counts = recorder.by_client if evaluate_end else None
        written, ending = _write_end(folder, prepared, run.engine, outcome, recorder, counts, summary, policy.keep)
    observer.memory(peak_memory(), run.engine.buffer_bytes, run.further_bytes)
    observer.end(name, written, ending)


def _engine(experiment: Experiment, prepared: Prepared, default_threads: int | None) -> tuple[Backend, Engine]:
    """Return what computes the run, and its engine; on a device, free what earlier runs have left there."""
    model, dataset = prepared.model, prepared.dataset
    backend = chosen_backend(experiment, model.layout.size, model.graph, dataset, prepared.length)
    if backend == "cuda":
        from fredsim.cuda.machines import free_garbage

        free_garbage()
    size, threads = experiment.clients.batch_size, experiment.threads or default_threads
    return backend, make_engine(backend, model, dataset, size, threads)


def _begin(run: Run, folder: Path, *, keep: bool) -> Checkpoint | None:
    """Return the checkpoint that a run has continued from, if any; remove all that is not of it. Raises OutputError."""
    checkpoint = None if Result(folder).has_finished else run.newest_checkpoint()
    remove_earlier(folder, None if checkpoint is None else checkpoint.files)
    if checkpoint is not None:  # what cannot be used, and half of one, would be there when the run has ended
        with write_errors(folder):
            Checkpoints(folder, keep=keep).remove_others(checkpoint.iteration)
    return checkpoint


def _claim(folder: Path, heading: str, used: Experiment, given: Experiment, *, goes_on: bool) -> None:
    """Write config.yaml, with the defaults that are `used`, and note that it runs code that was `given` here."""
    claim(folder, "config.yaml", heading + dump_yaml(used.plain()), given.digest, goes_on=goes_on)
    note_code(folder / "config.yaml", [given])


def _checked_code(experiment: Experiment, wanted: Wanted, prepared: Prepared) -> dict[str, str]:
    """Return the SHA-256 of the user's modules.

    Raises SimulationError if what a run is made from is not what the process that started the sweep has.
    """
    _check_files(wanted.files, prepared.model_files)
    if wanted.data is not None and prepared.dataset.digest != wanted.data:
        raise SimulationError(
            "the process that does this run has other data than the one that started the sweep; put the same files "
            f"into its FREDSIM_DATA, and {option('resume', 'True')} does the run again"
        )
    found = user_code_digests(own_modules(experiment.plain()))
    if wanted.code is not None and found != wanted.code:
        raise version_mismatch_error(wanted.code, found)
    return code_digests(experiment.plain())


def _check_files(wanted: Mapping[str, str] | None, found: Mapping[str, str]) -> None:
    """Raise SimulationError if a file that model or data are made from has another content than `wanted` says.

    Its folder may be another: that of a class's module, beside which it lies, is so on another machine. A file that one
    process alone has read is no difference: the other may have kept what it read for an earlier run.
    """
    before, now = _by_name(wanted or {}), _by_name(found)
    common = sorted(before.keys() & now.keys())
    if other := [name for name in common if not (before[name] <= now[name] or now[name] <= before[name])]:
        what = "the process that does this run reads other files than the one that started the sweep"
        raise SimulationError(f"{what}: {', '.join(other)}; put the same ones there, and start the sweep again")


def _by_name(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the digests of files by their name without the folder."""
    found: dict[str, set[str]] = {}
    for path, digest in files.items():
        found.setdefault(os.path.basename(path), set()).add(digest)
    return found


def remove_earlier(folder: Path, kept: Collection[str] | None) -> None:
    """Remove the files of an earlier run, except those in `kept`, with which this run continues.

    `kept` is None for a run that starts from the beginning; then checkpoints are removed, too. Raises OutputError.
    """
    with write_errors(folder):
        for name in ("summary.json", *FILES):
            if name not in (kept or ()):
                (folder / name).unlink(missing_ok=True)
        if kept is None:
            Checkpoints(folder).clear()


def _write_end(
    folder: Path, prepared: Prepared, engine: Engine, outcome: Outcome, recorder: Recorder,
    counts: ClientCounts | None, summary: dict[str, Any], keep: bool,
) -> tuple[Mapping[str, Any], str]:  # fmt: skip
    """Write what a run leaves at its end; with summary.json, the last file, it has ended. Raises OutputError.

    `counts` are those of clients.csv. Returns the summary as it is read, and how the run ended: another process may do
    it anew once this one is done.
    """
    split = prepared.model.layout.split
    # An average of finite parameters may be NaN, of which processors and devices give different bits.
    params = np.where(np.isnan(outcome.params), np.float32(np.nan), outcome.params)
    with write_errors(folder):
        write_atomic(folder / "params.safetensors", save(split(params)))
        (folder / "params_raw.safetensors").unlink(missing_ok=True)
        if outcome.raw_params is not None:
            write_atomic(folder / "params_raw.safetensors", save(split(outcome.raw_params)))
        for name, content in prepared.model.saved().items():
            write_atomic(folder / name, content)
        write_atomic(folder / "staleness.csv", histogram_text(recorder.histogram))
        if counts is not None:
            rows = len(prepared.dataset.train)
            text = clients_text(engine, outcome.params, rows, prepared.shards, counts)
            write_atomic(folder / "clients.csv", text)
        summary["files"] = file_digests(folder)
        write_atomic(folder / "summary.json", summary_text(summary))
        if summary["status"] != "interrupted":
            Checkpoints(folder, keep=keep).clear()
    ended = Result(folder)
    return ended.summary, ended.ending


def _results(run: Run, outcome: Outcome, last: Row | None, *, evaluate_end: bool) -> dict[str, Any]:
    """Return the results in summary.json; without `evaluate_end`, no test error."""
    assert last is not None  # each run has a row at its beginning
    engine = run.engine
    own: dict[str, Any] = {} if engine.problem is None else {"measured_by": engine.problem.measure}
    if engine.problem is not None or run.larger_is_better:
        own["larger_is_better"] = run.larger_is_better
    return {
        "digest": last.digest,
        "iterations": outcome.iterations,
        "updates": last.timestamp,
        **({"time": last.time} if run.simulation.timed else {}),
        "validation_loss": _finite(last.validation_loss),
        "validation_error": _finite(last.validation_error),
        "test_error": _finite(evaluate(engine, outcome.params, "test")[1]) if evaluate_end else None,
        **{name: _finite(last.more[name]) for name in run.measured},
        **own,
        **({"metrics": {name: _finite(last.more[name]) for name in run.metrics}} if run.metrics else {}),
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


def _without_end(run: Run, params: NDArray[np.float32], dataset: Dataset) -> dict[str, float]:
    """Count in the engine's memory what the evaluation at the end takes; return how long one sample takes there.

    Where each row of metrics.csv evaluates ENOUGH_SAMPLES, these tell it, and nothing is returned.
    """
    run.engine.note_evaluation("test")
    if run.recorder.by_client is not None:
        run.engine.note_evaluation("train")
    if len(dataset.validation) >= ENOUGH_SAMPLES or not run.engine.operations.finite(params):
        return {}

    def seconds(part: Part) -> float:
        begin = time.perf_counter()
        run.engine.outcomes(params, part)
        return time.perf_counter() - begin

    found = {}
    for part in sorted(get_args(Part), key=lambda part: len(getattr(dataset, part))):
        if samples := len(getattr(dataset, part)):
            took = min(seconds(part) for _ in range(2))  # the first time it may compile
            found = {"seconds_sample": took / samples}
            if took >= ENOUGH_SECONDS:  # beside which the call itself takes little
                break
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
