"""Where the legend stands, over no line and no band; and names of lines."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from numpy.typing import NDArray

from fredsim.show.plots import Options
from fredsim.show.plots.direction import add_direction
from fredsim.show.plots.groups import Panel, group
from fredsim.show.plots.legends import Words, add_legend, avoid_overlap
from fredsim.show.plots.styles import style_of
from fredsim.show.plots.titles.subjects import coloured, subject_of

X = np.linspace(0, 2, 21)
#: Of each figure: its lines, how far bands reach to each side of them, and whether a legend has room among these.
FIGURES: dict[str, tuple[list[NDArray[Any]], float, bool]] = {
    "empty corner": ([0 * X + level for level in (0.1, 0.2, 0.3)], 0.14, True),
    "lines everywhere": ([np.arange(21) % 2 * 1.0] * 3, 0.0, False),
    "bands everywhere": ([0 * X + 0.5] * 3, 0.9, False),
}


def drawn(style: str | None, lines: list[NDArray[Any]], band: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_ylim(0, 1)
    for number, y in enumerate(lines):
        axes.plot(X, np.where(X == 1, np.nan, y), label=f"line {number}")
        if band:
            axes.fill_between(X, y - band, y + band)
    options = style_of(Options(style=style))
    assert add_legend(figure, [axes], False, "inside", options)
    figure.suptitle("A title")
    avoid_overlap(figure, [axes], False, options)
    figure.draw_without_rendering()
    return figure, axes


def hidden(axes: Axes) -> bool:
    """Whether any of many points of the lines, or of the legend, lies where it should not."""
    legend = axes.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    for line in axes.lines:
        points = np.asarray(line.get_xydata())
        x, y = points[np.isfinite(points[:, 1])].T
        at = np.linspace(0, 2, 2000)
        points = axes.transData.transform(np.column_stack([at, np.interp(at, x, y)]))
        if any(box.contains(*point) for point in points):
            return True
    grid = np.stack(np.meshgrid(np.linspace(box.x0, box.x1, 50), np.linspace(box.y0, box.y1, 50)), -1).reshape(-1, 2)
    outlines = [Path(axes.transData.transform(path.vertices)) for band in axes.collections for path in band.get_paths()]
    return any(outline.contains_points(grid).any() for outline in outlines)


@pytest.mark.parametrize(
    ("name", "place", "style"),
    [
        ("a name", "inside", None),
        ("a name of many words " * 5, "beside", None),
        ("", "none", None),
        ("a name", "inside", "column"),
        ("a name of many words " * 5, "beside", "column"),
    ],
)
def test_a_legend_takes_no_more_room_than_there_is(name: str, place: str, style: str | None) -> None:
    """One with long names is beside or above the panel, and that of one line without a name is not there."""
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(X, X, label=name or "all runs")
    assert add_legend(figure, [axes], False, "inside", style_of(Options(style=style)))
    assert (axes.get_legend() is not None, len(figure.legends)) == (place == "inside", place == "beside")


@pytest.mark.parametrize("width", [6.4, 7.0])
@pytest.mark.parametrize("name", ["ASGD", "DelayedNesterov, every 8 pushes", "AClassWithoutSpaces" * 3])
def test_no_legend_makes_a_figure_wider_than_a_page(name: str, width: float) -> None:
    """1,400 px; names are on more lines instead, and the panels keep most of the width."""
    figure = Figure(figsize=(width, 3.6), dpi=200, layout="constrained")
    grid = list(figure.subplots(1, 1 if width < 7 else 2, squeeze=False).flat)
    for axes in grid:
        axes.plot(X, X, label=name)
        axes.plot(X, X, label="another")
    words = Words("server and learning rate α (most wins first)")
    assert add_legend(figure, grid, False, "beside", style_of(Options()), words)
    figure.draw_without_rendering()
    assert figure.get_figwidth() <= 7.0
    box = figure.legends[0].get_window_extent()
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [text.replace("\n", "").replace(" ", "") for text in shown] == [name.replace(" ", ""), "another"]
    assert grid[-1].get_window_extent().x1 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.width / figure.dpi <= 7.0 - 0.72 * width


@pytest.mark.parametrize("style", [None, "column"])
@pytest.mark.parametrize("kind", FIGURES)
def test_it_hides_nothing(kind: str, style: str | None) -> None:
    lines, band, room = FIGURES[kind]
    figure, axes = drawn(style, lines, band)
    if room:
        assert not figure.legends
        assert not hidden(axes)
        return
    assert axes.get_legend() is None
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"line {number}" for number in range(3)]
    box, panel = legend.get_window_extent(), axes.get_window_extent()
    assert box.x0 >= panel.x1 if style is None else box.y0 >= panel.y1


def covered(*free: tuple[int, int]) -> tuple[Figure, Axes]:
    """A panel that is filled but for some of its nine parts, each a third wide and high: (column, row)."""
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 3), ylim=(0, 3))
    for column, row in np.ndindex(3, 3):
        if (column, row) not in free:
            axes.add_patch(Rectangle((column, row), 1, 1))
    figure.suptitle("A title, below which an answer may be that is as long")
    return figure, axes


@pytest.mark.parametrize("free", [part for part in np.ndindex(3, 3) if part != (1, 1)], ids=str)
def test_which_way_is_better_stands_where_there_is_room(free: tuple[int, int]) -> None:
    figure, axes = covered(free)
    text = add_direction([axes], "↓ lower is better")
    figure.draw_without_rendering()
    box = text.get_window_extent().transformed(axes.transData.inverted())
    column, row = free
    assert column <= box.x0 < box.x1 <= column + 1
    assert row <= box.y0 < box.y1 <= row + 1


def test_which_way_is_better_without_room() -> None:
    """It is in the next panel that has some, or above the first, below the title."""
    figure, axes = covered()
    text = add_direction([axes], "↓ lower is better")
    figure.draw_without_rendering()
    box, title = text.get_window_extent(), figure.texts[0].get_window_extent()
    assert axes.get_window_extent().y1 <= box.y0 < box.y1 <= title.y0
    assert box.x1 <= figure.bbox.x1
    other = covered((0, 0))[1]
    assert add_direction([axes, other], "↓ lower is better").axes is other
    assert [*axes.texts] == [text]


def test_names_of_pipelines() -> None:
    """A key that a run lacks adds nothing to its name; a mapping of one key is named by its value."""
    delays: list[dict[str, Any]] = [
        {"delay": {"forward": 0, "backward": None}},
        {"delay": "pipedream"},
        {"delay": "pipemare", "correction": 0.135},
        {"delay": {"forward": [1, 0], "backward": 0}},
    ]
    runs: Any = [
        SimpleNamespace(has_ended=False, config={"server": {"name": "asgd"}, "stages": {"cuts": ["W2"]} | one})
        for one in delays
    ]
    (panel,) = group(runs, ["stages.delay", "stages.correction"], [])
    assert [line.label for line in panel.lines] == [
        "delay forward 0", "delay pipedream", "delay pipemare, correction 0.135", "delay forward",
    ]  # fmt: skip
    gates: list[dict[str, Any] | str] = ["always", {"bandwidth_aware": {"c": 1.0, "per": "model"}}, {"budget": 9}]
    gated = [
        SimpleNamespace(has_ended=False, config={"dispatcher": {"name": "uniform", "fetch": gate}}) for gate in gates
    ]
    (panel,) = lines_of([{"server": {"name": "asgd"}, "problem": one} for one in ({"a": 1}, {"a": 2}, {"g": 5})])
    assert [line.label for line in panel.lines] == ["ASGD, a 1", "ASGD, a 2", "ASGD, g 5"]
    (panel,) = group(gated, ["dispatcher.fetch.bandwidth_aware.per"], [])  # type: ignore[arg-type]
    assert [line.label for line in panel.lines] == ["fetch always", "fetch per model", "fetch budget"]
    assert [one.title for one in group(runs, [], ["stages.correction"])] == ["no correction", "correction 0.135"]


def lines_of(configs: Sequence[dict[str, Any]], by: Sequence[str] | None = None) -> list[Panel]:
    return group([SimpleNamespace(has_ended=False, config=config) for config in configs], by, [])  # type: ignore[misc]


def test_what_lines_are_named_by_is_what_they_differ_in() -> None:
    """Not what else differs between them: a switch, or a number that was chosen for each of them, of several runs."""
    cases = ((2, True), (3, False), (4, False))
    panels = lines_of(
        [{"server": {"name": "sync", "aggregate": count, "restart": restart}} for count, restart in cases],
        ["server.aggregate"],
    )
    assert subject_of(panels).noun == "number of gradients a round"
    gates = (("model", 1), ("model", 2), ("tensor", 4), ("tensor", 8))
    panels = lines_of(
        [
            {"server": {"name": "fasgd"}, "dispatcher": {"push": {"bandwidth_aware": {"c": c, "per": per}}}}
            for per, c in gates
        ],
        ["dispatcher.push.bandwidth_aware.per"],
    )
    subject = subject_of(panels)
    assert (subject.title, [*subject.entries.values()], subject.values) == ("push gate", ["model", "tensor"], {})
    seeds = [{"server": {"name": "asgd", "lr": rate}, "seed": seed} for rate, seed in ((0.1, 0), (0.2, 0), (0.1, 1))]
    subject = subject_of(lines_of(seeds, ["seed"]))
    assert (subject.noun, subject.values) == ("seed", {})  # no learning rate: one line has two; and seeds have no order
    assert subject_of(lines_of(seeds, ["seed", "server.lr"])).noun == "learning rate α and seed"
    assert subject_of(lines_of(seeds, ["server.lr"])).noun == "learning rate α"


def test_of_many_parts_that_change_together_the_first_is_named() -> None:
    """Three that do not are all named, though not above a legend, where they have no room."""
    parts: dict[str, tuple[Any, Any]] = {
        "server": ({"name": "asgd"}, {"name": "sync"}), "clients": ({"count": 2}, {"count": 3}),
        "compress": ({"name": "qsgd"}, {"name": "top_k"}), "model": ({"name": "mlp"}, {"name": "vgg"}),
    }  # fmt: skip
    panels = lines_of([{key: both[place] for key, both in parts.items()} for place in (0, 1)])
    assert subject_of(panels).noun == "server"
    cases = ((2, "sgd", "skip"), (3, "adam", "skip"), (2, "sgd", "reapply"))
    panels = lines_of(
        [
            {
                "server": {"name": "asgd"},
                "clients": {"batch_size": size, "optimizer": {"name": optimizer}},
                "dispatcher": {"dropped_push": dropped},
            }
            for size, optimizer, dropped in cases
        ]
    )
    subject = subject_of(panels)
    assert subject.noun == "minibatch size µ, clients' optimizer and handling of dropped pushes"
    assert subject.title == "ASGD"


def test_a_line_that_has_only_what_all_have_keeps_its_name() -> None:
    panels = lines_of([{"server": {"name": "sync", "aggregate": count}} for count in (None, 2)])
    assert [*subject_of(panels).entries.values()] == ["Sync", "Sync, 2 gradients a round"]


def test_two_numbers_are_in_their_order() -> None:
    panels = lines_of([{"server": {"name": "asgd", "lr": rate}} for rate in (0.2, 0.1)])
    assert [*subject_of(panels).entries.values()] == ["0.1", "0.2"]


def test_two_lines_beside_numbers_have_colours_of_their_own() -> None:
    """One alone is black, beside the colours of an order."""
    gates = ["always", *({"bandwidth_aware": {"c": c}} for c in (1.0, 2.0, 4.0)), {"every": 2}]
    runs = [{"server": {"name": "fasgd"}, "dispatcher": {"push": gate}} for gate in gates]
    for some, black in ((runs[:4], 1), (runs, 0)):
        panels = lines_of(some)
        (panel,) = coloured(panels, subject_of(panels))
        looks = [(line.colour, line.dash) for line in panel.lines]
        assert len({*looks}) == len(some)
        assert [dash for _, dash in looks].count("--") == black


def test_what_has_other_bits_is_another_run() -> None:
    """Of one configuration: two live runs are two, the same run on two backends is one, one under way is its own."""

    def run(digest: str, *, has_ended: bool = True, **keys: Any) -> Any:
        config = {"server": {"name": "asgd"}, "seed": 0} | keys
        return SimpleNamespace(has_ended=has_ended, config=config, summary={"digest": digest})

    runs = [run("a", backend="numba"), run("b"), run("a", backend="numpy"), run("a", has_ended=False), run("a", seed=1)]
    (panel,) = group(runs, ["server.name"], [])
    assert panel.runs == [runs[0], runs[1], runs[3], runs[4]]
