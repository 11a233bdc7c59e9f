"""Exports runs to MLflow: its own client writes them into a SQLite file, which `mlflow ui` shows.

A run is identified by its name and the digest of its summary, so that exporting it again does not write it twice.
"""

from __future__ import annotations

import logging
import math
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

# MLflow reads this when it is first imported; an export sends nothing to the network.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param, RunTag
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking import MlflowClient

from fredsim.errors import ConfigError, OutputError, one_line, option, visible
from fredsim.show.export.recorded import ExportedRun, as_text
from fredsim.system.files import irregular_kind, remove_parts, replacing

__all__ = ["COMPLETE", "NAME", "write"]

#: Tags: a run's name; and the SHA-256 of its summary, which is written last and so marks a run that is complete.
NAME, COMPLETE = "fredsim.run", "fredsim.sha256"
# MLflow's limits: metrics in a batch, parameters or tags in a batch, and characters of a text.
METRICS, TEXTS, LONGEST = 1000, 100, 6000
SEARCHED = 1000  # the runs that are looked at together
LONGEST_NAME, ROOM = 250, 10  # the most letters of a name, and how many a shortened one leaves for a number
#: A character that names must not have.
ODD = re.compile(r"[^/\w.\- ]" if os.name == "nt" else r"[^/\w.\- :]")
ENDS = {"finished": "FINISHED", "diverged": "FAILED"}


def write(runs: Sequence[ExportedRun], output: Path) -> Iterator[tuple[str, str]]:
    """Write each run into the SQLite file `output`; yield its name and what was done (see `export`).

    A run of the same name that differs, or that an export left unfinished, is deleted first, in MLflow's way: it can be
    restored. Raises ConfigError for a path that no SQLite file can have, OutputError if it cannot be written.
    """
    if "?" in str(output):
        raise ConfigError(f"--output: is '{output}'; MLflow takes no '?' in a path")
    if kind := irregular_kind(output):  # which MLflow tries for minutes
        raise OutputError(f"{output}: is {kind}, and MLflow writes a file; choose another place for it")
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # otherwise it logs each table that it creates
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if not output.exists():
            _create(output)
        client = MlflowClient(tracking_uri=_address(output))
        experiments = {run.experiment: _experiment(client, run.experiment) for run in runs}
        for run in runs:
            yield run.name, _written(client, experiments[run.experiment], run)
    except Exception as error:
        what = f"MLflow cannot write it ({type(error).__name__}: {one_line(error).partition(' [SQL')[0]})"
        raise OutputError(f"{output}: {what}; name another file by {option('output')}") from None


def _address(file: Path) -> str:
    place = str(file.resolve()).replace("%", "%25")  # in an address, %20 is a blank
    return f"sqlite:///{place}"


def _create(output: Path) -> None:
    """Make a SQLite file with MLflow's empty tables, whole: it takes seconds, and MLflow mends no half of them."""
    remove_parts(output.parent, {output.name})
    with replacing(output) as file:
        SqlAlchemyStore(_address(Path(file.name)), DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()


def _experiment(client: Any, name: str) -> str:
    """Return the id of the experiment with this name; create it if there is none."""
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _written(client: Any, experiment: str, run: ExportedRun) -> str:
    """Write a run unless it is already there; return what was done."""
    existing = [*_runs_named(client, experiment, run.name)]
    if any(one.data.tags.get(COMPLETE) == run.facts["sha256"] for one in existing):
        return "unchanged"
    for one in existing:
        client.delete_run(one.info.run_id)
    _add(client, experiment, run)
    return "replaced" if existing else "new"


def _runs_named(client: Any, experiment: str, name: str) -> Iterator[Any]:
    """Yield the runs with this name. A text with both kinds of quotes cannot be given to MLflow's filters."""
    quote = next((quote for quote in "'\"" if quote not in name), "")
    wanted = f"tags.`{NAME}` = {quote}{name}{quote}" if quote else ""
    page: str | None = ""
    while page is not None:
        some = client.search_runs([experiment], wanted, max_results=SEARCHED, page_token=page or None)
        yield from (run for run in some if run.data.tags.get(NAME) == name)
        page = some.token


def _add(client: Any, experiment: str, run: ExportedRun) -> None:
    """Write a run: its parameters, its tags, its numbers, and last the tag that marks it as complete."""
    kept, lost = run.without(math.isinf, "MLflow has no infinity")
    tags = {NAME: run.name, "fredsim.folder": visible(str(run.folder))} | {
        f"fredsim.{key}": text for key, text in lost.items()
    }
    tags |= {f"fredsim.{key}": value for key, value in run.facts.items() if f"fredsim.{key}" != COMPLETE}
    identity = client.create_run(experiment, start_time=0, tags={NAME: run.name}, run_name=run.name).info.run_id
    texts = _accepted({key: as_text(value) for key, value in run.params.items()})
    for some in _batches([Param(key, value) for key, value in texts.items()], TEXTS):
        client.log_batch(identity, params=some)
    for some in _batches([RunTag(key, value) for key, value in _accepted(tags).items()], TEXTS):
        client.log_batch(identity, tags=some)
    named = _named(kept)
    points = [(named[key], point) for key, found in kept.items() for point in found]
    metrics = [Metric(key, point.value, _milliseconds(point.seconds), point.step) for key, point in points]
    for some in _batches(metrics, METRICS):
        client.log_batch(identity, metrics=some)
    client.set_tag(identity, COMPLETE, run.facts["sha256"])
    client.set_terminated(identity, ENDS.get(run.status, "KILLED"), end_time=_milliseconds(run.seconds))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _named(names: Iterable[str]) -> dict[str, str]:
    """Return a name that MLflow accepts for each of these names, the same one if it does, and no two alike.

    Users' files have any names, and so have arguments of their classes.
    """
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: _plain(name) != name):  # names that are accepted stay as they are
        others = {*found.values()}
        tries = (f"{_plain(name)}{more}" for more in chain([""], (f"_{number}" for number in count(2))))
        found[name] = next(one for one in tries if one not in others)
    return found


def _plain(name: str) -> str:
    """Return a name without what MLflow refuses: some letters, too many, and what is no plain path within a folder."""
    plain = ODD.sub("_", name)
    plain = plain if len(plain) <= LONGEST_NAME else plain[: LONGEST_NAME - ROOM]
    if posixpath.normpath(plain) != plain or plain.startswith(("..", "/")):
        plain = f"_{plain.replace('/', '_')}"
    return plain


def _accepted(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts by names that MLflow accepts, cut to its length; under another, the text has the true one."""
    named = _named(texts)
    shown = {named[key]: text if named[key] == key else f"{key}: {text}" for key, text in texts.items()}
    return {key: text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for key, text in shown.items()}


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield list(items[first : first + size])
