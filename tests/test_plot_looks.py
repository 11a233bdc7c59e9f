"""What a figure says at a glance: its question, who is ahead, names that hide nothing, and one style of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation

import fredsim
from fredsim.runs.folder.results import Result
from fredsim.show.colours import PALETTE, sequential
from fredsim.show.plots import Options, plot
from fredsim.show.plots.axes import logarithmic
from fredsim.show.plots.combined import column_of, combined
from fredsim.show.plots.drawing import axis_unit
from fredsim.show.plots.finals import last_rows
from fredsim.show.plots.groups import Panel, group
from fredsim.show.plots.headers import groups_of
from fredsim.show.plots.hidden_lines import coinciding, merged_names
from fredsim.show.plots.line_ends import End, apart, name_ends
from fredsim.show.plots.numbers import TickNumbers, given, median, number
from fredsim.show.plots.titles.answers import in_order, leaders, own_parts, ranked
from fredsim.show.plots.titles.fair import Field
from fredsim.show.plots.words import field_name, head, noun, owners, said, spoken, words
from fredsim.show.report import winner

NAMES = ("asgd", "sasgd", "fasgd", "dcasgd", "gap_aware", "delay_adaptive", "adam", "momentum")
ROWS = 6


@pytest.fixture
def made(small_yaml: Path) -> list[Result]:
    """Runs of eight servers; the tests set their errors."""
    servers = ", ".join(f"{{name: {name}, lr: 0.01}}" for name in NAMES)
    words = [f"sweep={{server: [{servers}]}}", "evaluation.every=10"]
    return list(fredsim.sweep(small_yaml, words))


def end_with(runs: Sequence[Result], finals: list[float], first: float = 0.9) -> None:
    for run, final in zip(runs, finals, strict=True):
        run.metrics["validation_error"] = np.geomspace(first, final, ROWS)


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_a_question_and_who_is_ahead(made: list[Result], drawn: list[Figure]) -> None:
    end_with(made[:3], [0.2, 0.05, 0.1])
    plot(made[:3], Path("x.png"))
    (figure,) = drawn
    assert figure.get_suptitle().strip() == "Which server has the lowest validation error after 50 iterations?"
    assert texts_of(figure)[-1] == "Ahead: SASGD (0.05); next: FASGD (0.1)"
    figure.draw_without_rendering()
    for text in figure.texts:
        assert text.get_window_extent().x1 <= figure.bbox.x1
    legend = figure.axes[0].get_legend()
    assert legend is not None  # in the panel, which has room
    assert [text.get_text() for text in legend.get_texts()] == ["SASGD", "FASGD", "ASGD"]
    assert legend.get_title().get_text() == "server (best first)"
    plot(made[:3], Path("x.png"), options=Options(style="column", caption=False))  # of a paper, which says all this
    assert not any([*texts_of(drawn[1]), *(text.get_text() for text in drawn[1].axes[0].texts)])


ROWS_OF = {
    "apart": ([0.9, 0.5, 0.4, 0.3, 0.2, 0.1], [0.9, 0.6, 0.5, 0.4, 0.3, 0.2]),
    "late": ([0.9, 0.5, 0.4, 0.3, 0.3, 0.1], [0.9, 0.4, 0.3, 0.2, 0.2, 0.3]),
    "long ago": ([0.9, 0.5, 0.4, 0.35, 0.2, 0.1], [0.8, 0.6, 0.5, 0.3, 0.3, 0.2]),
}


@pytest.mark.parametrize("name", ROWS_OF)
def test_lines_of_one_run_that_cross_in_their_last_rows(name: str, made: list[Result]) -> None:
    """Then the last row alone would decide who is ahead: in all kinds of figures, and in a report, nobody is."""
    runs, rows = made[:2], ROWS_OF[name]
    for run, values in zip(runs, rows, strict=True):
        run.metrics["validation_error"] = values
    crossing = any(b < a for a, b in zip(rows[0][-2:], rows[1][-2:], strict=True))
    assert crossing == (name == "late")
    text = "None ahead: ASGD and SASGD cross in their last 2 rows (0.1 to 0.3)"
    wanted = text if crossing else "Ahead: ASGD (0.1); next: SASGD (0.2)"
    assert "Lines: one run each." in plot(runs, Path("x.png")).caption
    for kind, options in (("curves", Options()), ("matrix", Options()), ("ends", Options(x="server.name"))):
        assert plot(runs, Path("x.png"), kind, options).answer == wanted
    told = winner.verdict(group(runs, None, None))
    assert told.startswith("None is ahead: ASGD and SASGD cross in" if crossing else "ASGD won: ")
    assert [one.name for one in winner.winners(group(runs, None, None))] == ["ASGD", "SASGD"][: 1 + crossing]
    said = {row["line"]: row.get("winner ahead") for row in winner.winner_table(group(runs, None, None))[0].rows}
    assert said["SASGD"] == ("they cross" if crossing else "1 of 1")
    field = Field(["a", "b"], {}, last={"a": [-v for v in rows[0]], "b": [-v for v in rows[1]]})
    assert field.cross("a", "b", largest=True) == any(b < a for a, b in zip(*rows, strict=True))


FINALS_OF = {
    "one ahead": ([0.1, 0.2, 0.3], "Ahead: ASGD", "server (best first)"),
    "two ahead": ([0.1, 0.1, 0.3], "Ahead: ASGD and SASGD (0.1 each)", "server (best first)"),
    "two about equal": ([0.1, 0.101, 0.3], "About equal: ASGD and SASGD", "server (best first)"),
    "all about equal": ([0.1, 0.101, 0.1005], "About equal: ASGD, FASGD and SASGD", "server"),
    "only one": ([0.1, math.nan, math.nan], "Ahead: ASGD (0.1)", "server (best first)"),
    "none": ([math.nan] * 3, "", "server"),
}


@pytest.mark.parametrize("name", FINALS_OF)
def test_a_legend_has_an_order_of_merit_if_the_answer_has_one(
    name: str, made: list[Result], drawn: list[Figure]
) -> None:
    finals, answer, heading = FINALS_OF[name]
    end_with(made[:3], finals)
    for row, run in enumerate(made[:3]):
        run.metrics.loc[0, "validation_error"] = 0.9 + row / 100  # no two coincide
    found = plot(made[:3], Path("x.png")).answer
    assert found.startswith(answer)
    assert bool(found) == bool(answer)
    assert legend_title(drawn[0]) == heading


def test_a_legend_has_none_where_lines_cross_or_are_ahead_equally_often(
    made: list[Result], drawn: list[Figure]
) -> None:
    for run, values in zip(made[:2], ROWS_OF["late"], strict=True):
        run.metrics["validation_error"] = values
    assert plot(made[:2], Path("x.png")).answer.startswith("None ahead: ")
    assert legend_title(drawn[0]) == "server"
    once = {"a": 0.1, "b": 0.2}, {"a": 0.2, "b": 0.1}
    assert leaders(once, {}) == "Ahead: a in 1 of 2 panels, b in 1"
    assert not in_order(once)
    assert in_order([*once, {"a": 0.1, "b": 0.2}])
    third = [one | {"c": 0.3} for one in once]  # which is behind in both
    assert in_order(third)
    assert in_order([{"a": 0.1, "b": math.nan}] * 2)
    assert in_order([{"a": 0.1, "b": 0.2}, {"a": math.nan, "b": math.nan}])  # one panel that has results
    assert not in_order([{"a": 0.1, "b": 0.1}] * 2)
    assert not in_order([{"a": 1.0, "b": 0.99}], largest=True)


def legend_title(figure: Figure) -> str:
    legend = figure.axes[0].get_legend() or figure.legends[0]
    return legend.get_title().get_text()


def test_lines_that_cross_in_a_panel_are_in_a_tie(made: list[Result]) -> None:
    """Of several panels that is said, and the order of lines counts it."""
    fields = [Field(["a", "b"], {}, last={"a": [0.3, 0.1], "b": [0.2, 0.2]}), Field(["a", "b"], {})]
    values = [{"a": 0.1, "b": 0.2}, {"a": 0.5, "b": 0.4}]
    assert leaders(values, {}, fields=fields) == "Ahead: b in 2 of 2 panels, a in 1 (1 tie)"
    assert ranked(values, fields=fields) == ["b", "a"]
    several = {"a": made[:2], "b": made[2:3]}
    assert [len(last_rows(runs, "validation_error")) for runs in several.values()] == [0, 2]
    made[2].__dict__["metrics"] = pd.concat([made[2].metrics] * 3)
    assert len(last_rows(made[2:3], "validation_error")) == 5


def test_where_more_is_better(made: list[Result], drawn: list[Figure]) -> None:
    """In a metric: who has the highest is ahead. If the runs do not agree, nobody is."""
    for run, last in zip(made[:3], (0.2, 0.05, 0.1), strict=True):
        run.metrics["right"] = np.geomspace(0.01, last, ROWS)
        run.summary |= {"metrics": {"right": last}, "larger_is_better": ["right"]}
    for log, scale in ((None, "linear"), (True, "log")):  # it is the values near the top that count
        drawing = plot(made[:3], Path("x.png"), options=Options(y="right", log=log))
        assert drawing.question == "Which server has the highest right after 50 iterations?"
        assert drawing.answer == "Ahead: ASGD (0.2); next: FASGD (0.1)"
        assert "↑ higher is better" in [text.get_text() for text in drawn[-1].axes[0].texts]
        assert drawn[-1].axes[0].get_yscale() == scale
    made[0].summary["larger_is_better"] = []
    drawing = plot(made[:3], Path("x.png"), options=Options(y="right"))
    assert (drawing.question, drawing.answer) == ("Which server has which right?", "")
    drawing = plot(made[:3], Path("x.png"), "ends", Options(y="right"))
    assert (drawing.question, drawing.answer) == ("How does right depend on the bytes pushed and fetched?", "")


def test_a_gap_has_a_logarithmic_axis(made: list[Result], drawn: list[Figure]) -> None:
    """Which is drawn where there is no error; unless the options say otherwise."""
    for run in made[:2]:
        run.metrics["validation_error"], run.metrics["gap"] = math.nan, np.linspace(3.0, 2.0, ROWS)
    for log in (None, False):
        plot(made[:2], Path("x.png"), options=Options(log=log))
    assert [figure.axes[0].get_yscale() for figure in drawn] == ["log", "linear"]
    assert np.asarray(drawn[0].axes[0].lines[0].get_ydata())[-1] == 2


def test_a_nan_within_a_run_is_a_gap(made: list[Result], drawn: list[Figure]) -> None:
    """A value that was recorded and cannot be drawn; a cell is empty where there was nothing to measure."""
    run = made[0]
    values = [0.5, 0.4, math.nan, 0.3, 0.2, 0.1]
    run.metrics["validation_loss"] = run.metrics["train_loss"] = values
    run.metrics["time"] = run.metrics["iteration"].astype(float)
    for row, value in zip(run.cells, values, strict=True):
        row["validation_loss"], row["train_loss"] = str(value), "" if math.isnan(value) else str(value)
    known = [value for value in values if not math.isnan(value)]
    for y, wanted in (("validation_loss", values), ("train_loss", known)):
        plot([run], Path("x.png"), options=Options(y=y))
        drawn_y = np.asarray(drawn[-1].axes[0].lines[0].get_ydata(), float)
        assert np.array_equal(drawn_y, wanted, equal_nan=True)
        found = combined([run], "seconds", column_of(y))[1][0]
        assert np.array_equal(found, wanted, equal_nan=True)


def test_a_value_without_neighbours_is_a_point(made: list[Result], drawn: list[Figure]) -> None:
    """A line between two values would not show it: one between gaps, or the only row of a run."""
    run = made[0]
    run.metrics["validation_loss"] = [0.5, 0.4, math.nan, 0.3, math.nan, 0.1]
    plot([run], Path("x.png"), options=Options(y="validation_loss"))
    line, points = drawn[0].axes[0].lines
    assert (points.get_marker(), points.get_color()) == (".", line.get_color())
    assert [*np.asarray(points.get_xdata(), float)] == [30, 50]
    assert [*np.asarray(points.get_ydata(), float)] == [0.3, 0.1]
    run.__dict__["metrics"] = run.metrics.assign(iteration=range(len(run.metrics))).iloc[1:2]
    run.__dict__["cells"] = run.cells[1:2]
    drawing = plot([run, made[1]], Path("x.png"), options=Options(y="validation_loss"))
    assert len(drawn[1].axes[0].lines) == 3
    assert drawing.question.endswith(" at the end?")
    made[1].__dict__["metrics"] = run.metrics
    question = plot([run, made[1]], Path("x.png"), options=Options(y="validation_loss")).question
    assert question == "Which server has the lowest validation loss after 1 iteration?"
    run.metrics["validation_loss"] = math.nan
    assert (
        "No line has a value that can be drawn."
        in plot([run], Path("x.png"), options=Options(y="validation_loss")).caption
    )


@pytest.mark.parametrize(
    ("last", "log", "scale"),
    [(0.2, None, "linear"), (0.17, None, "log"), (0.2, True, "log"), (0.02, False, "linear")],
)
def test_the_scale_of_errors(
    last: float, log: bool | None, scale: str, made: list[Result], drawn: list[Figure]
) -> None:
    """Logarithmic from a factor of 5 on, 0.9 over 0.18, unless the options say otherwise."""
    end_with(made[:2], [last, 0.5])
    plot(made[:2], Path("x.png"), options=Options(log=log))
    assert drawn[0].axes[0].get_yscale() == scale
    assert not any(line.get_clip_on() for line in drawn[0].axes[0].lines)
    assert drawn[0].axes[0].get_xlim() == (0, 50)


def test_many_lines_are_named_where_they_end(made: list[Result], drawn: list[Figure]) -> None:
    finals = [0.1, 0.1001, 0.1002, 0.1003, 0.3, 0.301, 0.302, 0.02]
    end_with(made, finals)
    plot(made, Path("x.png"))
    (figure,) = drawn
    (axes,) = figure.axes
    assert not figure.legends
    assert axes.get_legend() is None
    assert not axes.collections  # no bands
    figure.draw_without_rendering()
    names = [text for text in axes.texts if isinstance(text, Annotation)]
    assert len(names) == len(NAMES)
    order = sorted(names, key=lambda text: text.get_window_extent().y0)
    by_value = [
        line.get_label() for line in sorted(axes.lines, key=lambda line: float(np.asarray(line.get_ydata())[-1]))
    ]
    assert [text.get_text() for text in order] == by_value
    boxes = [super(Annotation, text).get_window_extent() for text in order]
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))
    assert all(box.x0 >= axes.get_window_extent().x1 for box in boxes)
    for run, last in zip(made, [-0.5, *finals], strict=False):
        run.metrics["validation_loss"] = np.linspace(0.9, last, ROWS)
    plot(made, Path("x.png"), options=Options(y="validation_loss", log=True))
    names = [text for text in drawn[1].axes[0].texts if isinstance(text, Annotation)]
    assert [text.xy[1] for text in names] == [0, *finals[:-1]]  # what is below 0 stands at the foot of the axis


def test_many_lines_of_which_one_cannot_be_named_where_it_ends(made: list[Result], drawn: list[Figure]) -> None:
    """Its name is too long, or it has no value: all are in the legend."""
    end_with(made, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    made[0].metrics["validation_loss"] = math.nan
    plot(made, Path("x.png"), options=Options(y="validation_loss"))
    made[0].config["server"]["name"] = "module_of_a_user:" + "LongNameOfAServer" * 6
    plot(made, Path("x.png"))
    for figure in drawn:
        assert len(figure.legends[0].get_texts()) == len(NAMES)
        assert not any(isinstance(text, Annotation) for text in figure.axes[0].texts)


def test_names_stand_where_the_axis_ends(made: list[Result], drawn: list[Figure]) -> None:
    """At the last row that is shown, in megabytes."""
    end_with(made, [0.1, 0.1001, 0.1002, 0.1003, 0.3, 0.301, 0.302, 0.02])
    for run in made:
        run.metrics["bytes_pushed"] = np.arange(ROWS) * 10_000_000
        run.metrics["bytes_fetched"] = 0
    plot(made, Path("x.png"), options=Options(x="bytes", end=2.5e7))
    names = [text for text in drawn[0].axes[0].texts if isinstance(text, Annotation)]
    assert [text.xy[0] for text in names] == [20] * len(NAMES)
    assert drawn[0].axes[0].get_xlim() == (0, 25)


def test_a_sweep_of_a_number(small_yaml: Path, drawn: list[Figure]) -> None:
    rates = [0.3, 0.1, 0.2]
    runs = list(fredsim.sweep(small_yaml, [f"sweep={{server.lr: {rates}}}", "evaluation.every=10"]))
    end_with(runs, [0.2, 0.4, 0.3])
    plot(runs, Path("x.png"))
    (axes,) = drawn[0].axes
    legend = axes.get_legend() or drawn[0].legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["0.1", "0.2", "0.3"]
    assert legend.get_title().get_text().endswith("α")
    colours = {line.get_label(): to_hex(line.get_color()).upper() for line in axes.lines}
    assert [colours[f"ASGD, α = {rate:g}"] for rate in sorted(rates)] == sequential(3)
    assert drawn[0].get_suptitle().startswith("Which learning rate α has")
    assert texts_of(drawn[0])[-1] == "Ahead: α = 0.3 (0.2); next: α = 0.2 (0.3)"


def test_a_number_that_names_lines_orders_them_whatever_else_differs(small_yaml: Path, drawn: list[Figure]) -> None:
    """As rates that were chosen for each number of clients."""
    cases = ", ".join(
        f"{{clients.count: {count}, server.lr: {rate}}}" for count, rate in ((8, 0.1), (32, 0.4), (4, 0.2))
    )
    runs = list(fredsim.sweep(small_yaml, [f"cases=[{cases}]", "evaluation.every=10"]))
    end_with(runs, [0.2, 0.4, 0.3])
    plot(runs, Path("x.png"), options=Options(by=["clients.count"], panel=[]))
    (axes,) = drawn[0].axes
    legend = axes.get_legend() or drawn[0].legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["4", "8", "32"]
    assert legend.get_title().get_text() == "number of clients λ"
    colours = {str(line.get_label()): to_hex(line.get_color()).upper() for line in axes.lines}
    assert [colours[f"λ = {count}"] for count in (4, 8, 32)] == sequential(3)


@pytest.mark.parametrize(("highest", "top"), [(1e30, 9.0), (60.0, 60.0)])
def test_bands_that_would_flatten_the_lines_are_cut(
    highest: float, top: float, small_yaml: Path, drawn: list[Figure]
) -> None:
    """At ten times the largest value of a line, 0.9, if they go beyond a hundred times of it."""
    runs = list(fredsim.sweep(small_yaml, ["sweep={seed: [1, 2, 3]}", "evaluation.every=10"]))
    end_with(runs, [0.1, 0.2, highest])
    drawing = plot(runs, Path("x.png"))
    (axes,) = drawn[0].axes
    (band,) = axes.collections
    assert np.max(np.asarray(band.get_paths()[0].vertices)[:, 1]) == pytest.approx(top)
    assert axes.get_ylim()[1] < 2 * top
    assert ("Bands are cut at 9; the largest value is 10³⁰." in drawing.caption) == (highest > 90)


def test_rounding_of_limits_leaves_a_logarithmic_axis_its_decades() -> None:
    """The limits that matplotlib keeps of a whisker that ends at 0 may be one of 1e-17."""
    axes = Figure().add_subplot()
    axes.errorbar([1, 2, 3], [0.2, 0.03, 0.4], [[0.2, 0.02, 0.1], [0.1, 0.1, 0.1]])
    axes.axvline(2.0)  # of which the y are shares of the panel
    axes.update_datalim([(1, 5.6e-17), (2, -2.2e-16)])
    assert logarithmic([axes]) == "Below 0.01 the axis is linear, to 0."
    assert [float(tick) for tick in axes.get_yticks()][:2] == [0, pytest.approx(0.01)]


def test_values_below_zero_stand_at_the_foot_of_a_logarithmic_axis() -> None:
    axes = Figure().add_subplot()
    (line,) = axes.plot([1, 2, 3], [5.0, 0.01, -3.0])
    axes.fill_between([1, 2, 3], [4.0, -1.0, -4.0], [6.0, 0.02, -2.0])
    assert logarithmic([axes]) == "Below 0.01 the axis is linear, to 0, where values below 0 stand, too."
    assert np.asarray(line.get_ydata()).tolist() == [5.0, 0.01, 0.0]
    (path,) = axes.collections[0].get_paths()
    assert np.asarray(path.vertices)[:, 1].min() == 0
    assert {*np.asarray(path.vertices)[:, 0]} == {1, 2, 3}  # where they were
    low, high = axes.get_ylim()
    assert -0.01 < low < 0
    assert 6 < high < 10
    assert axes.get_yticklabels()[0].get_text() == "≤ 0"
    axes = Figure().add_subplot()
    axes.plot([1, 2], [-1.0, -2.0])
    assert logarithmic([axes]) == "No value is above 0 that a logarithmic axis could show."
    assert (axes.get_yscale(), axes.get_ylim()[0] < -2 < -1 < axes.get_ylim()[1]) == ("linear", True)


def test_lines_that_coincide_are_drawn_once(made: list[Result], drawn: list[Figure]) -> None:
    end_with(made, [0.1, 0.1, 0.1, 0.2, 0.1, 0.3, 0.2, 0.4])
    drawing = plot(made, Path("x.png"))
    (axes,) = drawn[0].axes
    assert len(axes.lines) == 4
    legend = axes.get_legend() or drawn[0].legends[0]
    shown = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
    assert shown[0] == "4 lines coincide: ASGD; SASGD; …"
    assert len(drawing.tables[0].rows) == 8
    assert coinciding([{"a": 1, "b": 2, "c": 1}]) == {"a": ["a", "c"], "b": ["b"]}
    end_with(made, [0.1, 0.1001, *[0.3] * 6])
    for run in made:
        run.__dict__["metrics"] = run.metrics.iloc[[0, -1]]
    plot(made[:2], Path("x.png"))
    assert [line.get_linestyle() for line in drawn[1].axes[0].lines] == ["-", "--"]  # almost, and of two points each
    labels = [str(n) for n in range(12)]
    assert merged_names({"0": labels}, dict(zip(labels, labels, strict=True)))["0"].startswith("12 lines coincide")


@pytest.mark.parametrize("kind", ["curves", "ends"])
def test_lines_without_a_value_do_not_coincide(kind: str, made: list[Result], drawn: list[Figure]) -> None:
    """Nothing of them is drawn: each has a name of its own in the legend."""
    end_with(made[:2], [0.1, 0.1])
    for run in made[2:4]:
        run.metrics["validation_error"] = run.metrics["validation_loss"] = math.nan
        run.cells[-1] |= {"validation_error": "nan", "validation_loss": "nan"}  # recorded so, not left out
    plot(made[:4], Path("x.png"), kind)
    plot(made[2:4], Path("x.png"), kind)
    same = "ASGD and SASGD (2 lines coincide)"
    for figure, wanted in zip(drawn, ({same, "FASGD", "DCASGD"}, {"FASGD", "DCASGD"}), strict=True):
        legend = figure.axes[0].get_legend() or figure.legends[0]
        assert {text.get_text().replace("\n", " ") for text in legend.get_texts()} == wanted
    assert coinciding([{"a": None, "b": None, "c": 1, "d": 1}, {"a": None, "b": None}]) == {
        "a": ["a"], "b": ["b"], "c": ["c", "d"],
    }  # fmt: skip


def test_no_line_is_yellow() -> None:
    for colour in PALETTE:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        assert 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) >= 3


def test_a_matrix(small_yaml: Path, drawn: list[Figure]) -> None:
    """Heads in two levels, the best of a column in bold, never hatched, and at most 1,400 pixels wide."""
    words = [
        "dispatcher.name=clock", "evaluation.every=10", "iterations=20",
        "sweep={clients.batch_size: [2, 3], dispatcher.compute.seconds: [1.0, {name: power}, 2.0, 3.0, 4.0, 5.0], "
        "server: [{name: asgd, lr: 0.01}, {name: sasgd, lr: 0.01}]}",
    ]  # fmt: skip
    runs = list(fredsim.sweep(small_yaml, words))
    for run in runs:
        late = run.config["server"]["name"] == "sasgd"
        never = late and run.config["clients"]["batch_size"] == 2
        run.metrics["validation_error"] = [0.9, 0.9 if late else 0.3, 0.9 if never else 0.3]
    keys = ["clients.batch_size", "dispatcher.compute.seconds"]
    plot(runs, Path("x.png"), "matrix", Options(reach=[0.4], by=["server.name"], panel=keys))
    (figure,) = drawn
    axes = figure.axes[0]
    assert figure.get_figwidth() * figure.dpi <= 1400
    cells = [text for text in axes.texts if not isinstance(text, Annotation)]
    assert len(cells) == 24
    for text in cells:
        first = round(text.get_position()[1]) == 0
        assert (text.get_fontweight() == "bold") == first
        assert (text.get_text() == "never") == (not first and round(text.get_position()[0]) < 6)
    hatched = [patch for patch in axes.patches if patch.get_hatch()]
    assert len(hatched) == 6
    assert [text.get_text() for text in axes.texts if isinstance(text, Annotation)] == [
        "minibatches of µ = 2", "minibatches of µ = 3",
    ]  # fmt: skip
    rules = [np.asarray(line.get_xdata(), float) for line in axes.lines if not line.get_clip_on()]  # below heads
    assert [bool(-0.5 + 6 * at < low < high < 5.5 + 6 * at) for at, (low, high) in enumerate(rules)] == [True, True]
    assert [label.get_text().split() for label in axes.get_xticklabels()][:2] == [
        ["compute", "time", "1", "s"],
        ["power-law", "compute", "time"],
    ]
    assert "simulated seconds" in axes.get_xlabel()
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 <= right.x0 + 1 for left, right in pairwise(boxes))


def test_heads_of_groups_of_one_stay_whole() -> None:
    panels = [Panel(f"{head}, {name}", [], (head, name)) for head, name in (("a", "x"), ("a", "y"), ("b", "x"))]
    assert groups_of(panels) == [("", ["a, x", "a, y", "b, x"])]
    panels.append(Panel("b, y", [], ("b", "y")))
    assert groups_of(panels) == [("a", ["x", "y"]), ("b", ["x", "y"])]


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_names_are_moved_apart_and_not_out(count: int) -> None:
    wanted = np.random.default_rng(count).uniform(0, 1, count).tolist()
    wanted[: count // 2] = [0.5] * (count // 2)
    places = apart(wanted, 0.06, 0.0, 1.0)
    assert min(places) >= -1e-9
    assert max(places) <= 1 + 1e-9
    assert all(high - low >= 0.06 - 1e-9 for low, high in pairwise(sorted(places)))
    assert np.argsort(places, kind="stable").tolist() == np.argsort(wanted, kind="stable").tolist()
    assert apart([0.2, 0.8], 0.06, 0.0, 1.0) == [0.2, 0.8]
    assert apart([0.0, 0.0, 1.0, 1.0], 0.25, 0.0, 1.0) == [0.0, 0.25, 0.75, 1.0]


def test_a_panel_becomes_high_enough_for_the_names_of_its_lines() -> None:
    figure = Figure(figsize=(5, 1.5), layout="constrained")
    axes = figure.subplots()
    name_ends(axes, [End(1.0, 0.5, f"line {number}", "black") for number in range(20)])
    figure.draw_without_rendering()
    boxes = [super(Annotation, text).get_window_extent() for text in axes.texts if isinstance(text, Annotation)]
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    panel, middles = axes.get_window_extent(), [(box.y0 + box.y1) / 2 for box in boxes]
    assert panel.y0 - 1 <= middles[0] < middles[19] <= panel.y1 + 1


def test_numbers() -> None:
    assert [number(value) for value in (0.0, 0.02917, 12500, 1e6, 1.5e6, 1e-5, 2.5e-4, -3.0, 123456.7)] == [
        "0", "0.02917", "12\u2009500", "10⁶", "1.5·10⁶", "10⁻⁵", "2.5·10⁻⁴", "−3", "123\u2009457",
    ]  # fmt: skip
    assert [given(value) for value in (0.1 * 3, 4.0, 0.123456789, 1e-5, 32, "a")] == [
        "0.3", "4", "0.123456789", "10⁻⁵", "32", "a",
    ]  # fmt: skip
    assert [number(value) for value in (math.nan, math.inf, -math.inf)] == ["–", "∞", "−∞"]
    assert [given(value) for value in (-1.5e20, 0.0005, -1e-5)] == ["−1.5·10²⁰", "5·10⁻⁴", "−10⁻⁵"]
    assert given(0.1) != given(0.1 + 1e-12)
    assert [axis_unit("bytes", most) for most in (999, 2000)] == [(1, "bytes"), (1000, "kB")]
    assert [axis_unit("seconds", most) for most in (2.0, 2e-3, 2e-6, 2e-9)] == [
        (1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"),
    ]  # fmt: skip
    assert TickNumbers().format_ticks([0, 0.0005, 0.001]) == ["0", "0.0005", "0.001"]
    assert TickNumbers().format_ticks([0, 5e5, 1e6]) == ["0", "5·10⁵", "10⁶"]


def test_the_median_of_values_whose_sum_is_infinite() -> None:
    assert median([1.5e308, 1.7e308]) == pytest.approx(1.6e308)
    assert median([1.0, 1.5e308, 1.7e308, math.inf]) == pytest.approx(1.6e308)  # also beside one that is infinite
    assert median([1.0, math.inf]) == math.inf


def test_words_instead_of_values() -> None:
    assert [words("server.restart", value) for value in (True, False, None)] == ["restart", "no restart", "no restart"]
    assert words("clients.partition.shards", True) == "own samples"
    assert [words("average.name", name) for name in (None, "none", "window")] == ["no average"] * 2 + ["window average"]
    assert (words("server.adaptive", False), words("server.stop", False)) == ("not adaptive", "no stop")
    assert words("dispatcher.fetch.bandwidth_aware.c", 0.5) == "fetch c 0.5"
    assert noun({"server.name", "server.lr"}) == "server"
    assert noun({"server.lr"}) == "learning rate α"
    assert noun({"dispatcher.push", "dispatcher.push.bandwidth_aware.c"}) == "push gate"
    assert noun({"model.hidden", "server.name"}) == "server and model"
    assert noun({"server.name", "server.lr", "clients.count"}, {"server.lr"}) == (
        "server, learning rate α and number of clients λ"
    )
    assert noun({"clients.prox"}) == "weight of the proximal term"
    assert noun({"compress.name", "average.name", "model.hidden", "seed"}) == "compressor, average, model and more"
    assert noun({"clients.optimizer.keep_state"}, switch=True) == "choice of keep state of the clients' optimizer"
    assert noun({"problem.nested"}, switch=True).startswith("choice of nested")
    assert (noun({"dispatcher.fetch.bandwidth_aware.c"}), noun({"data.length"})) == ("fetch gate", "data set")
    assert noun(set()) == "setting"
    gates = {"dispatcher.push", "dispatcher.fetch"}
    assert (noun(gates), noun(gates | {"server.name"})) == ("pair of gates", "server and pair of gates")
    names = {"server.name": {"Adam", "ASGD"}, "server.inner.name": {"Adam"}}
    assert owners(names) == {}  # every label has the server's name
    lr, inner = "server.lr.base", "server.inner.lr.base"
    assert owners({lr: {"base 0.1"}, inner: {"base 0.2"}}) == {lr: "server lr", inner: "inner lr"}
    seconds = "dispatcher.compute.seconds"  # of which another run has a distribution
    assert owners({seconds: {"seconds 0.5"}, f"{seconds}.name": {"seconds two_class"}}) == {}
    assert field_name("dispatcher.push.bandwidth_aware.c") == "c of the push gate"
    assert spoken("ASGD, push bandwidth_aware, my.top_k, a_top_k") == "ASGD, push bandwidth-aware, my.top_k, a_top_k"
    assert head("λ = 1, seconds 0.5") == "λ = 1 client, compute time 0.5 s"
    assert head("iid, seconds two_class, noise pareto") == "i.i.d., two-class compute time, Pareto noise"
    assert head("local steps 20") == "20 local steps"
    assert said("delay one_step") == "delay of one step"
    assert said("delay pipemare, correction 0.135") == "PipeMare, correction 0.135"
    assert noun({"stages.delay", "stages.correction", "stages.reschedule"}) == "delay of the pipeline"
    assert said("Sync, aggregate 16") == "Sync, 16 gradients a round"
    assert said("DelayedNesterov, every 8") == "DelayedNesterov, every 8 pushes"
    assert said("mine aggregate 16, no noise") == "mine aggregate 16, no noise"
    assert head("λ = 32, µ = 1, round_robin") == "λ = 32 clients, minibatches of µ = 1, round-robin"


def test_who_leads() -> None:
    panels = [{"a": 1.0, "b": 2.0, "c": float("nan")}, {"a": 3.0, "b": 2.0, "c": 5.0}, {"a": 1.0, "b": 2.0, "c": 3.0}]
    assert ranked(panels) == ["a", "b", "c"]
    without = [{"c": math.inf, "a": 0.1, "b": 0.2, "d": 0.3}, {"c": 0.1, "d": 0.2, "a": 0.4, "b": 0.3}]
    assert ranked(without) == ["a", "b", "d", "c"]  # their mean ranks are 1.5, 1.5, 1.5 and, with a last one, 2
    assert leaders(panels, {}) == "Ahead: a in 2 of 3 panels, b in 1"
    assert leaders([{one: 1.0, "z": 2.0} for one in "aabc"], {}) == "Ahead: a in 2 of 4 panels, b in 1, c in 1"
    assert leaders([{one: 1.0, "z": 2.0} for one in "aabcd"], {}) == "Ahead: a in 2 of 5 panels, others in 3"
    assert leaders([{one: 1.0, "z": 2.0} for one in "aabbcde"], {}) == "Ahead: a in 2 of 7 panels, b in 2, others in 3"
    assert leaders([{one: 1.0, "z": 2.0} for one in "aabbccd"], {}) == "Ahead: none in more than 2 of 7 panels"
    several = [*({one: 1.0, "z": 2.0} for one in "abc"), {"a": math.inf, "z": math.inf}]
    assert leaders(several[:3], {}) == "Ahead: a different one in each of 3 panels"
    assert leaders(several, {}, panels="columns") == "Ahead: a different one in each of 3 of 4 columns"
    tied = [{"a": 1.0, "b": 1.0, "z": 2.0}, {"a": 1.0, "z": 2.0}]
    assert leaders(tied, {}) == "Ahead: a in 2 of 2 panels, b in 1 (1 tie)"
    assert leaders(tied, {"a": "Sync, m = 8", "b": "Sync, m = 9", "z": "ASGD"}) == (
        "Ahead: Sync (m = 8) in 2 of 2 panels, Sync (m = 9) in 1 (1 tie)"
    )
    assert leaders([*tied, {"b": 1.0, "a": 1.0}], {}) == "Ahead: a in 3 of 3 panels, b in 2 (2 ties)"
    assert leaders([{"a": 1.0, "b": 1.0}], {}) == "Equal: a and b (1 each)"
    assert leaders([{"a": 1.0, "b": 1.0, "c": 2.0}], {}) == "Ahead: a and b (1 each)"
    assert leaders([{"a": float("inf"), "b": float("nan")}], {}) == ""
    assert leaders([{"a": 1.0, "b": 1.01, "c": 2.0}], {}) == "About equal: a and b (1 to 1.01)"
    assert leaders([{"a": 1.0, "b": 1.0, "c": 1.01}], {}) == "About equal: a, b and c (1 to 1.01)"
    assert leaders([{"a": 1.0, "b": 1.03}], {}) == "Ahead: a (1); next: b (1.03)"
    assert leaders([{"a": 1.0, "b": 0.99}], {}, largest=True) == "About equal: a and b (1 to 0.99)"
    assert leaders([{"a": 2.0, "b": 1.0}], {"a": "ASGD, α = 1, top_k", "b": "ASGD, α = 2, top_k"}) == (
        "Ahead: α = 2 (1); next: α = 1 (2)"
    )
    long = {name: f"ASGD, a key of many letters {'abc'.index(name) // 2}, another of as many, {name}" for name in "abc"}
    assert leaders([{"a": 1.0, "b": 2.0, "c": 3.0}], long).startswith("Ahead: ")
    assert leaders([{"a": 1.0, "b": 2.0, "c": 3.0}], long | {"c": "FASGD"}) == "Ahead: ASGD, a (1); next: ASGD, b (2)"
    assert leaders([dict.fromkeys("abcd", 1.0) | {"e": 2.0}], {name: name * 30 for name in "abcde"}) == (
        f"Ahead: {'a' * 30} and 3 of the 4 others (1 each)"
    )
    assert leaders([dict.fromkeys("abcd", 1.0) | {"e": 2.0}], {name: name * 25 for name in "abcde"}) == (
        f"Ahead: {'a' * 25}, {'b' * 25} and 2 of the 3 others (1 each)"
    )
    names = {"a": "Sync, m = 8", "b": "ASGD", "c": "FASGD, α = 1"}
    assert leaders([dict.fromkeys("abc", 1.0)], names) == "Equal: Sync (m = 8), ASGD and FASGD (α = 1) (1 each)"
    for some in ("abc", "abcd"):
        every = leaders([dict.fromkeys(some, 1.0)], {one: one * 39 for one in some})
        assert every == f"Equal: all {len(some)} (1 each)"
    ends = {"a": "t0 0, mode polyak", "b": "t0 6250, mode polyak", "c": "t0 6250, mode torch", "d": "no average"}
    long = {one: f"AveragedSGD, α = 0.1, {end}, no schedule" for one, end in ends.items()} | {"e": "ASGD, no schedule"}
    assert own_parts(long) == {
        "a": "AveragedSGD, α = 0.1, t0 0, mode polyak", "b": "AveragedSGD, t0 6250, mode polyak",
        "c": "AveragedSGD, mode torch", "d": "AveragedSGD, α = 0.1, no average", "e": "ASGD",
    }  # fmt: skip
