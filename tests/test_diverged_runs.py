"""Runs that diverged, wherever a figure, a table or a report takes a median: beside one computed from their rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.runs.folder.results import Result
from fredsim.show.plots import Options, plot
from fredsim.show.plots.groups import Panel, group
from fredsim.show.report import figures
from fredsim.show.report.run_table import run_table
from fredsim.show.report.sections import sections
from fredsim.show.report.winner import verdict, winner_table

Seeds = Callable[..., list[Result]]

METRICS = """
import numpy as np

def off(output, y):
    return float((output.argmax(1) != y).mean())

def right(output, y):
    return float((output.argmax(1) == y).mean())
"""
#: The values of three runs, with rows at 0, 10, …, 50, and the place from which each of them has diverged.
VALUES = ([0.9, 0.8, 0.7, 0.6], [0.9, 0.7, 0.5, 0.3, 0.2, 0.1], [0.9, 0.85, 0.6, 0.4, 0.3, 0.25])
ENDS = (30, 50, math.inf)
GROWTH = [0, 10, 20, 30, 40, 50]


@pytest.fixture
def seeds(small_yaml: Path) -> Seeds:
    """Return runs that differ in their seed alone, with rows at 0, 10, …, 50, and other numbers as said for each."""
    Path("off.py").write_text(METRICS, encoding="utf-8")
    metrics = "[{name: 'off:off'}, {name: 'off:right', larger_is_better: true}]"
    evaluation = f"evaluation={{every: 10, test: true, metrics: {metrics}}}"

    def call(*changes: Mapping[str, Any], words: Sequence[str] = ()) -> list[Result]:
        count = list(range(len(changes)))
        found: list[Result] = list(
            fredsim.sweep(small_yaml, [f"sweep={{seed: {count}}}", evaluation, *words], out="seeds")
        )
        for run, change in zip(found, changes, strict=True):
            edit(run, **change)
        return found

    return call


def edit(run: Result, how: str = "finished", **columns: Sequence[float] | float) -> None:
    """Give a run these columns, of which a short one ends it, and single numbers in its last row; and how it ended.

    `how`: finished, diverged, or `nan`, the training loss of one that finished.
    """
    rows = min((len(values) for values in columns.values() if isinstance(values, list)), default=len(run.metrics))
    metrics = run.metrics.iloc[:rows].copy()
    for name, values in columns.items():
        if isinstance(values, list):
            metrics[name] = values[:rows]
        else:
            metrics.loc[metrics.index[-1], name] = values
            run.summary[name] = values
    last = {name: str(value) for name, value in metrics.iloc[-1].items()}
    if how == "nan":
        last["train_loss"] = "nan"
    run.summary["status"] = "diverged" if how == "diverged" else "finished"
    run.__dict__.pop("_infinite", None)
    run.__dict__ |= {"metrics": metrics, "cells": [last]}


def expected(least: float) -> dict[int, float]:
    """Return the medians of VALUES at each iteration at which they are finite."""
    found = {}
    for place, at in enumerate(GROWTH):
        values = [own[place] if at < end else least for own, end in zip(VALUES, ENDS, strict=True)]
        found[at] = median(values)
    return {at: middle for at, middle in found.items() if math.isfinite(middle)}


def three(seeds: Seeds, y: str) -> list[Result]:
    """Return runs with VALUES: one diverged at a row of the others, one ended with a loss that is not finite."""
    ways, bytes_of = ("diverged", "nan", "finished"), (300, 100, 200)
    return seeds(*(
        {"how": how, y: values, "bytes_pushed": [first + at for at in GROWTH], "bytes_fetched": [0] * 6}
        for how, values, first in zip(ways, VALUES, bytes_of, strict=True)
    ))  # fmt: skip


COLUMNS = ["validation_error", "test_error", "test_loss", "off", "test_off", "right"]


@pytest.mark.parametrize("y", COLUMNS)
def test_curves_and_their_tables(y: str, seeds: Seeds, drawn: list[Figure]) -> None:
    """Also of what is measured on test rows, and of the user's own metrics; x is of runs that are there to the end."""
    runs = three(seeds, y)
    wanted = expected(-math.inf if y == "right" else math.inf)
    assert [*wanted] == [0, 10, 20, 30, 40]
    drawing = plot(runs, Path("x.png"), options=Options(y=y))
    (row,) = drawing.tables[0].rows
    assert (row["diverged"], row[f"final {y}"]) == (2, None)
    assert f"Medians count a run that diverged as {'−∞' if y == 'right' else 'infinite'}." in drawing.caption
    plot(runs, Path("x.png"), options=Options(y=y, x="bytes"))
    for shown, first in zip(drawn, (0, 200), strict=True):
        (line,) = (line for line in shown.axes[0].lines if line.get_marker() != "x")
        found = {int(at) - first: value for at, value in np.asarray(line.get_xydata()).tolist()}
        assert [*found] == GROWTH
        assert {at: value for at, value in found.items() if math.isfinite(value)} == pytest.approx(wanted)
    if y.startswith("test"):
        return  # a report has no choice of these
    (panel,) = group(runs, None, None)
    (figure,) = figures.curves([panel])
    (trace,) = (one for one in figure["data"] if one["meta"]["is"] == "line")
    reported = {at: value for at, value in zip(GROWTH, trace["y"][y], strict=True) if math.isfinite(value)}
    assert reported == pytest.approx(wanted)
    assert [list(trace["x"][x]) for x in ("iterations", "bytes")] == [GROWTH, [200 + at for at in GROWTH]]


def test_all_runs_that_diverge_at_one_iteration_leave_no_gap(seeds: Seeds, drawn: list[Figure]) -> None:
    """Between the rows of the others, where two of five have a value."""
    runs = seeds(*[{}] * 5)
    for run in runs[:2]:
        metrics = run.metrics.iloc[:4].copy()
        metrics.loc[3, ["iteration", "validation_error"]] = 23, 0.99
        run.__dict__["metrics"] = metrics.astype({"iteration": int})
        run.summary["status"] = "diverged"
    plot(runs, Path("x.png"))
    (line,) = (line for line in drawn[0].axes[0].lines if line.get_marker() != "x")
    errors = [run.metrics["validation_error"].tolist() for run in runs]
    middles = [median(own[n] if n < 3 or own in errors[2:] else math.inf for own in errors) for n in range(6)]
    assert np.asarray(line.get_xydata()).tolist() == [list(pair) for pair in zip(GROWTH, middles, strict=True)]


def test_the_last_value_of_a_run_that_diverged(seeds: Seeds, drawn: list[Figure]) -> None:
    """Against seconds a line of one run ends with it; in a line of two, the run is infinite there."""
    values = ([0.9, 0.8, 0.7], [0.9, 0.6, 0.5, 0.4, 0.3, 0.2])
    time = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    runs = seeds(
        {"how": "diverged", "validation_error": values[0], "time": time},
        {"validation_error": values[1], "time": time},
        words=["dispatcher={name: clock}"],
    )
    for some in (runs[:1], runs):
        plot(some, Path("x.png"), options=Options(x="seconds"))
    lines = [next(line for line in shown.axes[0].lines if line.get_marker() != "x") for shown in drawn]
    one, both = ([y for y in np.asarray(line.get_ydata()).tolist() if math.isfinite(y)] for line in lines)
    assert (one, both) == (values[0], [0.9, pytest.approx(0.7)])


def test_numbers_of_which_nobody_knows_what_is_better(seeds: Seeds) -> None:
    """The caption says that the median is of the runs that are left."""
    runs = seeds({"staleness_mean": 5.0, "how": "diverged"}, {"staleness_mean": 1.0}, {"staleness_mean": 2.0})
    drawing = plot(runs, Path("x.png"), options=Options(y="staleness_mean"))
    assert drawing.tables[0].rows[0]["final staleness_mean"] == 1.5
    assert "Medians leave out runs that diverged." in drawing.caption


def test_costs_are_of_the_runs_that_did_not_diverge(seeds: Seeds) -> None:
    """One that diverged at once has used next to nothing."""
    used: tuple[dict[str, Any], ...] = (
        {"bytes_pushed": 100},
        {"bytes_pushed": 140},
        {"bytes_pushed": 10, "how": "diverged"},
    )
    shares = ((30, 50), (50, 50), (1, 50))
    runs = seeds(*(
        one | {"bytes_fetched": 0, "pushes": made, "potential_pushes": most}
        for one, (made, most) in zip(used, shares, strict=True)
    ))  # fmt: skip
    for kind, options in (("ends", Options()), ("ends", Options(x="pushes")), ("copies", Options())):
        drawing = plot(runs, Path("x.png"), kind, options)
        (row,) = drawing.tables[0].rows
        assert (row["runs"], row["bytes"], row["of potential pushes"]) == (3, 120, 0.8)
        assert "of the runs that did not diverge." in drawing.caption
    assert row["pushes"] == 40


def test_what_diverges_is_not_said_to_be_cheap(small_yaml: Path) -> None:
    words = ["evaluation.every=10", "sweep={server.lr: [0.1, 0.2, 1.0e+30]}", "dispatcher.fetch={every: 2}"]
    runs = list(fredsim.sweep(small_yaml, words))
    edit(runs[1], bytes_pushed=7, fetches=3)
    edit(runs[2], how="diverged", bytes_pushed=1, bytes_fetched=1)
    answer = plot(runs, Path("x.png"), "copies", Options(by=["server.lr"])).answer
    assert answer.startswith("Fewest bytes: α = 0.2, ")
    assert "of those of α = 0.1" in answer
    assert plot(runs[1:], Path("x.png"), "copies", Options(by=["server.lr"])).answer == ""


def test_shares_of_runs_with_rows_at_different_iterations(seeds: Seeds, drawn: list[Figure]) -> None:
    """Each run has that of its last row so far, up to where the first of them ends."""
    places = ([0, 10, 20, 30], [0, 20, 40], [0, 10, 30, 40, 50])
    pushes = ([0, 9, 16, 21], [0, 10, 16], [0, 2, 6, 8, 10])
    runs = seeds({}, {}, {})
    for run, at, made in zip(runs, places, pushes, strict=True):
        run.__dict__["metrics"] = run.metrics[run.metrics["iteration"].isin(at)].assign(
            pushes=made, potential_pushes=at
        )
    plot(runs, Path("x.png"), "copies")
    line, band = drawn[0].axes[0].lines[0], drawn[0].axes[0].collections[0]
    shares = [{at: one / at for at, one in zip(*pair, strict=True) if at} for pair in zip(places, pushes, strict=True)]
    grid = [at for at in GROWTH if 0 < at <= 30]
    there = {at: [own[max(one for one in own if one <= at)] for own in shares if min(own) <= at] for at in grid}
    assert np.asarray(line.get_xydata()).tolist() == [[at, median(values)] for at, values in there.items()]
    edges = np.asarray(band.get_paths()[0].vertices)
    assert {at: ((one := edges[edges[:, 0] == at][:, 1]).min(), one.max()) for at in grid} == {
        at: (min(values), max(values)) for at, values in there.items()
    }


def test_two_tables_of_a_line_agree(seeds: Seeds) -> None:
    runs = seeds(*({"validation_error": value} for value in (0.1, 0.2, 0.3)), {"how": "diverged"})
    found = [plot(runs, Path("x.png"), kind).tables[0].rows[0] for kind in ("curves", "matrix")]
    for row in found:
        assert [row[name] for name in ("runs", "diverged", "smallest", "largest")] == [4, 1, 0.1, 0.3]
        assert row["final validation_error"] == pytest.approx(median([0.1, 0.2, 0.3, math.inf]))


def test_nothing_is_lowest_where_all_diverged(small_yaml: Path) -> None:
    runs = list(fredsim.sweep(small_yaml, ["sweep={server.lr: [1.0e+29, 1.0e+30]}"]))
    options = Options(x="server.lr", by=["server.name"])
    assert plot(runs, Path("x.png"), "ends", options).answer == ""
    edit(runs[0], validation_error=0.5, validation_loss=1.0, train_loss=1.0)
    assert plot(runs, Path("x.png"), "ends", options).answer == "Lowest at α = 10²⁹: 0.5"


def test_numbers_of_clients_with_which_runs_diverge(small_yaml: Path) -> None:
    runs = list(fredsim.sweep(small_yaml, ["sweep={clients.count: [2, 4]}"]))
    options = Options(by=["clients.count"], panel=[])
    edit(runs[0], validation_error=0.5)
    edit(runs[1], how="diverged")
    assert plot(runs, Path("x.png"), options=options).answer == "0.5 at λ = 2, diverged at λ = 4"
    edit(runs[0], how="diverged")
    assert plot(runs, Path("x.png"), options=options).answer == ""
    edit(runs[0], validation_error=0.5)
    edit(runs[1], validation_error=math.nan)
    assert plot(runs, Path("x.png"), options=options).answer == "0.5 at λ = 2, none at λ = 4"


def test_who_has_no_such_value_did_not_diverge(small_yaml: Path, drawn: list[Figure]) -> None:
    """As a loss of the user's own has no error."""
    servers = "[{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.1}]"
    runs = list(fredsim.sweep(small_yaml, [f"sweep={{server: {servers}, seed: [0, 1]}}"]))
    without = [run for run in runs if run.config["server"]["name"] == "sasgd"]
    for run in without:
        edit(run, validation_error=math.nan)
    for count, cell, next_one in (
        (0, "none", "of which half or more have none"),
        (1, "diverged", "of which half or more diverged"),
    ):
        panels = group(runs, None, None)
        assert [row.get("diverged", 0) for row in winner_table(panels)[0].rows] == [0, count]
        assert f"Next is SASGD, {next_one}." in verdict(panels)
        plot(runs, Path("x.png"), "matrix")
        assert cell in [text.get_text() for text in drawn[-1].axes[0].texts]
        edit(without[0], how="diverged")


def test_what_is_beyond_the_end_of_the_axis_is_not_shown(seeds: Seeds, drawn: list[Figure]) -> None:
    """Neither crosses nor values nor circles, which therefore change neither the scale nor the caption."""
    points = "published={source: Somebody, series: [{where: {seed: 0}, points: [[40, 0.5]]}]}"
    runs = seeds(
        {"how": "diverged", "validation_error": [0.9, 0.8, 0.7, 1e3, 1e4, 1e5]},
        {"validation_error": [0.9, 0.7, 0.6, 0.01, 0.01, 0.01]},
        words=[points],
    )
    whole, short = (plot(runs, Path("x.png"), options=Options(by=["seed"], end=end)).caption for end in (None, 20))
    for mark in ("×: a run diverged.", "Circles: published (Somebody)."):
        assert (mark in whole, mark in short) == (True, False)
    axes, cut = (figure.axes[0] for figure in drawn)
    assert [[line.get_marker() for line in one.lines].count("x") for one in (axes, cut)] == [1, 0]
    assert (axes.get_yscale(), cut.get_yscale()) == ("log", "linear")
    assert cut.get_ylim()[1] < 1 < 1e5 < axes.get_ylim()[1]


def test_captions_of_lines_that_are_compared_at_the_same_x(seeds: Seeds, drawn: list[Figure]) -> None:
    """They end where a run ends that did not diverge, and say so where one did."""
    runs = seeds(*[{}] * 3, words=["dispatcher={name: clock, compute: {noise: {name: exponential}}}"])
    options, says = Options(x="seconds"), "a line of several ends where the first of them"
    assert f"{says} does." in plot(runs, Path("x.png"), options=options).caption
    edit(runs[0], how="diverged", validation_error=[0.5, 0.5, 0.5])
    assert f"{says} ends that did not diverge." in plot(runs, Path("x.png"), options=options).caption
    (line,) = (line for line in drawn[1].axes[0].lines if line.get_marker() != "x")
    (axes,) = drawn[1].axes
    unit = 1e-3 if "(ms)" in axes.get_xlabel() else 1.0
    ends = [run.metrics["time"].iloc[-1] / unit for run in runs]
    assert float(np.asarray(line.get_xdata())[-1]) == min(ends[1:])


def test_captions_of_a_report(seeds: Seeds) -> None:
    """They say how each choice of y counts what diverged, and where the crosses stand."""
    runs = three(seeds, "validation_error")
    edit(runs[1], how="nan", validation_loss=[3.0, 2.0, 5.0, 1.0, 1.0, math.nan], right=[0.5, 0.2, 0.1, 0.4, 0.4, 0.4])
    panels = group(runs, None, None)
    caption = next(sections(panels)).caption
    assert "Medians count a run that diverged as infinite, or as −∞ where more is better." in caption
    assert "not finite (such a value is at the run's worst finite one)." in caption
    crosses = [one for one in figures.curves(panels)[0]["data"] if one["meta"]["is"] == "mark"]
    assert [float(one["y"]["validation_loss"].iloc[0]) for one in crosses][1] == 5.0
    runs[1].metrics.loc[5, "right"] = math.nan
    crosses = [one for one in figures.curves(panels)[0]["data"] if one["meta"]["is"] == "mark"]
    assert [float(one["y"]["right"].iloc[0]) for one in crosses][1] == 0.1


@pytest.mark.parametrize("test", ["true", "false"])
def test_the_table_of_a_report(test: str, seeds: Seeds) -> None:
    """A run that diverged counts as the worst in all that it has, also in a test error that is computed at its end."""
    runs = seeds(*({"validation_error": one} for one in (0.1, 0.2, 0.3)), words=[f"evaluation.test={test}"])
    edit(runs[1], how="diverged")
    edit(runs[2], how="nan")
    edit(runs[0], off=math.nan)
    runs[0].summary["status"] = "interrupted"
    table = run_table(runs, [("other", "failed")], [], several=False)
    names = [column["name"] for column in table["columns"]]
    lost = [{names[at] for at in places} for places in table["worst"]]
    every = {"validation error", "validation loss", "test error", "off", "right"}
    every |= {"test off", "test right"} if test == "true" else set()
    assert lost == [{"off"}, every, every, set()]
    assert "gap" not in names  # which no run has
    assert (table["diverged"], table["interrupted"]) == ([1, 2], [0])


def test_the_test_error_beside_the_winner(seeds: Seeds) -> None:
    runs = seeds(*({"validation_error": one, "test_error": one + 0.01} for one in (0.1, 0.2, 0.3)))

    def row() -> Mapping[str, Any]:
        panels: list[Panel] = group(runs, None, None)
        return winner_table(panels)[0].rows[0]

    assert row()["test error"] == pytest.approx(0.21)
    edit(runs[0], how="diverged")
    assert row()["test error"] == pytest.approx(median([math.inf, 0.21, 0.31]))
    edit(runs[1], how="diverged")
    assert (row()["final validation_error"], row()["test error"]) == (None, None)
