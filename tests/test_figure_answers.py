"""Titles, legends, captions and tables say what the panels show, in the same words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend

import fredsim
from fredsim.runs.folder.results import Result
from fredsim.show.plots import Options, labels, plot
from fredsim.show.plots.groups import group
from fredsim.show.plots.legends import _heading
from fredsim.show.plots.titles.subjects import common_server
from fredsim.show.plots.words import words
from fredsim.show.report.figures import curves
from fredsim.show.tables import write_files

GOAL = 0.5
SERVERS = "server: [{name: asgd, lr: 0.2}, {name: sasgd, lr: 0.2}, {name: sync, lr: 0.001}]"


@pytest.fixture
def stopped(small_yaml: Path) -> list[Result]:
    """Two seeds of three servers that stop at a validation error; synchronous SGD never comes to it."""
    words = [f"sweep={{{SERVERS}, seed: [0, 1]}}", "iterations=300", "evaluation.every=5"]
    return list(fredsim.sweep(small_yaml, [*words, f"until={{validation_error: {GOAL}}}"]))


def when(results: Sequence[Result], column: str) -> dict[str, float]:
    """By server the median of a column's first value at the goal, read from metrics.csv."""
    found: dict[str, list[float]] = {}
    for run in results:
        rows = run.metrics[run.metrics["validation_error"] <= GOAL]
        rows = rows.assign(bytes=rows["bytes_pushed"] + rows["bytes_fetched"])
        found.setdefault(run.config["server"]["name"], []).append(rows[column].iloc[0] if len(rows) else math.inf)
    return {name: median(values) for name, values in found.items()}


def test_runs_that_stop_at_a_value_are_compared_by_when_they_are_there(
    stopped: list[Result], drawn: list[Figure]
) -> None:
    """Not by how far they overshoot."""
    found = when(stopped, "iteration")
    assert math.isinf(found.pop("sync"))
    (first, soon), (second, later) = sorted(found.items(), key=lambda one: one[1])
    assert later > 1.1 * soon
    drawing = plot(stopped, Path("x.png"))
    assert drawing.question == "Which server is first at a validation error of 0.5?"
    best, following = f"{first.upper()} ({soon:g} iterations)", f"{second.upper()} ({later:g} iterations)"
    assert drawing.answer == f"Ahead: {best}; next: {following}"
    assert [*drawing.order] == [first.upper(), second.upper(), "Sync"]
    rows = {row["line"]: row for row in drawing.tables[0].rows}
    assert rows["Sync"]["iterations to 0.5"] is None
    assert rows[first.upper()]["iterations to 0.5"] == int(soon)
    assert "← sooner is better" in [text.get_text() for text in drawn[0].axes[0].texts]
    level = [line for line in drawn[0].axes[0].lines if {*np.asarray(line.get_ydata(), float)} == {GOAL}]
    assert [line.get_linestyle() for line in level] == [":"]
    assert "Dotted: the goal, 0.5." in drawing.caption
    size = when(stopped, "bytes")
    assert plot(stopped, Path("x.png"), options=Options(x="bytes")).answer.startswith(
        f"Ahead: {first.upper()} ({min(size.values()) / 1e6:.4g} MB); next: "
    )
    alone = plot(stopped[:2], Path("x.png"))
    assert alone.question == "When does the validation error of ASGD come to 0.5?"
    assert alone.answer == f"After {when(stopped[:2], 'iteration')['asgd']:g} iterations"
    assert plot(stopped, Path("x.png"), options=Options(y="train_loss")).question.startswith("Which server has the low")
    assert not any({*np.asarray(line.get_ydata(), float)} == {GOAL} for line in drawn[-1].axes[0].lines)
    (figure,) = curves(group(stopped, None, None))
    levels = [trace for trace in figure["data"] if trace["meta"].get("label") == "goal 0.5"]
    assert [trace["y"] for trace in levels] == [{"validation_error": [GOAL, GOAL]}]
    assert json.loads(json.dumps(levels))[0]["x"]["iterations"] == [
        0,
        max(run.summary["iterations"] for run in stopped),
    ]


def test_a_matrix_and_ends_of_runs_that_stop_at_a_value(stopped: list[Result]) -> None:
    found = when(stopped, "iteration")
    rows = plot(stopped, Path("x.png"), "matrix").tables[0].rows
    assert [row["iterations to 0.5"] for row in rows] == [found["asgd"], found["sasgd"], None]
    ends = plot(stopped, Path("x.png"), "ends", Options(x="server.name"))
    assert ends.question == "How does validation error depend on server?"
    assert ends.answer == "All runs stop at 0.5, so their ends do not tell who is ahead"
    against = plot(stopped, Path("x.png"), "ends")
    assert against.question == "How does validation error depend on the bytes pushed and fetched?"
    assert against.answer == ends.answer


def test_a_probe_is_judged_by_what_is_drawn(small_yaml: Path, drawn: list[Figure]) -> None:
    """Not by its share of the gradients' norms, which may have another order."""
    words = ["sweep={server: [{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.1}]}", "probe.every=5"]
    runs = list(fredsim.sweep(small_yaml, words))
    for run, level, norm in zip(runs, (0.3, 0.5), (0.4, 5.0), strict=True):
        run.probe["b_staleness"], run.probe["gradient_norm"] = level, norm
    drawing = plot(runs, Path("x.png"), "probe")
    assert drawing.answer == "Closest in the median: ASGD (0.3); next: SASGD (0.5)"
    assert drawing.tables[0].rows[0]["rank by staleness"] is None  # what is always the same has no ranks
    levels = {line.get_label(): set(np.asarray(line.get_ydata())) for line in drawn[0].axes[0].lines}
    assert levels == {"ASGD": {0.3}, "SASGD": {0.5}}
    assert drawn[0].axes[0].get_ylabel() == "B-staleness, ‖stale − fresh gradient‖"
    assert plot(runs[:1], Path("x.png"), "probe").answer == "By 0.3, 75 % of the gradient's norm, in the median"


def test_lines_at_the_same_share_are_told_apart(small_yaml: Path, drawn: list[Figure]) -> None:
    """In a panel alone: pushes all pass, fetches do not. Lines that are too many for dashes are counted."""
    words = ["sweep={dispatcher.fetch: [always, {every: 2}, {every: 4}]}", "evaluation.every=10"]
    results = list(fredsim.sweep(small_yaml, words))
    assert "lines have the same" not in plot(results, Path("x.png"), "copies").caption
    pushes, fetches = drawn[0].axes
    assert pushes.get_ylim() == (0, 1)
    assert all(set(np.asarray(line.get_ydata())) == {1.0} for line in pushes.lines)
    styles = [line.get_linestyle() for line in pushes.lines]
    assert styles == ["-", "--", "--"]
    assert [line.get_linestyle() for line in fetches.lines] == styles
    words[0] = "sweep={dispatcher.fetch: [always, {every: 2}, {every: 3}, {every: 4}, {every: 5}]}"
    caption = plot(list(fredsim.sweep(small_yaml, words, out="more")), Path("x.png"), "copies").caption
    assert (
        "which passed the gates. Below 0.1 the axis is linear, to 0. 5 lines have the same share of pushes." in caption
    )
    assert [line.get_linestyle() for line in drawn[1].axes[1].lines] == ["-"] * 4 + ["--"]  # beside a sweep of numbers


def legend_of(figure: Figure) -> Legend:
    found = figure.legends[0] if figure.legends else figure.axes[0].get_legend()
    assert found is not None
    return found


def test_a_table_calls_lines_as_the_figure_does(small_yaml: Path, drawn: list[Figure]) -> None:
    """For readers; programs have the keys' own words."""
    servers = "[{name: sync, lr: 0.1, aggregate: 2}, {name: sync, lr: 0.1, aggregate: 4}, {name: asgd, lr: 0.1}]"
    results = list(fredsim.sweep(small_yaml, [f"sweep={{server: {servers}, clients.count: [4, 5]}}"]))
    drawing = plot(results, Path("x.png"))
    write_files(Path("x.png"), drawing.tables, drawing.caption, "fredsim plot", latex=True)
    shown = {text.get_text() for text in legend_of(drawn[0]).get_texts()}
    assert shown == {"Sync, 2 gradients a round", "Sync, 4 gradients a round", "ASGD"}
    kept = pd.read_csv("x-table.csv")
    assert {*kept["line"]} == {"Sync, aggregate 2", "Sync, aggregate 4", "ASGD"}
    assert {*kept["panel"]} == {"λ = 4, µ = 3", "λ = 5, µ = 3"}
    for name in ("x-table.md", "x-table.tex"):
        text = Path(name).read_text("utf-8").replace("\\ensuremath{\\lambda}", "λ").replace("\\ensuremath{\\mu}", "µ")
        assert "Sync, 2 gradients a round" in text
        assert "aggregate" not in text
        assert f"{drawn[0].axes[0].get_title()} " in text
    (table,) = plot(results, Path("x.png"), "ends", Options(x="server.name", by=["server.aggregate"])).tables
    found = [{(row["line"], row["server.name"]) for row in one.rows} for one in (table, table.named)]
    assert found[0] == {("ASGD", "asgd"), ("aggregate 2", "sync"), ("aggregate 4", "sync")}
    assert found[1] == {("ASGD", "ASGD"), ("2 gradients a round", "Sync"), ("4 gradients a round", "Sync")}


def test_lists_and_commas_are_named_whole(small_yaml: Path, drawn: list[Figure]) -> None:
    """A comma within a value ends no part of a name: what all have in common are whole values."""
    results = list(fredsim.sweep(small_yaml, ["sweep={model.hidden: [[6, 4], [3, 4], [8, 4]]}"]))
    for run in results:
        run.metrics["validation_error"] = 1 / run.config["model"]["hidden"][0]
    assert plot(results, Path("x.png")).answer == "Ahead: hidden [8,4] (0.125); next: hidden [6,4] (0.1667)"
    assert [text.get_text() for text in legend_of(drawn[0]).get_texts()] == ["[8,4]", "[6,4]", "[3,4]"]
    assert legend_of(drawn[0]).get_title().get_text() == "ASGD, hidden layers (best first)"
    drawing = plot(results, Path("x.png"), "matrix")
    assert drawing.answer == "Ahead: hidden [8,4] (0.125); next: hidden [6,4] (0.1667)"
    rows = drawing.tables[0].rows
    assert [row["line"] for row in rows] == ["ASGD, hidden [6,4]", "ASGD, hidden [3,4]", "ASGD, hidden [8,4]"]
    assert words("problem.text", "a,  b, c") == "text a,b,c"


def test_texts_like_numbers_are_no_seeds_of_numbers() -> None:
    """They are other values, and so other lines."""
    texts: list[Any] = ["1", 1, "2.50", 2.5, "nan", "one", "", " "]
    runs: Any = [
        SimpleNamespace(has_ended=False, config={"server": {"name": "asgd"}, "problem": {"text": text}})
        for text in texts
    ]
    (panel,) = group(runs, None, None)
    names = ["ASGD, text '1'", "ASGD, text 1", "ASGD, text '2.50'", "ASGD, text 2.5", "ASGD, text 'nan'"]
    assert [line.label for line in panel.lines] == [*names, "ASGD, text one", "ASGD, text ''", "ASGD, text ' '"]


def test_a_line_with_a_gate_is_named_by_it(small_yaml: Path) -> None:
    """Also if it alone has one, and differs in something else, too."""
    gated = "{server: {name: fasgd, lr: 0.01}, dispatcher: {push: {bandwidth_aware: {c: 0.1}}, dropped_push: skip}}"
    words = [f"cases=[{{compress: {{name: qsgd}}}}, {{compress: {{name: ternary}}}}, {gated}]"]
    first, second, other = labels(list(fredsim.sweep(small_yaml, words)))
    assert first == "ASGD, push always, dropped push reapply, qsgd"
    assert second == "ASGD, push always, dropped push reapply, ternary"
    assert other == "FASGD, push bandwidth_aware, dropped push skip"


def test_a_heat_map_says_whose_settings_its_rows_are(small_yaml: Path, drawn: list[Figure]) -> None:
    """Rows have no heading; and in what order they are."""
    inner = "server={name: sync, inner: {name: fasgd, lr: 0.01}}"
    results = list(fredsim.sweep(small_yaml, [inner, "sweep={server.aggregate: [1, 2], clients.count: [2, 3]}"]))
    for run in results:
        run.metrics["validation_error"] = 1 / run.config["server"]["aggregate"]
    by = Options(by=["server.aggregate"], panel=["clients.count"])
    question = plot(results, Path("x.png"), "matrix", by).question
    assert question.startswith("Sync with FASGD: Which number of gradients a round has the lowest validation error")
    words = ["sweep={server: [{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.1}], clients.count: [2, 3]}"]
    servers = list(fredsim.sweep(small_yaml, words, out="servers"))
    assert common_server(group(servers, None, None)) == ""
    assert plot(servers, Path("x.png"), "matrix").question.startswith("Which server has the lowest")
    below = [" ".join(figure.axes[0].get_xlabel().split()) for figure in drawn]
    assert ["rows: most wins first" in text for text in below] == [False, True]  # numbers stay in their order


def test_the_order_of_a_legend_is_said(small_yaml: Path, drawn: list[Figure]) -> None:
    words = ["sweep={server: [{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.1}], clients.count: [2, 3]}"]
    results = list(fredsim.sweep(small_yaml, words))
    plot(results, Path("x.png"))
    plot([run for run in results if run.config["clients"]["count"] == 2], Path("x.png"))
    found = [" ".join(legend_of(figure).get_title().get_text().split()) for figure in drawn]
    assert found == ["server (most wins first)", "server (best first)"]
    gates = "{server: {name: asgd, lr: 0.1}, dispatcher.fetch: {every: 4}}, {server: {name: sasgd, lr: 0.1}}"
    plot(list(fredsim.sweep(small_yaml, [f"cases=[{gates}]"], out="gates")), Path("x.png"), "copies")
    legend = legend_of(drawn[2])
    assert legend.get_title().get_text() == "server and fetch gate\n(most bytes first)"
    assert [text.get_text() for text in legend.get_texts()] == ["SASGD, fetch always", "ASGD, fetch k 4"]
    for title in ("delay of the pipeline (best first)", "server and learning rate α (most wins first)"):
        lines = _heading(title, 32).split("\n")
        assert lines[-1] in {"(best first)", "(most wins first)"}
        assert " ".join(lines) == title
        assert all(len(line) <= 32 for line in lines)


@pytest.mark.parametrize("apart", [False, True])
def test_many_lines_without_bands(apart: bool, small_yaml: Path) -> None:
    """Where their ranges are said, and whether those of the best two overlap."""
    words = ["sweep={server.lr: [1, 2, 3, 4, 5, 6, 7, 8], seed: [0, 1, 2]}", "iterations=2"]
    results = list(fredsim.sweep(small_yaml, words))
    for place in range(8):
        for run, more in zip(results[3 * place :], (0.0, 0.005, 0.01 if apart else 0.03), strict=False):
            run.metrics["validation_error"] = 0.1 + 0.02 * place + more
    results[-1].metrics["validation_error"] = 1e30
    caption = plot(results, Path("x.png")).caption
    assert "Bands are cut" not in caption
    assert "Lines: median of 3 runs; the table has their smallest and largest." in caption
    overlap = "The best two that are compared end in ranges that overlap."
    assert (overlap in caption) is not apart
    for place, run in enumerate(results):
        run.metrics["right"] = 0.01 * (place // 3) + place % 3
    drawing = plot(results, Path("x.png"), options=Options(y="right"))  # nobody knows which is the best
    assert (drawing.answer, overlap in drawing.caption) == ("", False)
    single = results[::3]
    for run in single[:2]:
        run.metrics.loc[len(run.metrics) - 1, "validation_error"] = 0.1
    drawing = plot(single, Path("x.png"))  # of which two end equally: one run has no range
    assert drawing.answer.startswith("Ahead: α = 1 and α = 2 (0.1 each)")
    assert overlap not in drawing.caption
    for place, run in enumerate(results):
        run.config["clients"]["count"] = max(place // 3, 1)
        run.metrics["validation_error"] = 0.1 * max(place // 3, 1)
    drawing = plot(results, Path("x.png"), options=Options(by=["server.lr"], panel=[]))
    assert drawing.answer.startswith("Equal at λ = 1: α = 1 and α = 2 (0.1 each)")  # one line of the picture
    assert overlap not in drawing.caption
