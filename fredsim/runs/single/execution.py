"""Executes one run: from a resolved experiment to the files in its folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from fredsim.compute.engines import Engine
from fredsim.config.document import Document, dump_yaml
from fredsim.config.experiment import Experiment, config_digest
from fredsim.errors import FredsimError
from fredsim.plugins.user_code import user_code_digests, version_mismatch_error
from fredsim.runs.checkpoint.checkpoints import NO_CHECKPOINTS, CheckpointPolicy, Checkpoints, resume_errors
from fredsim.runs.folder.folders import claim, locked
from fredsim.runs.folder.per_client import clients_text
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import FILES, file_digests, summary_text
from fredsim.runs.processes.forking import start_early
from fredsim.runs.processes.isolation import (
    begin_here,
    do_apart,
    end_here,
    must_be_apart,
    note_code,
    note_run,
    surroundings_kept,
)
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.opening import check, chosen_backend
from fredsim.runs.single.preloading import OneRun
from fredsim.runs.single.prepared import Prepared, prepare
from fredsim.runs.single.provenance import provenance
from fredsim.runs.single.run import SIMULATED_RUN, Hooks, Run
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.paths.loop import Outcome, evaluate
from fredsim.simulation.record.recorder import Recorder, Row, histogram_text
from fredsim.simulation.schedule.length import Length
from fredsim.system.files import write_atomic, write_errors
from fredsim.system.memory import memory_errors, peak_memory, release_free_memory
from fredsim.system.notices import on_notices

__all__ = ["Execution", "execute", "load_early"]


def execute(
    experiment: Experiment,
    folder: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    hooks: Hooks = SIMULATED_RUN,
    **how: Any,
) -> None:
    """Run one experiment and write its folder, in a process of its own if it has to (fredsim.runs.processes.isolation).

    `hooks`: what a live run does differently; `how`: further arguments of `execute_here`. Raises ConfigError,
    DataError, OutputError, SimulationError.
    """
    observer = observer or Observer()
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
    default_threads: int | None = None,
    code: Mapping[str, str] | None = None,
    policy: CheckpointPolicy = NO_CHECKPOINTS,
    stop_at: int | None = None,
    test: bool = True,
    hooks: Hooks = SIMULATED_RUN,
) -> None:
    """Run one experiment in this process and write its folder.

    `heading`: comment lines above its config.yaml; `most_iterations`: stop after this many, as an interrupt would;
    `stop_at`: stop at this iteration, at which the recorded run wrote a checkpoint; `test`: evaluate the test rows at
    the end; `hooks`: what a live run does differently; `default_threads`: their number if the experiment gives none;
    `code`: the SHA-256 that the user's modules must have; `policy`: when to write checkpoints. A run that has not ended
    continues from the newest checkpoint in its folder. Raises ConfigError, DataError, OutputError, SimulationError.
    """
    observer = observer or Observer()
    release_free_memory()  # what an earlier run in this process has left
    prepared = prepare(experiment, root)
    backend = chosen_backend(experiment, prepared.model.layout.size)
    size, length = experiment.clients.batch_size, prepared.length
    threads = experiment.threads or default_threads
    with on_notices(observer.compiling, observer.note), ExitStack() as opened:
        engine = opened.enter_context(closing(make_engine(backend, prepared.model, prepared.dataset, size, threads)))
        part = length if most_iterations is None else Length(most_iterations, None, length.until)
        run = Run(prepared, backend, engine, folder, observer, stop, part, policy=policy, stop_at=stop_at, hooks=hooks)
        found = _own_code(experiment, code) | dict(prepared.model.code)  # the user's modules have been imported by now
        opened.enter_context(locked(folder))
        _claim(folder, heading, prepared.experiment, experiment)
        observer.begin(label or experiment.name, length.iterations, length.updates, experiment.seconds)
        run.identify(found)
        checkpoint = None if Result(folder).has_finished else run.newest_checkpoint()
        _remove_earlier(folder, None if checkpoint is None else checkpoint.files)
        opened.enter_context(resume_errors(checkpoint, folder))
        outcome, recorder = run(checkpoint)
        summary = {
            "name": experiment.name,
            "status": outcome.status if most_iterations is None else "interrupted",
            **_results(run, engine, outcome, recorder.rows[-1], test=test),
            "experiment": experiment.digest,
            "config": config_digest(prepared.experiment.plain()),  # as _claim has written it
            "code": found,
            **provenance(backend, engine, outcome.choice, prepared.dataset),
            **({"model_files": files} if (files := prepared.model_files) else {}),
            **hooks.facts(),
        }
        with write_errors(folder):
            _write(folder, prepared, engine, outcome, recorder)
            _write_summary(folder, summary, keep=policy.keep)
    observer.memory(peak_memory(), engine.buffer_bytes)
    observer.end(label or experiment.name, summary | {"status": Result(folder).ending})


def _claim(folder: Path, heading: str, used: Experiment, given: Experiment) -> None:
    """Write config.yaml, with the defaults that are `used`, and note that it runs code that was `given` here."""
    claim(folder, "config.yaml", heading + dump_yaml(used.plain()), given.digest)
    note_code(folder / "config.yaml", [given])


def _own_code(experiment: Experiment, wanted: Mapping[str, str] | None) -> dict[str, str]:
    """Return the SHA-256 of the user's modules. Raises ConfigError if they are not the `wanted` ones."""
    found = user_code_digests(experiment.plain())
    if wanted is not None and found != wanted:
        raise version_mismatch_error(wanted, found)
    return found


def _remove_earlier(folder: Path, kept: Collection[str] | None) -> None:
    """Remove the files of an earlier run, except those in `kept`, with which this run continues.

    `kept` is None for a run that starts from the beginning; then checkpoints are removed, too. Raises OutputError.
    """
    with write_errors(folder):
        for name in ("summary.json", *FILES):
            if name not in (kept or ()):
                (folder / name).unlink(missing_ok=True)
        if kept is None:
            Checkpoints(folder).clear()


def _write(folder: Path, prepared: Prepared, engine: Engine, outcome: Outcome, recorder: Recorder) -> None:
    """Write the final parameters, staleness.csv and, if the experiment asks for it, clients.csv. Raises OSError."""
    split = prepared.model.layout.split
    # An average of finite parameters may be NaN, of which processors and devices give different bits.
    params = np.where(np.isnan(outcome.params), np.float32(np.nan), outcome.params)
    write_atomic(folder / "params.safetensors", save(split(params)))
    (folder / "params_raw.safetensors").unlink(missing_ok=True)
    if outcome.raw_params is not None:
        write_atomic(folder / "params_raw.safetensors", save(split(outcome.raw_params)))
    for name, content in prepared.model.saved().items():
        write_atomic(folder / name, content)
    write_atomic(folder / "staleness.csv", histogram_text(recorder.histogram))
    if recorder.by_client is not None:
        rows = len(prepared.dataset.train)
        text = clients_text(engine, outcome.params, rows, prepared.shards, recorder.by_client)
        write_atomic(folder / "clients.csv", text)


def _write_summary(folder: Path, summary: dict[str, Any], *, keep: bool) -> None:
    """Write summary.json, the last file: then the run has ended, and needs no checkpoints any more. Raises OSError."""
    summary["files"] = file_digests(folder)
    write_atomic(folder / "summary.json", summary_text(summary))
    if summary["status"] != "interrupted" and not keep:
        Checkpoints(folder).clear()


def _results(run: Run, engine: Engine, outcome: Outcome, last: Row, *, test: bool) -> dict[str, Any]:
    """Return the results in summary.json; without `test`, no test error."""
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
        "test_error": _finite(evaluate(engine, outcome.params, "test")[1]) if test else None,
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


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
