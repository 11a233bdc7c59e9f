"""Who is ahead: of lines alike in λ and in staleness; where bytes count, who is near the lowest for the fewest."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import fredsim
from fredsim.runs.folder.results import Result
from fredsim.show.plots import Options, plot
from fredsim.show.plots.drawing import Drawing
from fredsim.show.plots.figure import ShownFigure, _add_title, balanced
from fredsim.show.plots.hidden_lines import tell_apart
from fredsim.show.plots.kinds import waits
from fredsim.show.plots.styles import style_of
from fredsim.show.plots.titles.answers import leaders, shortened
from fredsim.show.plots.titles.costs import Cost, cheapest
from fredsim.show.plots.titles.fair import field_of, is_fresh
from fredsim.show.tables import AllDigits, Table

ROWS = 6


class Fake:
    """What a comparison asks of a run."""

    def __init__(self, server: Mapping[str, Any], count: int, stages: Mapping[str, Any] | None = None) -> None:
        self.config = {"server": server, "clients": {"count": count}} | ({"stages": stages} if stages else {})


def lines_of(**runs: Fake) -> dict[str, list[Any]]:
    return {label: [run] for label, run in runs.items()}


ASGD = {"name": "asgd", "lr": 0.1}
SYNC = {"name": "sync", "lr": 0.1, "aggregate": None}


def test_lines_with_the_usual_number_of_clients_are_compared() -> None:
    lines = lines_of(one=Fake(ASGD, 1), a=Fake(ASGD, 32), b=Fake(ASGD, 32), c=Fake(ASGD, 8))
    field = field_of(lines, "iterations")
    assert (list(field.compared), field.of) == (["a", "b"], "λ = 32")
    assert field.references == {"one": "λ = 1", "c": "λ = 8"}
    pairs = lines_of(a1=Fake(ASGD, 1), b1=Fake(ASGD, 1), a9=Fake(ASGD, 9), b9=Fake(ASGD, 9))
    assert list(field_of(pairs, "seconds").compared) == ["a9", "b9"]
    alone = lines_of(one=Fake(ASGD, 1), two=Fake(ASGD, 2))
    assert (list(field_of(alone, None).compared), field_of(alone, None).of) == (["one", "two"], "")


def test_who_waits_is_a_reference_where_waiting_is_free() -> None:
    lines = lines_of(sync=Fake(SYNC, 4), a=Fake(ASGD, 4), b=Fake(ASGD, 4))
    for x in ("iterations", "updates", "bytes", None):
        field = field_of(lines, x)
        assert (list(field.compared), dict(field.references)) == (["a", "b"], {"sync": "no staleness"})
    assert list(field_of(lines, "seconds").compared) == ["sync", "a", "b"]
    del lines["b"]
    assert list(field_of(lines, "iterations").compared) == ["sync", "a"]
    both = lines_of(sync=Fake(SYNC, 4), backup=Fake(SYNC | {"restart": True, "aggregate": 2}, 4))
    assert list(field_of(both, "iterations").compared) == ["sync", "backup"]
    many = lines_of(**{name: Fake(SYNC, 4) for name in "fresh_lines"}, one=Fake(ASGD, 4), two=Fake(ASGD, 4))
    assert [*field_of(many, "iterations").references] == [
        *dict.fromkeys("fresh_lines")
    ]  # the first of equal ones is named


@pytest.mark.parametrize(
    ("server", "stages", "fresh"),
    [
        (SYNC, None, True),
        (SYNC | {"aggregate": 4}, None, True),
        (SYNC | {"aggregate": 3}, None, False),
        (SYNC | {"aggregate": 3, "restart": True}, None, True),
        (ASGD, None, False),
        ({"name": "ternary_sync", "lr": 0.1}, None, True),
        ({"name": "soft_sync", "lr": 0.1, "n": 2}, None, False),
        ({"name": "mymodule:Sync"}, None, False),
        ({"name": "mymodule:Sync", "aggregate": [1, 2]}, None, False),
        (ASGD, {"delay": {"forward": 0}}, False),
    ],
)
def test_what_has_no_staleness(server: Mapping[str, Any], stages: Mapping[str, Any] | None, fresh: bool) -> None:
    assert is_fresh(Fake(server, 4, stages).config) is fresh


def test_one_client_has_no_staleness() -> None:
    """With any server: synchronous SGD is no reference then."""
    lines = lines_of(sync=Fake(SYNC, 1), a=Fake(ASGD, 1), b=Fake(ASGD, 1))
    field = field_of(lines, "iterations")
    assert (list(field.compared), field.references) == (["sync", "a", "b"], {})
    several = lines_of(one=Fake(ASGD, 1), a=Fake(ASGD, 2), b=Fake(ASGD, 4))
    assert field_of(several, "iterations").references == {"one": "no staleness"}


def test_a_pipeline_without_delays_has_no_staleness() -> None:
    for delay, fresh in (
        ({"forward": 0}, True),
        ({"forward": [0, 0]}, True),
        ({"forward": [1, 0]}, False),
        ("pipedream", False),
    ):
        assert is_fresh(Fake(ASGD, 1, {"delay": delay}).config) is fresh


def test_the_reference_is_named_after_those_ahead() -> None:
    lines = lines_of(one=Fake(ASGD, 1), a=Fake(ASGD, 32), b=Fake(ASGD, 32))
    values = {"one": 0.1, "a": 0.4, "b": 0.3}
    field = field_of(lines, "iterations")
    names = {"one": "ASGD, λ = 1", "a": "SASGD, λ = 32", "b": "FASGD, λ = 32"}
    assert (
        leaders([values], names, fields=[field]) == "Ahead at λ = 32: FASGD (0.3); next: SASGD (0.4); one client: 0.1"
    )
    names = {"one": "λ = 1", "a": "λ = 32, local steps 2", "b": "λ = 32"}  # of which one says nothing else
    answer = leaders([values], names, fields=[field])
    assert answer == "Ahead at λ = 32: λ = 32 (0.3); next: local steps 2 (0.4); one client: 0.1"
    waits = lines_of(sync=Fake(SYNC, 4), a=Fake(ASGD, 4), b=Fake(ASGD, 4))
    found = leaders([{"sync": 0.1, "a": 0.4, "b": 0.3}], {}, fields=[field_of(waits, "updates")])
    assert found == "Ahead: b (0.3); next: a (0.4); not compared (no staleness): sync (0.1)"
    assert shortened(found, 50) == "Ahead: b (0.3); next: a (0.4);\nnot compared (no staleness): sync (0.1)"
    assert shortened(found, 35) == "Ahead: b (0.3); next: a (0.4)"
    assert shortened(found, 20) == "Ahead: b (0.3)"
    assert shortened("Ahead: a long name", 11) == "Ahead:\na long name"
    assert shortened("Ahead: a long name of many words", 12) == "Ahead: a\nlong name …"
    assert shortened(f"Ahead: {'x' * 30}", 12) == "Ahead: …"
    assert shortened("Fewest bytes at λ = 64: a (2 GB)", 24) == "Fewest bytes at λ = 64:\na (2 GB)"
    assert shortened("Ahead: a, α = 0.02 and b, α = 0.02", 22) == "Ahead: a, α = 0.02\nand b, α = 0.02"
    assert shortened("x" * 30, 12) == f"{'x' * 11}…"


def test_an_answer_says_what_only_the_compared_lines_have_in_common() -> None:
    """Such as their server, where another one is a reference: nobody else says whose rate is ahead."""
    lines = lines_of(a=Fake(ASGD, 4), b=Fake(ASGD, 4), sync=Fake(SYNC, 4))
    names = {"a": "ASGD, α = 0.1", "b": "ASGD, α = 0.2", "sync": "Sync, α = 0.1"}
    answer = leaders([{"a": 0.2, "b": 0.3, "sync": 0.1}], names, fields=[field_of(lines, "iterations")])
    assert (
        answer
        == "Ahead: ASGD, α = 0.1 (0.2); next: ASGD, α = 0.2 (0.3); not compared (no staleness): Sync, α = 0.1 (0.1)"
    )


@pytest.mark.parametrize("lines", [1, 2])
def test_an_answer_of_two_lines_stands_below_the_title(lines: int, tmp_path: Path) -> None:
    """Each of its lines has room of its own between the title, of one line or of two, and the panel."""
    figure = ShownFigure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    answer = f"Ahead: {' '.join(['a name'] * 14)}"
    question = " ".join(["Which is the best?"] * (1 if lines == 1 else 5))
    _add_title(figure, Options(), Drawing("", [], question=question, answer=answer), style_of(Options()))
    figure.savefig(tmp_path / "x.png")
    title, line = figure.texts
    assert len(title.get_text().split("\n")) == lines + 2
    assert line.get_text().count("\n") == 1
    first, second = (one.get_window_extent() for one in (title, line))
    assert second.y0 >= axes.get_window_extent().y1
    assert second.y1 <= first.y1 - lines * figure.dpi * style_of(Options()).title / 72


def test_the_fewest_bytes_near_the_lowest() -> None:
    amount = "{:g} B".format
    costs = {"a": [Cost(1, 0.5), Cost(5, 0.105)], "b": [Cost(9, 0.1)], "c": [Cost(2, math.inf), Cost(3, 0.12)]}
    start = "Fewest bytes within 10 % of the lowest"
    assert cheapest([costs], {}, "bytes", amount) == f"{start}: a (5 B, 0.105); lowest: b (9 B, 0.1)"
    assert cheapest([{"a": costs["a"], "c": costs["c"]}], {}, "bytes", amount) == f"{start}: a (5 B, 0.105)"
    tied = {"a": [Cost(5, 0.1)], "b": [Cost(6, 0.1)]}
    assert cheapest([tied], {}, "bytes", amount) == f"{start}: a (5 B, 0.1); next: b (6 B, 0.1)"
    assert (
        cheapest([tied, tied, costs], {}, "pushes", amount)
        == "Fewest pushes within 10 % of the lowest: a in 3 of 3 panels"
    )
    one = {"": [Cost(1, 0.5, "c = 1"), Cost(2, 0.1, "c = 2")]}
    assert cheapest([one], {}, "seconds", amount) == "Least time within 10 % of the lowest: c = 2 (2 B, 0.1)"
    one[""].append(Cost(3, 0.095, "c = 3"))
    answer = "Least time within 10 % of the lowest: c = 2 (2 B, 0.1); lowest: c = 3 (3 B, 0.095)"
    assert cheapest([one], {}, "seconds", amount) == answer
    assert cheapest([{"a": [Cost(1, math.nan)]}], {}, "bytes", amount) == ""


def test_an_answer_of_one_of_several_panels_says_so() -> None:
    names, known, none = {"a": "A", "b": "B"}, {"a": 0.1, "b": 0.2}, {"a": math.inf, "b": math.nan}
    ahead = "A (0.1); next: B (0.2)"
    assert leaders([known], names) == f"Ahead: {ahead}"
    assert leaders([known, none], names) == f"Ahead in 1 of 2 panels: {ahead}"
    assert leaders([known, {"a": 0.5}, none], names, panels="columns") == f"Ahead in 1 of 3 columns: {ahead}"
    assert leaders([known, known, none], names) == "Ahead: A in 2 of 3 panels"
    assert leaders([none, none], names) == ""
    assert leaders([known], names, start="Fewest bytes") == f"Fewest bytes: {ahead}"
    assert leaders([known, none], names, start="Fewest bytes") == f"Fewest bytes in 1 of 2 panels: {ahead}"
    costs, lost = {"a": [Cost(5, 0.1)], "b": [Cost(6, 0.1)]}, {"a": [Cost(1, math.inf)]}
    start = "Fewest bytes within 10 % of the lowest"
    found = [cheapest(panels, {}, "bytes", "{:g} B".format) for panels in ([costs, lost], [costs, lost, costs])]
    assert found == [
        f"{start} in 1 of 2 panels: a (5 B, 0.1); next: b (6 B, 0.1)",
        f"{start}: a in 2 of 3 panels",
    ]


def test_panels_of_one_client_count_only_alone() -> None:
    """Who is ahead with one client copes with no staleness."""
    counts = (1, 8, 32)
    panels = [lines_of(a=Fake(ASGD, count), b=Fake(ASGD, count), sync=Fake(SYNC, count)) for count in counts]
    values = [{"a": 0.1, "b": 0.2, "sync": 0.5}, {"a": 0.4, "b": 0.3, "sync": 0.5}, {"a": 0.4, "b": 0.3, "sync": 0.1}]

    def told(*places: int, names: Mapping[str, str] = {"b": "ASGD, b"}) -> str:
        fields = [field_of(panels[place], "updates") for place in places]
        return leaders([values[place] for place in places], names, panels="columns", fields=fields)

    assert told(0, 1, 2) == "Ahead: ASGD (b) in 2 of 2 columns with λ > 1; not compared (no staleness): sync"
    assert told(1, 2) == "Ahead: ASGD (b) in 2 of 2 columns; not compared (no staleness): sync"
    assert told(0, 0) == "Ahead: a in 2 of 2 columns"
    assert told(0, 1) == "Ahead at λ = 8: ASGD, b (0.3); next: a (0.4); not compared (no staleness): sync (0.5)"
    fields = [field_of(panels[place], None) for place in (0, 1)]
    assert leaders(values[:2], {}, start="Fewest bytes", fields=fields).startswith("Fewest bytes at λ = 8: b (0.3); ")
    mixed = field_of(lines_of(a=Fake(ASGD, 2), b=Fake(ASGD, 4)), "updates")
    assert leaders(values[:2], {}, fields=[fields[0], mixed]) == "Ahead: b (0.3); next: a (0.4)"
    alone = field_of(lines_of(a=Fake(ASGD, 8)), "updates")
    assert leaders([values[1], {"a": 0.1}], {}, fields=[fields[1], alone]) == (
        "Ahead in 1 of 2 panels: b (0.3); next: a (0.4)"
    )
    assert leaders([values[0], {"a": 0.1}], {}, fields=[field_of(panels[0], None), alone]) == (
        "Ahead in 1 of 2 panels: a (0.1); next: b (0.2)"
    )


@pytest.fixture
def made(small_yaml: Path) -> list[Result]:
    """Runs of three servers; the tests set their errors and bytes."""
    words = ["sweep={server: [{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.1}, {name: fasgd, lr: 0.01}]}"]
    return list(fredsim.sweep(small_yaml, [*words, "evaluation.every=10"]))


def test_a_figure_against_bytes(made: Sequence[Result], drawn: list[Figure]) -> None:
    """The curve is judged by the first bytes at which it is near the lowest end."""
    for run, end, size in zip(made, (0.1, 0.105, 0.3), (9000, 3000, 1000), strict=True):
        run.metrics["validation_error"] = [0.9, 0.5, 0.4, 0.3, end, end]
        run.metrics["bytes_pushed"] = np.arange(ROWS) * size
        run.metrics["bytes_fetched"] = 0
    plot(made, Path("x.png"), options=Options(x="bytes"))
    title = "Which server is near the lowest validation error with the fewest bytes?"
    assert " ".join(drawn[0].get_suptitle().split()) == title
    assert (
        drawn[0].texts[-1].get_text()
        == "Fewest bytes to 0.11, 10 % above the lowest: SASGD (12 kB); next: ASGD (36 kB)"
    )
    plot(made, Path("x.png"), "ends", Options(x="bytes"))
    assert all("↙ better: down and left" in [text.get_text() for text in figure.axes[0].texts] for figure in drawn)
    assert " ".join(drawn[1].get_suptitle().split()) == title
    answer = "Fewest bytes within 10 % of the lowest: SASGD (15 kB, 0.105); lowest: ASGD (45 kB, 0.1)"
    assert drawn[1].texts[-1].get_text() == answer
    alone = plot(made[:1], Path("x.png"), "ends", Options(x="bytes"))
    assert alone.question == "With how few bytes does the validation error of ASGD come near its lowest?"


def test_what_diverged_is_not_near_the_lowest(made: Sequence[Result]) -> None:
    """However early it comes down; and where all diverged, nothing is."""
    options = Options(x="bytes")
    for run, end, size in zip(made, (0.1, 0.1, 0.3), (9000, 1000, 1000), strict=True):
        run.metrics["validation_error"] = [0.9, 0.5, 0.4, 0.3, end, end]
        run.metrics["bytes_pushed"] = np.arange(ROWS) * size
        run.metrics["bytes_fetched"] = 0
    made[1].summary["status"] = "diverged"
    answer = "Fewest bytes to 0.11, 10 % above the lowest: ASGD (36 kB)"
    assert plot(made, Path("x.png"), options=options).answer == answer
    for run in made:
        run.summary["status"] = "diverged"
    assert plot(made, Path("x.png"), options=options).answer == ""


def test_lines_upon_one_another_are_dashed(made: Sequence[Result], drawn: list[Figure]) -> None:
    for run, last in zip(made, (0.1, 0.1001, 0.6), strict=True):
        run.metrics["validation_error"] = np.linspace(0.9, last, ROWS)
    plot(made, Path("x.png"))
    styles = {str(line.get_label()): line.get_linestyle() for line in drawn[0].axes[0].lines}
    assert styles == {"ASGD": "-", "SASGD": "--", "FASGD": "-"}
    tell_apart([], [])


@pytest.mark.parametrize("level", [0.01, 0.99])
def test_each_of_three_lines_upon_one_another_is_seen(level: float) -> None:
    """On as much of the width as the others; wherever they lie in the panel."""
    figure = Figure(figsize=(3, 6), dpi=100)
    axes = figure.add_axes((0.4, 0.1, 0.5, 0.8))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    colours = {"a": (1.0, 0.0, 0.0), "b": (0.0, 1.0, 0.0), "c": (0.0, 0.0, 1.0)}
    lines = {name: axes.plot([0, 1], [level] * 2, color=colour, linewidth=3)[0] for name, colour in colours.items()}
    tell_apart([axes], [lines])
    picture = io.BytesIO()
    figure.savefig(picture, format="rgba", dpi=100)
    pixels = np.frombuffer(picture.getvalue(), np.uint8).reshape(600, 300, 4)[round(600 * (0.9 - 0.8 * level)), :, :3]
    seen = [int((np.abs(pixels - 255 * np.array(colour)).max(axis=1) < 60).sum()) for colour in colours.values()]
    assert min(seen) > 0.8 * max(seen) > 20


def test_lines_that_coincide_are_in_a_tie(made: Sequence[Result], drawn: list[Figure]) -> None:
    """They are drawn once; none of them is ahead of another."""
    for run, last in zip(made, (0.1, 0.1, 0.6), strict=True):
        run.metrics["validation_error"] = np.linspace(0.9, last, ROWS)
        run.metrics["bytes_pushed"], run.metrics["bytes_fetched"] = np.arange(ROWS) * 1000, 0
    assert plot(made, Path("x.png")).answer == "Ahead: ASGD and SASGD (0.1 each)"
    assert plot(made, Path("x.png"), "matrix").answer == "Ahead: ASGD and SASGD (0.1 each)"
    assert [line.get_label() for line in drawn[0].axes[0].lines] == ["ASGD", "FASGD"]
    answer = "Fewest bytes within 10 % of the lowest: ASGD and SASGD (5 kB, 0.1 each)"
    ends = plot(made, Path("x.png"), "ends")
    assert ends.answer == answer
    assert ends.caption.startswith("Validation error at the end of runs against total bytes.")
    assert plot(made, Path("x.png"), options=Options(x="bytes")).answer.endswith(": ASGD and SASGD (5 kB each)")
    for run in made:
        run.metrics["validation_error"] = 0.5
    assert plot(made, Path("x.png")).answer == "Equal: ASGD, SASGD and FASGD (0.5 each)"


def test_ties_of_bytes_and_of_time(made: Sequence[Result]) -> None:
    """Who makes the fewest copies, and who computes for most of the time, may be several."""
    for run, size in zip(made, (1000, 500, 500), strict=True):
        run.metrics["bytes_pushed"], run.metrics["bytes_fetched"] = np.arange(ROWS) * size, 0
    answer = "Fewest bytes: SASGD and FASGD, 50 % of those of ASGD"
    assert plot(made, Path("x.png"), "copies").answer == answer
    assert plot(made[1:], Path("x.png"), "copies").answer == ""
    bars = [{"line": name, "computing": share} for name, share in (("a", 0.25), ("b", 0.5), ("c", 0.5))]
    assert waits._answer(bars) == "Computing most: b and c (50 %); least: a (25 %)"
    assert waits._answer(bars[1:]) == "Computing: b and c (50 %)"
    assert waits._answer(bars[:1]) == "Computing: a (25 %)"


def test_a_run_that_diverged_stands_where_it_is_worst(made: Sequence[Result], drawn: list[Figure]) -> None:
    """If its last value is not finite: at the lower edge where more is better."""
    for run in made:
        run.summary["status"] = "diverged"
        run.metrics.loc[ROWS - 1, "validation_error"] = math.inf
    for larger, edge in ((False, 1.0), (True, 0.0)):
        for run in made:
            run.summary["larger_is_better"] = ["validation_error"] if larger else []
        for kind in ("curves", "ends"):
            plot(made, Path("x.png"), kind)
            axes = drawn[-1].axes[0]
            crosses = [line for line in axes.lines if line.get_marker() == "x"]
            assert {float(np.asarray(cross.get_ydata())[0]) for cross in crosses} == {edge}
            assert all(cross.get_transform() == axes.get_xaxis_transform() for cross in crosses)


def test_points_of_one_colour_have_different_markers(small_yaml: Path, drawn: list[Figure]) -> None:
    """Nothing joins them, whose dashes could tell them apart; and one that lies upon another is the smaller."""
    words = ["sweep={server.lr: [0.1, 0.2, 0.3], server.name: [asgd, sasgd, adagrad]}", "iterations=2"]
    runs = list(fredsim.sweep(small_yaml, words))
    for number, run in enumerate(runs):
        run.metrics["validation_error"] = 0.1 * max(1, number) + 1e-6 * number
    plot(runs, Path("x.png"), "ends")
    points = [line for line in drawn[0].axes[0].lines if len(np.asarray(line.get_xdata())) == 1]
    assert len({(line.get_color(), line.get_marker()) for line in points}) == len(runs) == len(points)
    first, second, *others = (line.get_markersize() for line in points)
    assert first > second + 2
    assert {second} == {*others}
    plot(runs[:2], Path("x.png"), "ends", Options(x="clients.sampling", by=["server.name"]))  # words
    first, second = (line.get_markersize() for line in drawn[1].axes[0].lines[:2])
    assert first > second + 2


def test_lines_that_grow_by_many_decades_leave_the_panel(made: Sequence[Result], drawn: list[Figure]) -> None:
    for run, last in zip(made, (1e-6, 1e30, 1e-4), strict=True):
        run.metrics["validation_loss"] = np.geomspace(1.0, last, ROWS)
    drawing = plot(made, Path("x.png"), options=Options(y="validation_loss"))
    (axes,) = drawn[0].axes
    assert axes.get_ylim()[1] < 1e5
    (left,) = (line for line in axes.lines if line.get_label() == "SASGD")
    assert max(np.asarray(left.get_ydata(), float)) == 1000
    assert isinstance(left, Line2D)
    assert "△: a line leaves at the top, 1\u2009000; the largest value is 10³⁰." in drawing.caption
    for run, last in zip(made, (1e-6, 1e30, 1e-4), strict=True):
        run.metrics["staleness_max"] = np.geomspace(1.0, last, ROWS)
    drawing = plot(made, Path("x.png"), options=Options(y="staleness_max"))  # of which more may be better
    assert "leaves" not in drawing.caption


def test_titles_have_lines_of_about_the_same_length() -> None:
    text = "Which server has the lowest error after 10 iterations?"
    assert balanced(text, 80) == [text]
    assert balanced(text, 50) == ["Which server has the lowest", "error after 10 iterations?"]


def test_numbers_of_a_column_have_one_style() -> None:
    rows = [
        {"iter./s": 1743.4, "error": 0.25},
        {"iter./s": 972.0832, "error": 0.123456},
        {"iter./s": 12.3456, "error": 0.0},
    ]
    columns = [[*column.cells] for column in Table(rows).printed().columns]
    assert columns == [["1,743", "972.1", "12.35"], ["0.2500", "0.1235", "0"]]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.00157312, 0.00161, 0.0016, 0.25], ["0.001573", "0.001610", "0.001600", "0.2500"]),
        ([0.0016, 0.25, 0.0016], ["0.0016", "0.2500", "0.0016"]),
        ([2.30258, 2.30263, 2.4], ["2.3026", "2.3026", "2.4000"]),  # four digits would tell no more
        ([1743.4, 12.3456, None], ["1,743", "12.35", "–"]),
        ([AllDigits(1743.4), AllDigits(12.3456)], ["1743.4", "12.3456"]),  # as an experiment gave them
    ],
)
def test_a_table_tells_small_numbers_apart(values: list[float | None], texts: list[str]) -> None:
    table = Table([{"run": "a", "error": value} for value in values])
    assert [*table.printed().columns[1].cells] == texts
    pages = table.markdown().splitlines()[2:], table.latex().splitlines()[4:-2]
    for lines, parts in zip(pages, (("| a | ", " |"), ("a & ", " \\\\")), strict=True):
        shown = [line.removeprefix(parts[0]).removesuffix(parts[1]) for line in lines]
        assert [cell.replace("{,}", ",").strip("$").replace("--", "–") for cell in shown] == texts


def test_in_several_panels_a_name_keeps_what_the_reference_has_not() -> None:
    lines = lines_of(sync=Fake(SYNC, 4), a=Fake(ASGD, 4), b=Fake(ASGD, 4))
    field = field_of(lines, "updates")
    names = {"sync": "Sync", "a": "Delayed, every push", "b": "Delayed, every 8 pushes"}
    values = [{"sync": 0.1, "a": 0.4, "b": 0.3}, {"sync": 0.1, "a": 0.2, "b": 0.3}]
    text = leaders(values, names, fields=[field, field])
    first = "Ahead: Delayed (every 8 pushes) in 1 of 2 panels, Delayed (every push) in 1"
    assert text == f"{first}; not compared (no staleness): Sync"
