"""What is exported of a run: numbers by iteration, its configuration, and the texts of its summary."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fredsim.config.document import flatten
from fredsim.config.experiment import FIGURE_KEYS, with_defaults
from fredsim.errors import visible
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import with_digest

__all__ = ["ExportedRun", "Point", "as_text", "read_run"]


class Point(NamedTuple):
    """A value, its iteration (`step`) and its simulated second, 0 if the run has no clock."""

    step: int
    seconds: float
    value: float


@dataclass(frozen=True)
class ExportedRun:
    """A run, in the form in which it is exported.

    `experiment` is the experiment's name; `points` are numbers over time, by name; `params` is the flattened
    configuration, whose values are numbers, texts, booleans, lists or None, also with the defaults that config.yaml
    leaves out; `facts` are the texts of the summary, digest and status among them. `diverged`: whether the run counts
    as diverged.
    """

    name: str
    folder: Path
    experiment: str
    points: Mapping[str, list[Point]]
    params: Mapping[str, Any]
    facts: Mapping[str, str]
    diverged: bool = False

    @property
    def status(self) -> str:
        """How the run ended: finished, diverged or interrupted."""
        return "diverged" if self.diverged else self.facts["status"]

    def without(self, left_out: Callable[[float], bool], why: str) -> tuple[Mapping[str, list[Point]], dict[str, str]]:
        """Return the points but for the values that are `left_out`, and the fact that names these, if there are any."""
        kept = {name: [point for point in points if not left_out(point.value)] for name, points in self.points.items()}
        lost = [
            f"{name}: {', '.join(f'{point.value:g} at {point.step}' for point in points if left_out(point.value))}"
            for name, points in self.points.items()
            if len(kept[name]) < len(points)
        ]
        return kept, {"not_exported": f"{why}: {'; '.join(lost)}"} if lost else {}

    @property
    def seconds(self) -> float:
        """The simulated second at which the run ended; 0 if it has no clock."""
        return max((points[-1].seconds for points in self.points.values() if points), default=0.0)


def read_run(name: str, result: Result) -> ExportedRun:
    """Return a run in the form in which it is exported. Raises OutputError if its files cannot be read.

    Its numbers are the columns of metrics.csv, without empty cells but with NaN and infinity, without columns that are
    NaN because there is nothing to measure, and without `time` if there is no clock; and `summary/KEY` for each number
    of summary.json that has no such column.
    """
    metrics, summary, cells = result.metrics, with_digest(result.summary), result.cells
    left_out = {"iteration"} if result.timed else {"iteration", "time"}
    steps = [int(step) for step in metrics["iteration"]]
    seconds = [float(second) for second in metrics["time"]] if result.timed else [0.0] * len(steps)
    points: dict[str, list[Point]] = {}
    for column in map(str, metrics.select_dtypes("number")):
        rows = zip(steps, seconds, metrics[column], cells, strict=True)
        found = [Point(step, second, float(value)) for step, second, value, row in rows if row[column]]
        measured = result.has_diverged or not all(math.isnan(point.value) for point in found)
        if column not in left_out and measured:
            points[column] = found
    numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    for key, value in numbers.items():
        if key not in metrics:
            points[f"summary/{key}"] = [Point(steps[-1], seconds[-1], float(value))]
    facts = {visible(key): visible(value, "\n") for key, value in flatten(summary).items() if isinstance(value, str)}
    named = str(result.config["name"])
    return ExportedRun(visible(name), result.folder, named, points, _params(result), facts, result.has_diverged)


def _params(result: Result) -> dict[str, Any]:
    """Return a run's configuration without figures, with the defaults that it leaves out, but for those that are null.

    Of two runs one of which has such a key the other one, too, then has its value, by which runs are found.
    """
    written = flatten(result.config)
    flat = {key: value for key, value in flatten(with_defaults(result.config)).items() if value is not None}
    return {key: value for key, value in (written | flat).items() if key.partition(".")[0] not in FIGURE_KEYS}


def as_text(value: Any) -> str:
    """Return a parameter as text: a text as it is, anything else as JSON, numbers with all digits."""
    return value if isinstance(value, str) else json.dumps(value)
