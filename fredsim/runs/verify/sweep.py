"""Verifies what belongs to a whole sweep: which runs its folder holds, their configurations, and its tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fredsim.config.document import differing, read_document
from fredsim.config.experiment import FIGURE_KEYS, Experiment
from fredsim.config.sweep.expansion import Expansion
from fredsim.errors import OutputError
from fredsim.runs.folder.result import Result, result_of
from fredsim.runs.folder.sweep_tables import SweepTables, as_recorded, outcome_values, recorded_rows
from fredsim.runs.single.opening import open_expansion

__all__ = ["is_sweep", "recorded_expansion", "stopped_runs", "sweep_difference"]

OF_RUN = ("config.yaml", "metrics.csv", "summary.json")


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is a sweep's: whether it has runs.csv."""
    return os.path.lexists(folder / "runs.csv")  # False for a name that no file can have


def recorded_expansion(folder: Path) -> Expansion:
    """Return the runs that a sweep's sweep.yaml describes. Raises OutputError if it is gone, ConfigError."""
    if not os.path.lexists(folder / "sweep.yaml"):
        raise OutputError(f"{folder / 'sweep.yaml'}: is gone; put it back, or run the sweep again")
    if os.path.lexists(folder / "config.yaml"):
        raise OutputError(f"{folder / 'config.yaml'}: is not written by a sweep; remove it")
    return open_expansion(str(folder))


def stopped_runs(folder: Path, expansion: Expansion) -> list[Result]:
    """Return the runs of a sweep that were interrupted, which runs.csv does not have; as found."""
    results = [result_of(folder, run.folder_name, as_found=True) for run in expansion.runs]
    return [result for result in results if result.has_ended and not result.has_finished]


def sweep_difference(folder: Path, expansion: Expansion) -> str | None:
    """Return how a sweep's folder differs from its sweep.yaml and its runs, or None.

    Every folder of a run must be of the sweep and have its configuration. runs.csv and best.csv must have the bytes
    that follow from the summaries of the runs. Of a run that failed, the row's error is taken as it is.
    """
    tables = SweepTables.of(expansion)
    rows = {cells.get("run", ""): cells for cells in recorded_rows(folder)}
    held = [path.name for path in folder.iterdir() if any((path / name).exists() for name in OF_RUN)]
    for name, where in (*((name, "runs.csv names") for name in rows), *((name, "there is") for name in sorted(held))):
        if name not in tables.names:
            return f"{where} the run {name}, which sweep.yaml does not have"
    ended = {}
    for number, (name, run) in enumerate(zip(tables.names, expansion.runs, strict=True)):
        result, cells = result_of(folder, name, as_found=True), rows.get(name)
        if name in held and (keys := _config_difference(result, run.experiment)):
            return f"{name}/config.yaml is not what sweep.yaml gives: {keys}"
        if result.has_finished:
            ended[number] = outcome_values(result, tables.selection)
        elif cells is not None and cells.get("status") == "failed":
            ended[number] = as_recorded(tables, cells)
    if (found := tables.difference(folder, ended)) is None and tables.best(ended) is not None:
        return None if os.path.lexists(folder / "best.csv") else "best.csv is gone"
    return found


def _config_difference(result: Result, experiment: Experiment) -> str:
    """Say how a run's config.yaml differs from its experiment; "" if it does only in figures."""
    recorded = read_document(result.folder / "config.yaml").data
    ignored: dict[str, Any] = dict.fromkeys(FIGURE_KEYS)
    wanted = experiment.plain()
    data = recorded.get("data")
    if isinstance(data, dict):  # the run fills in the rows of a data set whose size it has found
        filled = {key: data[key] for key, value in wanted["data"].items() if value is None and key in data}
        wanted["data"] = wanted["data"] | filled
    return differing(recorded | ignored, wanted | ignored, "{}: {} there, {} by sweep.yaml")
