"""One run: from a resolved experiment to the files of its folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from fredsim.compute.engines import Engine, NativeEngine
from fredsim.config.choices import Backend
from fredsim.config.document import dump_yaml, read_document
from fredsim.config.experiment import Experiment
from fredsim.plugins.digests import another_version, own_code
from fredsim.runs.folders import claim, kept, put, writing
from fredsim.runs.observer import Observer
from fredsim.runs.per_client import clients_text
from fredsim.runs.prepared import Prepared, prepare
from fredsim.runs.results import config_digest, file_digests
from fredsim.runs.run import Run
from fredsim.simulation.engines import found_backend, make_engine
from fredsim.simulation.length import Length
from fredsim.simulation.loop import Outcome, evaluate
from fredsim.simulation.recorder import Recorder, Row, histogram_text
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
    observer = observer or Observer()
    prepared = prepare(experiment, root)
    backend, threads = found_backend(experiment.backend), experiment.threads or share
    size, length = experiment.clients.batch_size, prepared.length
    with ExitStack() as opened:
        opened.enter_context(telling(observer.compiling))
        engine = make_engine(backend, prepared.model, prepared.dataset, size, threads)
        opened.callback(engine.close)
        run_length = length if until is None else Length(until, None)
        run = Run(prepared, backend, engine, folder, observer, stop, run_length)
        found = own_code(experiment.plain())
        if code is not None and found != code:
            raise another_version(code, found)
        opened.enter_context(kept(folder))
        config = heading + dump_yaml(prepared.experiment.plain())
        claim(folder, "config.yaml", config, experiment.digest)
        with writing(folder):
            # What there is from now on is of this run.
            for name in ("summary.json", "metrics.csv", "probe.csv", "clients.csv"):
                (folder / name).unlink(missing_ok=True)
        observer.begin(label or experiment.name, length.iterations, length.updates)
        outcome, recorder = run()
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
            _write(folder, prepared, engine, outcome, recorder)
            summary["files"] = file_digests(folder)
            put(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    observer.end(label or experiment.name, summary)


def _write(folder: Path, prepared: Prepared, engine: Engine, outcome: Outcome, recorder: Recorder) -> None:
    """Write what a run leaves behind, but for summary.json. Raises OSError."""
    split = prepared.model.layout.split
    put(folder / "params.safetensors", save(split(np.ascontiguousarray(outcome.params))))
    (folder / "params_raw.safetensors").unlink(missing_ok=True)
    if outcome.raw_params is not None:
        put(folder / "params_raw.safetensors", save(split(outcome.raw_params)))
    put(folder / "staleness.csv", histogram_text(recorder.histogram))
    if recorder.by_client is not None:
        rows = len(prepared.dataset.train)
        text = clients_text(engine, outcome.params, rows, prepared.shards, recorder.by_client)
        put(folder / "clients.csv", text)


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


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
