"""The order of a figure's lines, rows and words: the one of its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim import Result, Results
from fredsim.show.plots import Options, plot
from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.answers import leaders

SERVERS = {"asgd": "ASGD", "sasgd": "SASGD", "momentum": "Momentum", "sync": "Sync"}
#: The errors with 2, 3 and 4 clients. By mean rank Momentum is the best, which is ahead nowhere.
ENDS = {"asgd": (0.1, 0.1, 0.9), "sasgd": (0.9, 0.9, 0.1), "momentum": (0.2, 0.2, 0.2), "sync": (0.05, 0.05, 0.05)}
RATES = [0.02, 0.1, 0.3]
ANSWER = "Ahead: ASGD in 2 of 3 {}, SASGD in 1; not compared (no staleness): Sync"


@pytest.fixture
def runs(small_yaml: Path) -> list[Result]:
    words = ["iterations=4", f"sweep={{server.name: {[*SERVERS]}, clients.count: [2, 3, 4]}}"]
    found = list(fredsim.sweep(small_yaml, words))
    for run in found:
        value = ENDS[run.config["server"]["name"]][run.config["clients"]["count"] - 2]
        run.metrics["validation_error"] = run.summary["validation_error"] = value
    return found


def by_wins(ends: Mapping[str, tuple[float, ...]]) -> list[str]:
    """Those that are compared and ahead in the most panels, then by the sum of ranks among all; last what is not."""
    asynchronous = [name for name in ends if name != "sync"]
    panels = range(3)
    wins = {one: sum(all(ends[one][k] <= ends[two][k] for two in asynchronous) for k in panels) for one in asynchronous}
    ranks = {one: sum(ends[two][k] < ends[one][k] for two in ends for k in panels) for one in ends}
    return [SERVERS[name] for name in sorted(ends, key=lambda one: (one == "sync", -wins.get(one, 0), ranks[one]))]


def test_those_ahead_in_the_most_panels_are_first(runs: list[Result], drawn: list[Figure]) -> None:
    order = by_wins(ENDS)
    assert order[:2] == ["ASGD", "SASGD"]
    curves = plot(runs, Path("x.png"))
    rates = plot(runs, Path("x.png"), "ends", Options(x="server.lr"))
    for drawing, figure in ((curves, drawn[0]), (rates, drawn[1])):
        assert drawing.answer == ANSWER.format("panels")
        assert [*drawing.order] == order
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [*order[:-1], "Sync (not compared)"]
        assert " ".join(legend.get_title().get_text().split()) == "server (most wins first)"
    assert plot(runs, Path("x.png"), "matrix").answer == ANSWER.format("columns")
    assert [label.get_text() for label in drawn[2].axes[0].get_yticklabels()] == order
    words = plot(runs, Path("x.png"), "ends", Options(x="server.name"))
    assert words.answer == ANSWER.format("cases")
    assert [label.get_text() for label in drawn[3].axes[2].get_xticklabels()] == order
    alone = [run for run in runs if run.config["clients"]["count"] == 2]
    drawing = plot(alone, Path("x.png"))
    assert drawing.answer == "Ahead: ASGD (0.1); next: Momentum (0.2); not compared (no staleness): Sync (0.05)"
    assert [*drawing.order] == ["ASGD", "Momentum", "SASGD", "Sync"]
    legend = drawn[-1].axes[0].get_legend() or drawn[-1].legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["ASGD", "Momentum", "SASGD", "Sync (not compared)"]
    plot(alone, Path("x.png"), options=Options(x="bytes"))  # where the answer also counts bytes
    legend = drawn[-1].axes[0].get_legend() or drawn[-1].legends[0]
    assert legend.get_texts()[-1].get_text() == "Sync (not compared)"


def test_words_that_are_compared_order_no_lines(runs: list[Result], drawn: list[Figure]) -> None:
    """The answer is about the words of the x axis, so that no line is the best."""
    options = Options(x="server.name", panel=[], by=["clients.count"])
    assert plot(runs, Path("x.png"), "ends", options).answer == ANSWER.format("cases")
    legend = drawn[0].axes[0].get_legend() or drawn[0].legends[0]
    assert "first" not in legend.get_title().get_text()


def test_what_has_no_word_is_compared_too(small_yaml: Path, drawn: list[Figure]) -> None:
    """Runs without a compressor are a dotted line beside the words."""
    cases = "cases=[{}, {compress: {name: top_k, k: 0.1}}, {compress: {name: qsgd}}]"
    runs = list(fredsim.sweep(small_yaml, [cases, "iterations=4"]))
    for run, value in zip(runs, (0.1, 0.2, 0.3), strict=True):
        run.metrics["validation_error"] = run.summary["validation_error"] = value
    drawing = plot(runs, Path("x.png"), "ends", Options(x="compress.name", by=["server.name"]))
    assert drawing.question == "Which compressor has the lowest validation error?"
    assert drawing.answer == "Ahead: without (dotted) (0.1); next: top-k (0.2)"
    assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == ["top-k", "qsgd"]


def test_lines_that_are_equal_everywhere() -> None:
    values = [{"a": 1.0, "b": 1.0, "c": 1.0}] * 2
    assert leaders(values, {}) == "Ahead: a, b and c in 2 of 2 panels (2 ties)"
    more = [dict.fromkeys("abcd", 1.0) | {"z": 2.0}] * 3
    assert leaders(more, {}) == "Ahead: a, b, c and d in 3 of 3 panels (3 ties)"


@pytest.mark.parametrize("name", ["Bowl", "Hill"])
def test_ends_of_ones_own_numbers_name_the_best(name: str, small_yaml: Path, drawn: list[Figure]) -> None:
    """Of a problem, whose class says if more is better."""
    del small_yaml  # the fixture has changed the current folder
    data = {
        "name": "own", "iterations": 8, "problem": {"name": f"tests.own_problems:{name}"}, "clients": {"count": 2},
        "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 8},
        "sweep": {"server.name": ["asgd", "momentum"], "server.lr": RATES},
    }  # fmt: skip
    found = fredsim.sweep(data)
    assert isinstance(found, Results)
    largest, sign = name == "Hill", -1 if name == "Hill" else 1
    rows = [
        (SERVERS[run.config["server"]["name"]], run.config["server"]["lr"], run.metrics[run.measure].iloc[-1])
        for run in found
    ]
    order = sorted(rows, key=lambda row: sign * row[2])
    best = order[0]
    other = next(row for row in order if row[0] != best[0])
    drawing = plot([*found], Path("x.png"), "ends", Options(x="server.lr"))
    what = "highest nearness" if largest else "lowest height"
    assert drawing.question == f"Which server has the {what}, and at which learning rate α?"
    ends = f"{best[0]} at α = {best[1]} ({number(best[2])})", f"{other[0]} at α = {other[1]} ({number(other[2])})"
    assert drawing.answer == f"Ahead: {ends[0]}; next: {ends[1]}"
    assert [*drawing.order] == [best[0], other[0]]
    assert {text.get_text() for text in drawn[0].axes[0].texts} == {f"{'↑ higher' if largest else '↓ lower'} is better"}
    words = plot([*found], Path("x.png"), "ends", Options(x="server.name"))
    assert words.question == f"Which server has the {what}?"
    wins = Counter(min((row for row in rows if row[1] == rate), key=lambda row: sign * row[2])[0] for rate in RATES)
    ((name, count), *_) = wins.most_common()
    assert f"{name} in {count} of 3 cases" in words.answer
