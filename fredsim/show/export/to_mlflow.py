"""Runs for MLflow: written by its own client into a SQLite file, which `mlflow ui` shows.

A run that is exported again is known by its name and by the digest of its summary, and is not written twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# MLflow reads it when it is first imported; an export tells nobody on the network.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  so that what is missing shows before anything is written
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from fredsim.errors import ConfigError, OutputError, one_line
from fredsim.show.export.recorded import Recorded, as_text

__all__ = ["NAME", "WHOLE", "write"]

#: Tags: a run's name; the SHA-256 of its summary, written last: it says that a run is there, and whole.
NAME, WHOLE = "fredsim.run", "fredsim.sha256"
# MLflow takes so many numbers, or parameters and tags, at a time, and texts of so many characters.
METRICS, TEXTS, LONGEST = 1000, 100, 6000
ENDS = {"finished": "FINISHED", "diverged": "FAILED"}


def write(runs: Sequence[Recorded], output: Path) -> Iterator[tuple[str, str]]:
    """Write each run into the SQLite file `output`; yield its name and what became of it.

    A run of the same name that differs, or that an export left unfinished, is deleted first, as MLflow deletes: it can
    be restored. Raises ConfigError for a path that no SQLite file can have, OutputError where it cannot be written.
    """
    if "?" in str(output):
        raise ConfigError(f"--output: is '{output}'; MLflow takes no '?' in a path")
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it announces each table
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(tracking_uri=f"sqlite:///{output.resolve()}")
        experiments = {run.experiment: _experiment(client, run.experiment) for run in runs}
        for run in runs:
            yield run.name, _written(client, experiments[run.experiment], run)
    except Exception as error:
        raise OutputError(f"{output}: MLflow cannot write it ({type(error).__name__}: {one_line(error)})") from None


def _experiment(client: Any, name: str) -> str:
    """Return the id of an experiment, a new one where there is none of this name."""
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _written(client: Any, experiment: str, run: Recorded) -> str:
    """Write a run where it is not there yet; return what became of it."""
    there = client.search_runs([experiment], f"tags.`{NAME}` = {_quoted(run.name)}")
    if any(one.data.tags.get(WHOLE) == run.facts["sha256"] for one in there):
        return "unchanged"
    for one in there:
        client.delete_run(one.info.run_id)
    _add(client, experiment, run)
    return "replaced" if there else "new"


def _quoted(text: str) -> str:
    """Return a text as MLflow's searches take it."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def _add(client: Any, experiment: str, run: Recorded) -> None:
    """Write a run: its parameters, its tags, its numbers, and last the tag that says that it is whole."""
    tags = {NAME: run.name, "fredsim.folder": str(run.folder)}
    tags |= {f"fredsim.{key}": value for key, value in run.facts.items() if f"fredsim.{key}" != WHOLE}
    identity = client.create_run(experiment, start_time=0, tags={NAME: run.name}, run_name=run.name).info.run_id
    texts = _cut({key: as_text(value) for key, value in run.params.items()})
    for some in _parts([Param(key, value) for key, value in texts.items()], TEXTS):
        client.log_batch(identity, params=some)
    for some in _parts([RunTag(key, value) for key, value in _cut(tags).items()], TEXTS):
        client.log_batch(identity, tags=some)
    points = [(key, point) for key, points in run.points.items() for point in points]
    metrics = [Metric(key, point.value, _milliseconds(point.seconds), point.step) for key, point in points]
    for some in _parts(metrics, METRICS):
        client.log_batch(identity, metrics=some)
    client.set_tag(identity, WHOLE, run.facts["sha256"])
    client.set_terminated(identity, ENDS.get(run.status, "KILLED"), end_time=_milliseconds(run.seconds))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _cut(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts as short as MLflow takes them."""
    return {key: text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for key, text in texts.items()}


def _parts(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield list(items[first : first + size])
