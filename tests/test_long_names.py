"""Names of a hundred letters, and titles above legends: nothing lies over anything else, or leaves the figure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import fredsim
from fredsim import Result, Results
from fredsim.show.plots import Options, plot
from tests.own_problems import Named

LONG = ["npz:/data/of/somebody/with/very/long/paths/" * 2 + end for end in ("first.npz", "second.npz", "third.npz")]
HIDDEN = [[6, 4], [3, 4], [8, 4]]


class Labelled(Named):
    """A bowl of which a text says where its numbers are from."""

    def __init__(self, text: str = "") -> None:
        super().__init__(noise=len(text) / 100)


DATA: dict[str, Any] = {
    "name": "long", "iterations": 2, "problem": {"name": "tests.test_long_names:Labelled"}, "clients": {"count": 2},
    "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 1},
}  # fmt: skip


def swept(**axes: Sequence[Any]) -> list[Result]:
    """The runs of a sweep, whose axes have `_` in place of the dots of their keys."""
    found = fredsim.sweep(DATA | {"sweep": {key.replace("_", "."): [*values] for key, values in axes.items()}})
    assert isinstance(found, Results)
    return [*found]


@pytest.fixture
def runs(small_yaml: Path) -> list[Result]:
    del small_yaml  # the fixture has changed the current folder
    return swept(problem_text=[*LONG, "short"])


def apart(figure: Figure, texts: Sequence[Text]) -> bool:
    """Whether texts are within the figure, and none of them lies over another one."""
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    within = all(figure.bbox.x0 <= one.x0 and one.x1 <= figure.bbox.x1 and one.y0 >= 0 for one in boxes)
    return within and not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("style", [None, "column"])
def test_long_names_of_panels_rows_and_words(style: str | None, runs: list[Result], drawn: list[Figure]) -> None:
    plot(runs, Path("x.png"), options=Options(panel=["problem.text"], style=style))
    assert apart(drawn[0], [axes.title for axes in drawn[0].axes])
    plot(runs, Path("x.png"), "matrix", Options(style=style))
    assert apart(drawn[1], drawn[1].axes[0].get_yticklabels())
    plot(runs, Path("x.png"), "ends", Options(x="problem.text", by=["server.name"], style=style))
    words = drawn[2].axes[0].get_xticklabels()
    drawn[2].draw_without_rendering()
    assert min(word.get_window_extent().y0 for word in words) >= 0
    assert sorted(word.get_text()[-9:] for word in words) == sorted(text[-9:] for text in [*LONG, "short"])
    panel = drawn[2].axes[0].get_window_extent()
    assert panel.height > drawn[2].bbox.height / 3  # there is room for it beside them


def test_titles_beside_a_legend(small_yaml: Path, drawn: list[Figure]) -> None:
    """It takes a part of the width: the titles of two panels are on more lines, below the answer."""
    texts = [f"what is measured on {place} of all" for place in ("Monday, the first day", "Tuesday, the second")]
    del small_yaml  # the fixture has changed the current folder
    found = swept(server_lr=[0.1 + rate / 100 for rate in range(7)], problem_text=texts)
    plot(found, Path("x.png"), options=Options(panel=["problem.text"]))
    (figure,) = drawn
    titles = [axes.title for axes in figure.axes]
    assert figure.legends
    assert apart(figure, titles)
    assert {" ".join(title.get_text().split()) for title in titles} == {
        f"text {text.replace(', ', ',')}" for text in texts
    }
    (answer,) = (text for text in figure.texts if text.get_text().startswith(("Ahead", "About", "Equal")))
    above = answer.get_window_extent()
    assert min(title.get_window_extent().y0 for title in titles) > figure.axes[0].get_window_extent().y1
    assert above.y0 > max(title.get_window_extent().y1 for title in titles)


@pytest.mark.parametrize("style", ["column", "page"])
@pytest.mark.parametrize("title", ["A title", "A title $x^2$\non two lines"])
def test_a_title_stands_above_a_legend(title: str, style: str, runs: list[Result], drawn: list[Figure]) -> None:
    plot(runs, Path("x.png"), options=Options(style=style, title=title, panel=["server.name"]))
    (figure,) = drawn
    figure.draw_without_rendering()
    (legend,) = figure.legends
    (text,) = (one for one in figure.texts if one.get_text() == title)
    above, box, panel = (part.get_window_extent() for part in (text, legend, figure.axes[0]))
    assert figure.bbox.y1 >= above.y1 > above.y0 >= box.y1 > box.y0 > panel.y1
    assert panel.height > figure.bbox.height / 3


def test_a_list_is_one_word(small_yaml: Path) -> None:
    """The comma within it parts no names."""
    runs = list(fredsim.sweep(small_yaml, [f"sweep={{model.hidden: {HIDDEN}, clients.count: [2, 3]}}", "iterations=2"]))
    for run in runs:
        end = 1 / run.config["model"]["hidden"][0]
        run.metrics["validation_error"] = run.summary["validation_error"] = end
    drawing = plot(runs, Path("x.png"), "ends", Options(x="model.hidden"))
    assert drawing.answer == "Ahead: [8,4] in 2 of 2 cases"


def test_a_single_row_asks_how_it_ends(small_yaml: Path) -> None:
    """Nothing is compared with it."""
    runs = list(fredsim.sweep(small_yaml, ["sweep={clients.count: [2, 3]}", "iterations=2"]))
    assert plot(runs, Path("x.png"), "matrix").question == "How low does the validation error of ASGD get?"
    reach = Options(reach=[0.5])
    assert plot(runs, Path("x.png"), "matrix", reach).question == "When does the validation error of ASGD come to 0.5?"
