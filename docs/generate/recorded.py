"""Runs of results/reference as its tables have them: how each ended, and its rows if `rows.csv.xz` was kept.

The folders of these runs are not in git. `rows.csv.xz` has the rows of metrics.csv of all runs of a sweep that a figure
of curves shows, without the digests, which are most of the bytes.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fredsim.runs.folder.result import Result
from fredsim.runs.verify.sweep import recorded_expansion

__all__ = ["ROWS", "Recorded", "chosen", "keep_rows", "recorded"]

ROWS = "rows.csv.xz"
#: The columns of metrics.csv that are kept if a run has them.
COUNTS = ("potential_pushes", "pushes", "potential_fetches", "fetches")
KEPT = ("iteration", "timestamp", "time", "train_loss", "validation_loss", "validation_error", "gap", "gradient_norm",
        "bytes_pushed", "bytes_fetched", *COUNTS)  # fmt: skip


class Recorded(Result):
    """A run of which runs.csv has the end, `cells`, and `rows` are those that were kept, or None."""

    def __init__(self, folder: Path, config: dict[str, Any], ended: Mapping[str, str], rows: pd.DataFrame | None):
        """Take what the tables say about a run; its folder need not be there."""
        super().__init__(folder)
        self._config, self._ended, self._rows = config, ended, rows

    @property
    def config(self) -> dict[str, Any]:
        """The resolved experiment."""
        return self._config

    @property
    def has_ended(self) -> bool:
        """Whether it ended: all runs of these tables did."""
        return True

    @property
    def summary(self) -> dict[str, Any]:
        """What runs.csv says, and whether the run had a clock."""
        timed = self._config["dispatcher"]["name"] == "clock"
        ended = self._ended
        return {"status": ended["status"], "digest": ended["digest"], "time": 0.0 if timed else None, "path": "native"}

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The rows that were kept, or the last one alone: there it reached the value that `select` waited for."""
        if self._rows is not None:
            return self._rows.reset_index(drop=True)
        ended = self._ended
        last: dict[str, Any] = {"iteration": int(ended["iterations"]), "timestamp": int(ended["updates"])}
        last["time"] = _float(ended.get("seconds_to"))
        last |= {name: int(ended[name]) for name in ("bytes_pushed", "bytes_fetched")}
        measured = ("validation_loss", "validation_error", "gap", "gradient_norm")
        last |= {name: _float(ended[name]) for name in measured if name in ended}
        return pd.DataFrame([last | dict.fromkeys(COUNTS, math.nan)])

    @cached_property
    def cells(self) -> list[dict[str, str]]:
        """The rows as text; the last one as runs.csv has it, where it does, since an empty cell there is no NaN."""
        rows = self.metrics.astype(str).where(self.metrics.notna(), "").to_dict("records")
        *others, last = [{str(name): str(text) for name, text in row.items()} for row in rows]
        return [*others, {name: self._ended.get(name) or text for name, text in last.items()}]


def recorded(folder: Path) -> list[Recorded]:
    """Return the runs of a sweep's folder, in the order of its experiment."""
    ended = {row["run"]: row for row in _read(folder / "runs.csv")}
    kept: dict[str, pd.DataFrame] = {}
    if (folder / ROWS).is_file():
        table = pd.read_csv(folder / ROWS, dtype={"run": str})
        kept = {str(name): rows.drop(columns="run").dropna(axis=1, how="all") for name, rows in table.groupby("run")}
    found = [
        Recorded(folder / name, run.experiment.plain(), ended[name], kept.get(name))
        for run in recorded_expansion(folder).runs
        if (name := run.folder_name) in ended
    ]
    if len(found) != len(ended):
        raise ValueError(f"{folder}: runs.csv has {len(ended)} runs, of which sweep.yaml gives {len(found)}")
    return found


def chosen(folder: Path, runs: list[Recorded]) -> list[Recorded]:
    """Return the runs with the values that best.csv has."""
    best, ended = _read(folder / "best.csv"), _read(folder / "runs.csv")
    axes = [name for name in best[0] if name in ended[0]]
    wanted = {tuple(row[axis] for axis in axes) for row in best}
    names = {row["run"] for row in ended if tuple(row[axis] for axis in axes) in wanted}
    return [run for run in runs if run.folder.name in names]


def keep_rows(results: Path, reference: Path, shown: Collection[str]) -> None:
    """Write `rows.csv.xz` of a sweep beside its tables, with the rows of these runs.

    Raises ValueError if they are not those of runs.csv, or not all in `results`.
    """
    digests = {row["run"]: row["digest"] for row in _read(reference / "runs.csv")}
    text = io.StringIO()
    writer: Any = None
    runs = [run for name in digests if name in shown and (run := Result(results / name)).has_ended]
    if missing := sorted({*shown} - {run.folder.name for run in runs}):
        raise ValueError(f"{results}: lacks {', '.join(missing)}; finish it with --resume")
    for run in runs:
        if digests.get(run.folder.name) != run.summary["digest"]:
            raise ValueError(f"{run.folder}: its digest is not that of {reference / 'runs.csv'}")
        columns = [name for name in KEPT if name in run.cells[0]]
        if writer is None:
            writer = csv.DictWriter(text, ["run", *columns], extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
        writer.writerows({"run": run.folder.name, **row} for row in run.cells)
    (reference / ROWS).write_bytes(lzma.compress(text.getvalue().encode(), preset=9))


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _float(text: str | None) -> float:
    return float(text) if text else math.nan


def folders(root: Path) -> Iterator[Path]:
    """Yield the folders of sweeps below results/reference."""
    yield from sorted(path.parent for path in root.rglob("sweep.yaml"))
