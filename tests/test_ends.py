"""How runs ended: points, their order and spread, what stands for runs without a value, and the table."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.runs.folder.results import Result, Results
from fredsim.show.plots import Options, plot
from fredsim.show.plots.groups import group

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

C = "dispatcher.fetch.bandwidth_aware.c"
GATES = "[always, {bandwidth_aware: {c: 4.0}}, {bandwidth_aware: {c: 0.1}}]"


@pytest.fixture
def swept(small_yaml: Path) -> list[Result]:
    """Three gates and two seeds of FASGD."""
    words = [f"sweep={{dispatcher.fetch: {GATES}, seed: [0, 1]}}", "server={name: fasgd, lr: 0.01}"]
    return list(fredsim.sweep(small_yaml, [*words, "evaluation.every=25"], out="swept"))


def finals(runs: Sequence[Result]) -> list[float]:
    return [run.summary["validation_error"] for run in runs]


def test_a_swept_value(swept: list[Result], drawn: list[Figure]) -> None:
    drawing = plot(swept, Path("c.png"), "ends", Options(x=C, by=["server.name"]))
    (axes,) = drawn[0].axes
    always, four, tenth = swept[:2], swept[2:4], swept[4:]
    baseline, line = axes.lines[:2]
    assert list(line.get_xdata()) == [0.1, 4.0]  # type: ignore[arg-type]
    assert list(line.get_ydata()) == [median(finals(tenth)), median(finals(four))]  # type: ignore[arg-type]
    assert set(baseline.get_ydata()) == {median(finals(always))}  # type: ignore[arg-type]
    (whiskers,) = axes.collections
    ends = [path.get_extents() for path in whiskers.get_paths()]
    assert [(end.y0, end.y1) for end in ends] == [pytest.approx(sorted(finals(runs))) for runs in (tenth, four)]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "c of the fetch gate"
    assert "median of up to 2 runs" in drawing.caption
    assert "Dotted: runs that have no such value." in drawing.caption
    rows = drawing.tables[0].rows
    assert [row[C] for row in rows] == [None, 0.1, 4.0]
    assert rows[2]["final validation_error"] == median(finals(four))
    assert [rows[2][of] for of in ("smallest", "largest")] == sorted(finals(four))
    assert rows[2]["of potential fetches"] == median(r.summary["fetches"] / 50 for r in four)
    (bytes_of_one,) = {row["bytes"] for row in rows[:1]}
    assert bytes_of_one == always[0].summary["bytes_pushed"] + always[0].summary["bytes_fetched"]
    plot(swept, Path("c.png"), "ends", Options(x=C, by=["dispatcher.fetch"]))  # the dotted line is one of its own
    assert [len(figure.axes[0].get_legend_handles_labels()[1]) for figure in drawn] == [1, 2]


def test_rates_have_all_their_digits(small_yaml: Path, command: Command, drawn: list[Figure]) -> None:
    """In the tables, where two rates must not look alike, and in that of what was chosen, where some have none."""
    rates = [0.00125, 0.0012500001, 2e-5, 0.1 + 0.2]
    words = [f"sweep={{server.lr: {rates}}}", "iterations=10", "figures=[{name: rates, kind: ends, x: server.lr}]"]
    runs = list(fredsim.sweep(small_yaml, words, out="rates"))
    (table,) = plot(runs, Path("x.png"), "ends", Options(x="server.lr")).tables
    cells = [line.split(" | ")[1] for line in table.markdown().splitlines()[2:]]
    assert cells == ["2e-05", "0.00125", "0.0012500001", "0.3"]
    assert [float(line.split(",")[1]) for line in table.csv().splitlines()[1:]] == sorted(rates)
    assert "2 \\times 10^{-5}" in table.latex()
    assert len(drawn) == 1
    cases = "cases=[{server.name: soft_sync, server.n: 4}, {server.name: sasgd}]"
    chosen = "select={best: validation_error, over: server.lr, per: [server.name, server.n]}"
    both = "sweep={server.lr: [0.00125, 2.0e-5]}"
    output = command("run", small_yaml, cases, both, chosen, "iterations=10", "--out", "chosen")[1]
    best = output.partition("best server.lr")[2].partition("results:")[0].splitlines()[2:]
    assert [line.split()[:3] for line in best] == [["soft_sync", "4", "0.00125"], ["sasgd", "–", "0.00125"]]


def test_over_numbers_of_clients_the_largest_counts(small_yaml: Path, drawn: list[Figure]) -> None:
    """Nobody chooses them for the smallest error, unlike those of a line alone."""
    words = ["sweep={server.name: [asgd, sasgd], clients.count: [2, 4]}", "iterations=10"]
    runs = list(fredsim.sweep(small_yaml, words))
    ends = {("asgd", 2): 0.1, ("asgd", 4): 0.4, ("sasgd", 2): 0.3, ("sasgd", 4): 0.2}
    for run in runs:
        end = ends[run.config["server"]["name"], run.config["clients"]["count"]]
        run.metrics["validation_error"] = run.summary["validation_error"] = end
    drawing = plot(runs, Path("x.png"), "ends", Options(x="clients.count"))
    assert drawing.question == "Which server keeps the lowest validation error as the number of clients λ grows?"
    assert drawing.answer == "Ahead at λ = 4: SASGD (0.2); next: ASGD (0.4)"
    alone = plot(runs[:2], Path("x.png"), "ends", Options(x="clients.count", by=["server.name"]))
    assert alone.question == "At which number of clients λ is the validation error of ASGD lowest?"
    assert [*drawing.order] == ["SASGD", "ASGD"]  # the best first
    curves = plot(runs, Path("x.png"), options=Options(by=["clients.count"], panel=["server.name"]))
    assert (curves.question, curves.answer) == (drawing.question, drawing.answer)
    assert len(drawn) == 3


@pytest.mark.usefixtures("drawn")
def test_points_of_a_line_differ_in_what_its_name_lacks(small_yaml: Path) -> None:
    fetches, pushes = (f"{{dispatcher: {{{gate}: {{bandwidth_aware: {{c: {{}}}}}}}}}}" for gate in ("fetch", "push"))
    cases = [gate.replace("{}", c) for gate in (fetches, pushes) for c in ("0.5", "1.0")]
    words = [f"cases=[{', '.join(cases)}]", "server={name: fasgd, lr: 0.005}", "iterations=10"]
    runs, by = list(fredsim.sweep(small_yaml, words)), ["dispatcher.fetch", "dispatcher.push"]
    drawing = plot(runs, Path("x.png"), "ends", Options(x="bytes", by=by))
    assert drawing.caption.endswith("The points of a line differ in the c of the push gate and c of the fetch gate.")
    drawing = plot(runs, Path("x.png"), "ends", Options(x="bytes", by=["server.name"]))  # of two kinds of gates
    assert drawing.caption.endswith("The points of a line differ in the push gate and fetch gate.")


def test_what_runs_cost_says_what_its_points_are(small_yaml: Path, drawn: list[Figure]) -> None:
    """And its legend does not call the lowest the best, as the answer counts bytes, too."""
    words = ["sweep={server.name: [asgd, sasgd], server.lr: [0.1, 0.2, 0.4]}", "iterations=10"]
    runs = list(fredsim.sweep(small_yaml, words))
    for run in runs:
        run.metrics["bytes_pushed"] = round(4e8 * run.config["server"]["lr"] ** 2)
        run.metrics["bytes_fetched"] = 0
    drawing = plot(runs, Path("x.png"), "ends", Options(x="bytes", by=["server.name"]))
    assert drawing.caption.endswith("The points of a line differ in the learning rate α.")
    axes = drawn[0].axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "server (lowest first)"
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks == pytest.approx([5, 10, 20, 50])
    assert "differ in" not in plot(runs, Path("x.png"), "ends", Options(x="server.lr")).caption


def test_false_and_true_keep_their_order(small_yaml: Path, drawn: list[Figure]) -> None:
    results = list(fredsim.sweep(small_yaml, ["sweep={clients.current: [false, true]}", "iterations=10"]))
    for run, end in zip(results, (0.2, 0.1), strict=True):  # the second is better
        run.metrics["validation_error"] = run.summary["validation_error"] = end
    plot(results, Path("x.png"), "ends", Options(x="clients.current"))
    assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == ["false", "true"]


def test_a_default_is_a_value(small_yaml: Path, command: Command, drawn: list[Figure]) -> None:
    """Also where configurations leave the key out: the run with it stands there, and `where` selects it."""
    published = "published={source: A, series: [{where: {clients.noise: 0.0}, points: [[10, 0.5]]}]}"
    figures = "figures=[{name: noise, kind: ends, x: clients.noise, where: {clients.noise: [0.0, 0.5]}}]"
    words = ["sweep={clients.noise: [0.0, 0.2, 0.5]}", "iterations=10", figures, published]
    assert command("run", small_yaml, *words, "--out", "out")[0] == 0
    table = Path("out/noise-table.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in table] == [["line", "clients.noise"], ["ASGD", "0.0"], ["ASGD", "0.5"]]
    assert any(0 < tick < 0.5 for tick in drawn[0].axes[0].get_xticks())
    runs = list(Results(Path("out")))
    assert ["published" in run.config for run in runs] == [True, False, False]
    rows = plot(runs, Path("x.svg"), "curves", Options(where={"clients.noise": [0.0, 0.2]})).tables[0].rows
    assert [row["final validation_error"] for row in rows] == finals(runs[:2])
    legend = drawn[1].axes[0].get_legend() or drawn[1].legends[0]
    assert {text.get_text() for text in legend.get_texts()} == {"ASGD", "ASGD, noise 0.2", "published"}


@pytest.mark.parametrize("x", ["bytes", "fetches", "pushes", "iterations", "updates"])
def test_what_was_measured(x: str, swept: list[Result], drawn: list[Figure]) -> None:
    drawing = plot(swept, Path("x.png"), "ends", Options(x=x, by=["server.name"]))
    (line,) = (line for line in drawn[0].axes[0].lines if line.get_linestyle() == "-")
    ends = [run.summary for run in swept]
    values = {
        "bytes": [(end["bytes_pushed"] + end["bytes_fetched"]) / 1000 for end in ends],  # kB
        "fetches": [end["fetches"] / 50 for end in ends],
        "pushes": [1.0] * 6,
        "iterations": [50.0] * 6,
        "updates": [50.0] * 6,
    }[x]
    names = {"bytes": "total bytes", "iterations": "iteration", "updates": "update"}
    against = names.get(x, f"share of {x} that passed")
    assert drawing.caption.startswith(f"Validation error at the end of runs against {against}. ")
    expected = sorted(median(values[at : at + 2]) for at in (0, 2, 4))
    assert list(line.get_xdata()) == pytest.approx(expected)  # type: ignore[arg-type]
    assert "did not diverge" not in drawing.caption
    column = {"fetches": "of potential fetches", "pushes": "of potential pushes"}.get(x, x)
    inexact = [row[column] / (1000 if x == "bytes" else 1) for row in drawing.tables[0].rows]
    assert inexact == pytest.approx(expected)
    assert "did not diverge" not in drawing.caption
    assert {row["of"] for row in drawing.tables[0].rows} == {
        "FASGD, fetch always", "FASGD, fetch c 4", "FASGD, fetch c 0.1",
    }  # fmt: skip


def test_words_have_places(small_yaml: Path, drawn: list[Figure]) -> None:
    servers = "[{name: asgd, lr: 0.1}, {name: fasgd, lr: 0.01}, {name: sasgd, lr: 0.1}]"
    results = list(fredsim.sweep(small_yaml, [f"sweep={{server: {servers}, clients.count: [4, 8]}}"]))
    plot(results, Path("x.png"), "ends", Options(x="server.name", by=["clients.count"], panel=[]))
    (axes,) = drawn[0].axes
    names = [run.config["server"]["name"].upper() for run in results[::2]]
    cases = [dict(zip(names, finals(results[at::2]), strict=True)) for at in (0, 1)]
    ranks = {name: sum(sum(other < case[name] for other in case.values()) for case in cases) for name in names}
    order = sorted(names, key=lambda name: ranks[name])
    assert [label.get_text() for label in axes.get_xticklabels()] == order
    assert [list(line.get_xdata()) for line in axes.lines] == [[*map(order.index, names)]] * 2  # type: ignore[arg-type]
    assert list(axes.lines[1].get_ydata()) == finals(results[1::2])  # type: ignore[arg-type]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}
    listed = {"server.name": [name.lower() for name in reversed(order)]}
    worst_first = sorted(results, key=lambda run: listed["server.name"].index(run.config["server"]["name"]))
    plot(worst_first, Path("x.png"), "ends", Options(x="server.name", by=["clients.count"], panel=[], where=listed))
    assert [label.get_text() for label in drawn[1].axes[0].get_xticklabels()] == order[::-1]


def test_a_run_that_diverged_is_a_cross(small_yaml: Path, drawn: list[Figure]) -> None:
    results = list(fredsim.sweep(small_yaml, ["sweep={server.lr: [0.1, 0.2, 1.0e+30]}"]))
    drawing = plot(results, Path("x.png"), "ends", Options(x="server.lr"))
    cross, line = drawn[0].axes[0].lines
    assert (cross.get_marker(), list(cross.get_xdata())) == ("x", [1e30])  # type: ignore[arg-type]
    assert list(line.get_xdata()) == [0.1, 0.2]  # type: ignore[arg-type]
    assert [(row["diverged"], row["final validation_error"] is None) for row in drawing.tables[0].rows] == [
        (0, False), (0, False), (1, True),
    ]  # fmt: skip
    assert "×: a run diverged." in drawing.caption


@pytest.mark.parametrize(("ends", "top"), [
    ([0.5, 2.0, 1e30], 2e3), ([0.5, 2.0, 1e12], None), ([0.5, 2e5, 1e30], 2e8), ([0.0, 2.0, 1e30], None),
])  # fmt: skip
def test_points_that_would_flatten_the_others(
    ends: list[float], top: float | None, small_yaml: Path, drawn: list[Figure]
) -> None:
    """They lie at the upper edge, three decades above the middle one, and the caption says where they would be."""
    results = list(fredsim.sweep(small_yaml, ["sweep={server.lr: [0.1, 0.2, 0.4]}"]))
    for run, value in zip(results, ends, strict=True):
        run.metrics.loc[run.metrics.index[-1], "validation_loss"] = value
        run.summary["validation_loss"] = value
    drawing = plot(results, Path("x.png"), "ends", Options(x="server.lr", y="validation_loss", log=True))
    *marks, line = drawn[0].axes[0].lines
    assert list(line.get_ydata()) == [min(value, top or value) for value in ends]  # type: ignore[arg-type]
    assert [(mark.get_marker(), *mark.get_xydata()[0]) for mark in marks] == ([("^", 0.4, top)] if top else [])  # type: ignore[index,misc]
    assert [row["final validation_loss"] for row in drawing.tables[0].rows] == ends
    assert ("△: a point lies above" in drawing.caption) == (top is not None)


def test_published_points_of_the_end(small_yaml: Path, drawn: list[Figure]) -> None:
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write(
            "published: {source: A paper, series: [{where: {server.lr: 1.1}, points: [[20, 0.75], [50, 0.5]]}]}\n"
            "sweep: {server.lr: [0.5, 1.1]}\n"
        )
    results = list(fredsim.sweep(small_yaml))
    drawing = plot(results, Path("x.png"), "ends", Options(x="server.lr"))
    circles = [line for line in drawn[0].axes[0].lines if line.get_fillstyle() == "none"]
    assert [(list(c.get_xdata()), list(c.get_ydata())) for c in circles] == [([1.1], [0.5])]  # type: ignore[arg-type]
    assert any(0.5 < tick < 1 for tick in drawn[0].axes[0].get_xticks())
    (row,) = drawing.tables[1].rows
    assert (row["server.lr"], row["published"], row["here"]) == (1.1, 0.5, finals(results)[1])


def test_a_line_is_named_by_what_stands_where_a_key_is_not(swept: list[Result]) -> None:
    (panel,) = group(swept, [C], [])
    assert [line.label for line in panel.lines] == ["fetch always", "fetch c 4", "fetch c 0.1"]
    (panel,) = group(swept, ["dispatcher.fetch"], [])
    assert [line.label for line in panel.lines] == ["fetch always", "fetch bandwidth_aware"]
    others = list(
        fredsim.sweep("small.yaml", ["average={name: window}", "sweep={server: [{name: momentum, lr: 0.1}]}"])
    )
    (panel,) = group([*swept[:1], *others], ["server.momentum", "average.name"], [])
    assert [line.label for line in panel.lines] == ["FASGD, no average", "momentum 0.9, window average"]


@pytest.mark.usefixtures("swept")
def test_what_cannot_be_drawn(refused: Refused) -> None:
    refused("plot", "swept", "--kind", "ends", "--x", f"{C}c", says=(f"is no key of these runs; did you mean '{C}'?",))
    refused("plot", "swept", "--kind", "ends", "--reach", 0.1, says=("--reach: is given; it goes with figures",))


@pytest.mark.parametrize(
    ("rates", "rotation"), [("0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04", 0), ("0.00125, 0.0015, 0.005, 0.04", 30)]
)
def test_labels_lie_flat_where_they_fit(rates: str, rotation: int, small_yaml: Path, drawn: list[Figure]) -> None:
    swept = list(fredsim.sweep(small_yaml, [f"sweep={{server.lr: [{rates}]}}"]))
    plot(swept, Path("x.png"), "ends", Options(x="server.lr"))
    labels = drawn[0].axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {rotation}
    drawn[0].draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels]
    assert rotation or all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_mappings_beside_numbers_are_points_of_their_own(small_yaml: Path) -> None:
    """Two schedules of one line, beside a rate: none is a seed of another."""
    rates = "[0.1, {name: step, base: 0.1, every: 2, factor: 0.5}, {name: cosine, base: 0.3, steps: 20}]"
    runs = list(fredsim.sweep(small_yaml, [f"sweep={{server.lr: {rates}}}", "iterations=20"]))
    (table,) = plot(runs, Path("x.png"), "ends", Options(x="server.lr", by=["server.name"])).tables
    ends = [run.metrics["validation_error"].iloc[-1] for run in runs]
    assert sorted((row["runs"], row["final validation_error"]) for row in table.rows) == sorted(
        (1, end) for end in ends
    )
    assert [row["server.lr"] for row in table.rows].count(None) == 2
