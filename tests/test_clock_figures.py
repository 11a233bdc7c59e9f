"""Curves of runs whose rows are due on the clock, so that some rows come without a further arrival."""

from pathlib import Path
from statistics import median

import numpy as np
import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.runs.folder.results import Result
from fredsim.show.plots import Options, plot
from tests.test_seconds import BY_SECONDS, SEEDS


@pytest.fixture
def timed(small_yaml: Path) -> list[Result]:
    """Runs of three seeds."""
    return list(fredsim.sweep(small_yaml, [*BY_SECONDS, SEEDS, "clients.count=3"], out="out"))


def test_circles_are_in_the_unit_of_the_axis(timed: list[Result], drawn: list[Figure]) -> None:
    series = [{"where": {}, "points": [[0.3, 0.5]]}]
    for run in timed:
        run.config["published"] = {"source": "A paper", "x": "seconds", "y": "validation_error", "series": series}
    caption = plot(timed, Path("x.svg"), options=Options(x="seconds", end=0.5)).caption
    assert "against simulated seconds." in caption
    (axes,) = drawn[0].axes
    assert axes.get_xlabel() == "simulated time (ms)"
    (circle,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert list(circle.get_xdata()) == pytest.approx([300])  # type: ignore[arg-type]


def test_the_last_value_of_a_run_whose_last_row_has_none(timed: list[Result], drawn: list[Figure]) -> None:
    """A row on the clock without a new iteration has no training loss."""
    recorded = [run.metrics["train_loss"] for run in timed]
    assert any(np.isnan(values.iloc[-1]) for values in recorded)
    (row,) = plot(timed, Path("x.svg"), options=Options(y="train_loss")).tables[0].rows
    finals = [float(values[values.notna()].iloc[-1]) for values in recorded]
    assert (row["runs"], row["final train_loss"]) == (3, median(finals))
    assert (row["smallest"], row["largest"]) == (min(finals), max(finals))
    (axes,) = drawn[0].axes
    (line,) = [line for line in axes.lines if line.get_label() == "ASGD"]
    ends = min(float(run.metrics["time"][run.metrics["train_loss"].notna()].iloc[-1]) for run in timed)
    assert line.get_xdata()[-1] == ends  # type: ignore[index]
