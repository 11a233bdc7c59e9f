"""What is exported of a run: numbers by iteration, its configuration, and what its summary says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fredsim.config.document import flatten
from fredsim.config.experiment import FIGURE_KEYS
from fredsim.runs.results import Result
from fredsim.runs.run_files import with_digest

__all__ = ["Point", "Recorded", "as_text", "recorded_run"]


class Point(NamedTuple):
    """A number, the iteration that it is of, and the simulated second; 0 where the run has no clock."""

    step: int
    seconds: float
    value: float


@dataclass(frozen=True)
class Recorded:
    """A run as other tools take it.

    `experiment` is its experiment's name, `points` are numbers by name, `params` the flattened configuration, each a
    number, a text, a truth value, a list or None; `facts` the texts of its summary, digest and status among them.
    """

    name: str
    folder: Path
    experiment: str
    points: Mapping[str, list[Point]]
    params: Mapping[str, Any]
    facts: Mapping[str, str]

    @property
    def status(self) -> str:
        """How it ended: finished, diverged or interrupted."""
        return self.facts["status"]

    @property
    def seconds(self) -> float:
        """The simulated second of its end; 0 where it has no clock."""
        return max((points[-1].seconds for points in self.points.values() if points), default=0.0)


def recorded_run(name: str, result: Result) -> Recorded:
    """Return a run as other tools take it. Raises OutputError where its files cannot be read.

    Its numbers are the columns of metrics.csv, but for cells that are empty, and for `time` where there is no clock;
    and `summary/KEY` for each number of summary.json that has no such column.
    """
    metrics, summary = result.metrics, with_digest(result.summary)
    left_out = {"iteration"} if result.timed else {"iteration", "time"}
    steps = [int(step) for step in metrics["iteration"]]
    seconds = [float(second) for second in metrics["time"]] if result.timed else [0.0] * len(steps)
    points: dict[str, list[Point]] = {}
    for column in map(str, metrics.select_dtypes("number")):
        rows = zip(steps, seconds, metrics[column], strict=True)
        found = [Point(step, second, float(value)) for step, second, value in rows if not math.isnan(value)]
        if column not in left_out and found:
            points[column] = found
    numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    for key, value in numbers.items():
        if key not in metrics and not math.isnan(value):
            points[f"summary/{key}"] = [Point(steps[-1], seconds[-1], float(value))]
    facts = {key: value for key, value in flatten(summary).items() if isinstance(value, str)}
    kept = {key: value for key, value in result.config.items() if key not in FIGURE_KEYS}
    return Recorded(name, result.folder, str(result.config["name"]), points, flatten(kept), facts)


def as_text(value: Any) -> str:
    """Return a parameter as text: numbers with every digit, lists and what is null or true as JSON has them."""
    return value if isinstance(value, str) else json.dumps(value)
