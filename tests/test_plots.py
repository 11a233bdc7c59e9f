"""Figures and their tables: what is drawn together, what the tables say, that files repeat, that mistakes are named."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.config.figures.options import KINDS
from fredsim.runs.folder.results import Result, Results
from fredsim.show.plots import Options, labels, plot
from fredsim.show.plots.groups import group

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
Recorded = Callable[..., Results]

PUBLISHED = """
published:
  source: A paper, Figure 7
  series:
    - {where: {server.name: asgd, clients.count: 8}, points: [[20, 0.5], [50, 0.25]]}
    - {where: {server.name: fasgd}, points: [[40, 0.125]]}
"""


def read(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def swept(recorded: Recorded, small_yaml: Path) -> list[Result]:
    """Two servers and two seeds, with published points, in the folder `swept`."""
    text = small_yaml.read_text(encoding="utf-8") + PUBLISHED
    servers = "[{name: asgd, lr: 0.1}, {name: fasgd, lr: 0.01}]"
    small_yaml.write_text(f"{text}evaluation: {{every: 10}}\nsweep: {{server: {servers}, seed: [0, 1]}}\n", "utf-8")
    words = ["probe={every: 5, per_tensor: true}"]
    return list(recorded("swept", lambda folder: fredsim.sweep(small_yaml, words, out=folder)))


@pytest.mark.parametrize(("kind", "x"), [("curves", "bytes"), ("curves", "iterations"), ("ends", "server.lr")])
@pytest.mark.parametrize("order", [(1, 500), (500, 1)])
def test_no_panel_hides_a_point(
    kind: str, x: str, order: tuple[int, int], small_yaml: Path, drawn: list[Figure]
) -> None:
    """Panels share their axes, whichever of them has more bytes and iterations, or the larger loss."""
    words = [f"sweep={{iterations: {[*order]}}}", "evaluation.every=100"]
    runs = list(fredsim.sweep(small_yaml, words))
    plot(runs, Path("x.png"), kind, Options(x=x, panel=["iterations"], by=["server.name"]))
    assert len(drawn[0].axes) == 2
    for axes in drawn[0].axes:
        points = np.concatenate([np.asarray(line.get_xydata()) for line in axes.lines])
        assert len(points) > 0
        for values, (low, high) in zip(points.T, (axes.get_xlim(), axes.get_ylim()), strict=True):
            assert low <= values.min() <= values.max() <= high


def test_seeds_are_a_median_and_a_band(swept: list[Result], drawn: list[Figure]) -> None:
    drawing = plot(swept, Path("error.png"))
    (axes,) = drawn[0].axes
    lines = {str(line.get_label()): line for line in axes.lines}
    of_asgd = np.array([run.metrics["validation_error"] for run in swept[:2]])
    assert lines["ASGD"].get_ydata() == pytest.approx(np.median(of_asgd, axis=0))
    assert list(lines["ASGD"].get_xdata()) == [0, 10, 20, 30, 40, 50]  # type: ignore[arg-type]
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((of_asgd.min(), of_asgd.max()))
    assert axes.get_xlabel() == "iteration (gradients arrived)"
    assert axes.get_ylabel() == "validation error (fraction)"
    assert "median of 2 runs" in drawing.caption
    (table, _) = drawing.tables
    finals = [run.summary["validation_error"] for run in swept[:2]]
    assert table.rows[0] == {
        "line": "ASGD", "runs": 2, "diverged": 0, "final validation_error": np.mean(finals),
        "smallest": min(finals), "largest": max(finals),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["curves", "copies"])
def test_a_run_that_diverged_has_no_last_value(kind: str, small_yaml: Path, drawn: list[Figure]) -> None:
    runs = list(fredsim.sweep(small_yaml, ["sweep={server.lr: [0.1, 1.0e+30]}"]))
    assert [run.summary["status"] for run in runs] == ["finished", "diverged"]
    final = runs[0].summary["validation_error"]
    for some, middle in ((runs, None), (runs[1:], None), (runs[:1], final), ([*runs, runs[0]], None)):
        (row,) = plot(some, Path("x.svg"), kind, Options(by=["server.name"])).tables[0].rows
        assert (row["runs"], row["final validation_error"]) == (len({run.folder for run in some}), middle)
        assert kind == "copies" or row["diverged"] == (runs[1] in some)
    assert len(drawn) == 4


@pytest.mark.parametrize("kind", ["curves", "ends", "copies"])
def test_a_median_of_three_where_some_diverged(kind: str, small_yaml: Path, drawn: list[Figure]) -> None:
    """Those stand behind all others: of three, one is no middle value, and two are."""
    cases = [{"seed": 0}, {"seed": 1}, {"seed": 2}, {"server.lr": 1e30}, {"server.lr": 1e30, "seed": 1}]
    runs = list(fredsim.sweep(small_yaml, [f"cases={cases}", "evaluation.every=25"]))
    assert [run.summary["status"] for run in runs] == ["finished"] * 3 + ["diverged"] * 2
    finals = sorted(run.summary["validation_error"] for run in runs[:3])
    assert len(set(finals)) == 3
    by = ["server.name"]
    options = Options(by=by, x="server.name") if kind == "ends" else Options(by=by)
    pair = sorted(run.summary["validation_error"] for run in runs[:2])
    for some, middle in ((runs[:3], finals[1]), ([*runs[:2], runs[3]], pair[1]), ([runs[0], *runs[3:]], None)):
        (row,) = plot(some, Path("x.svg"), kind, options).tables[0].rows
        assert (row["runs"], row["final validation_error"]) == (3, middle)
    assert len(drawn) == 3


def test_published_points_stand_beside_what_came_out(swept: list[Result], drawn: list[Figure]) -> None:
    drawing = plot(swept, Path("error.png"))
    circles = [line for line in drawn[0].axes[0].lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in circles] == [[0.5, 0.25], [0.125]]  # type: ignore[arg-type]
    assert "Circles: published (A paper, Figure 7)." in drawing.caption
    rows = drawing.tables[1].rows
    assert [(row["line"], row["iterations"], row["published"]) for row in rows] == [
        ("ASGD", 20, 0.5), ("ASGD", 50, 0.25), ("FASGD", 40, 0.125),
    ]  # fmt: skip
    here = np.mean([run.metrics["validation_error"].iloc[2] for run in swept[:2]])
    assert (rows[0]["here"], rows[0]["difference"]) == pytest.approx((here, here - 0.5))
    for options in (Options(x="updates"), Options(y="train_loss")):
        assert len(plot(swept, Path("error.png"), options=options).tables) == 1
    assert swept[0].config["published"]["series"] == [
        {"where": {"server.name": "asgd", "clients.count": 8}, "points": [[20.0, 0.5], [50.0, 0.25]]}
    ]


@pytest.mark.parametrize("x", ["iterations", "updates", "bytes"])
@pytest.mark.parametrize("y", ["validation_error", "validation_loss", "train_loss"])
def test_columns(x: str, y: str, swept: list[Result], drawn: list[Figure]) -> None:
    plot(swept[:1], Path("error.png"), options=Options(x=x, y=y))
    line, metrics = drawn[0].axes[0].lines[0], swept[0].metrics
    of = {"iterations": metrics["iteration"], "updates": metrics["timestamp"]}
    expected = of.get(x, (metrics["bytes_pushed"] + metrics["bytes_fetched"]) / 1000)  # 484 kB
    there = metrics[y].notna()
    assert list(line.get_xdata()) == expected[there].tolist()  # type: ignore[arg-type]
    assert list(line.get_ydata()) == metrics[y][there].tolist()  # type: ignore[arg-type]


def test_when_an_error_is_reached(swept: list[Result]) -> None:
    frames = [run.metrics for run in swept[:2]]
    for run, errors in zip(swept, ([0.9, 0.5, 0.3, 0.2, 0.1, 0.2], [0.9, 0.8, 0.7, 0.3, 0.4, 0.4]), strict=False):
        run.metrics["validation_error"] = errors
    rows = plot(swept[:2], Path("error.png"), options=Options(reach=[0.3, 0.1, 0.01])).tables[0].rows
    size = int(frames[0]["bytes_pushed"].iloc[1] + frames[0]["bytes_fetched"].iloc[1])  # of ten iterations
    assert (rows[0]["iterations to 0.3"], rows[0]["bytes to 0.3"], rows[0]["reached 0.3"]) == (25, 5 * size // 2, 2)
    assert (rows[0]["iterations to 0.1"], rows[0]["reached 0.1"]) == (None, 1)
    assert (rows[0]["bytes to 0.01"], rows[0]["reached 0.01"]) == (None, 0)


def test_a_run_that_diverged_ends_its_line(small_yaml: Path, drawn: list[Figure]) -> None:
    results = list(fredsim.sweep(small_yaml, ["sweep={seed: [0, 1]}", "evaluation.every=1", "server.lr=1.0e+30"]))
    drawing = plot(results, Path("error.png"))
    assert len([line for line in drawn[0].axes[0].lines if line.get_marker() == "x"]) == 2
    assert drawing.tables[0].rows[0]["diverged"] == 2
    assert "×: a run diverged." in drawing.caption


def test_the_end_of_a_run_that_diverged_is_no_median(small_yaml: Path, drawn: list[Figure]) -> None:
    """Between rows it alone has a value; from there on it counts as infinite, and half of the runs end the line."""
    results = list(fredsim.sweep(small_yaml, ["sweep={seed: [0, 1, 2]}", "evaluation.every=10"]))
    errors = [run.metrics.set_index("iteration")["validation_error"].to_dict() for run in results]
    for run, end in ((results[0], 23), (results[1], 41)):
        rows = run.metrics[run.metrics["iteration"] <= end]
        last = rows.iloc[-1:].assign(iteration=end, validation_error=0.99)
        run.__dict__["metrics"] = pd.concat([rows, last], ignore_index=True)
        run.summary["status"] = "diverged"

    def line_of(number: int) -> dict[float, float]:
        plot(results[:number], Path("error.png"))
        (line,) = (line for line in drawn[-1].axes[0].lines if line.get_marker() != "x")
        return dict(np.asarray(line.get_xydata()).tolist())

    expected = {at: float(np.median([errors[n][at] for n in range(3)])) for at in (0, 10, 20)}
    expected |= {at: max(errors[n][at] for n in (1, 2)) for at in (30, 40)} | {50: math.nan}
    assert line_of(3) == pytest.approx(expected, nan_ok=True)
    crosses = [line for line in drawn[-1].axes[0].lines if line.get_marker() == "x"]
    ends = [np.asarray(line.get_xydata()).tolist() for line in crosses]
    assert ends == [[[23, 0.99]], [[41, 0.99]]]
    assert [at for at, value in line_of(2).items() if math.isfinite(value)] == [0, 10, 20]
    assert "Medians count a run that diverged as infinite." in plot(results, Path("error.png")).caption


def test_runs_with_rows_at_different_iterations(small_yaml: Path, drawn: list[Figure]) -> None:
    """Such as those that end at an error, or whose rows are due every few updates: none is left out of a median."""
    results = list(fredsim.sweep(small_yaml, ["sweep={seed: [0, 1, 2]}", "evaluation.every=1"]))
    errors = [run.metrics["validation_error"].tolist() for run in results]
    places = [[0, 7, 14, 21, 28, 33], [0, 10, 20, 30, 40, 50], [0, 9, 18, 27, 36, 45]]
    for run, kept in zip(results, places, strict=True):
        run.__dict__["metrics"] = run.metrics[run.metrics["iteration"].isin(kept)]
    caption = plot(results, Path("error.png")).caption
    assert "A run's value is that of its last row so far" in caption
    (line,) = drawn[0].axes[0].lines
    grid = sorted({at for kept in places for at in kept if at <= 33})
    assert list(line.get_xdata()) == grid  # type: ignore[arg-type]
    expected = [
        np.median([own[max(at for at in kept if at <= x)] for own, kept in zip(errors, places, strict=True)])
        for x in grid
    ]
    assert list(line.get_ydata()) == expected  # type: ignore[arg-type]


def test_groups_and_labels(small_yaml: Path) -> None:
    words = ["sweep={clients.count: [4, 8], dispatcher.fetch: [always, {every: 2}, {every: 4}], seed: [0, 1]}"]
    results = list(fredsim.sweep(small_yaml, [*words, "iterations=10"]))
    panels = group(results, None, None)
    assert [panel.title for panel in panels] == ["λ = 4, µ = 3", "λ = 8, µ = 3"]
    assert [line.label for line in panels[0].lines] == ["ASGD, fetch always", "ASGD, fetch k 2", "ASGD, fetch k 4"]
    assert [len(line.runs) for panel in panels for line in panel.lines] == [2] * 6
    assert [(a.colour, a.dash) for a in panels[0].lines] == [(b.colour, b.dash) for b in panels[1].lines]
    (panel,) = group(results, ["seed", "clients.count"], [])
    assert [line.label for line in panel.lines] == ["seed 0, λ = 4", "seed 1, λ = 4", "seed 0, λ = 8", "seed 1, λ = 8"]
    assert [panel.title for panel in group(results, ["clients.count"], ["seed"])] == ["seed 0", "seed 1"]
    assert len(set(labels(results))) == 12
    assert labels(results)[:3] == [
        "ASGD, seed 0, λ = 4, fetch always", "ASGD, seed 1, λ = 4, fetch always", "ASGD, seed 0, λ = 4, fetch k 2",
    ]  # fmt: skip
    assert labels(results[:1]) == ["ASGD"]


def test_more_lines_than_can_be_told_apart(small_yaml: Path, drawn: list[Figure]) -> None:
    results = list(fredsim.sweep(small_yaml, [f"sweep={{seed: {list(range(34))}}}", "iterations=1"]))
    drawing = plot(results, Path("error.png"), options=Options(by=["seed"]))
    assert not drawn[0].legends
    assert drawing.caption.endswith("--by says which runs to take together.")
    assert "--by" not in plot(results, Path("error.png")).caption


def test_staleness(swept: list[Result], drawn: list[Figure]) -> None:
    drawing = plot(swept, Path("error.png"), "staleness")
    counts = pd.concat([run.staleness for run in swept[:2]]).groupby("staleness")["count"].sum()
    row = drawing.tables[0].rows[0]
    pushes = np.repeat(counts.index.to_numpy(), counts.to_numpy())
    assert (row["pushes"], row["max"], row["50 %"]) == (100, pushes.max(), np.sort(pushes)[49])
    assert row["mean"] == pytest.approx(pushes.mean())
    at, shares = np.asarray(drawn[0].axes[0].lines[0].get_xydata()).T
    assert at[-1] == pushes.max()
    assert shares.tolist() == pytest.approx([(pushes >= one).mean() for one in at])
    alone = fredsim.run(swept[0].config | {"clients": swept[0].config["clients"] | {"count": 1}}, out="alone")
    drawing = plot([alone], Path("error.png"), "staleness")  # a single point, at 0 and 1
    assert drawing.answer == "0 on average"
    assert drawn[1].axes[0].get_ylim()[1] <= 1.5
    vars(swept[0])["staleness"] = pd.DataFrame({"staleness": [0], "count": [7]})
    assert not plot(swept, Path("error.png"), "staleness", Options(panel=["seed"])).answer  # one panel has two lines


def test_copies(small_yaml: Path, drawn: list[Figure]) -> None:
    words = ["sweep={dispatcher.fetch: [always, {every: 2}]}", "evaluation.every=10"]
    results = list(fredsim.sweep(small_yaml, words))
    rows = plot(results, Path("error.png"), "copies").tables[0].rows
    assert [(row["pushes"], row["of potential fetches"]) for row in rows] == [
        (50, 1.0),
        (50, results[1].metrics["fetches"].iloc[-1] / 50),
    ]
    pushes, fetches = drawn[0].axes
    later = results[1].metrics.iloc[1:]  # no copy was possible before
    assert list(fetches.lines[1].get_xdata()) == later["iteration"].tolist()  # type: ignore[arg-type]
    shares = later["fetches"] / later["potential_fetches"]
    assert list(fetches.lines[1].get_ydata()) == shares.tolist()  # type: ignore[arg-type]
    assert pushes.get_xlabel() == "iteration (gradients arrived)"
    assert pushes.get_ylabel() == "share of pushes that passed"


def test_probe(swept: list[Result]) -> None:
    row = plot(swept, Path("error.png"), "probe").tables[0].rows[1]
    probes = pd.concat([run.probe for run in swept[2:]])
    assert (row["line"], row["probes"]) == ("FASGD", 20)
    assert row["b_staleness"] == probes["b_staleness"].median()
    for proxy in ("staleness", "distance", "v_mean"):
        ranks = probes[["b_staleness", proxy]].rank()
        assert row[f"rank by {proxy}"] == pytest.approx(np.corrcoef(ranks["b_staleness"], ranks[proxy])[0, 1])


#: Kinds and suffixes of files: curves in each, any other kind in one, since dates and random names are the suffix's.
FILES = [
    pytest.param(kind, suffix, marks=() if kind == "curves" or number % 3 == place else pytest.mark.slow)
    for number, kind in enumerate(kind for kind in KINDS if not KINDS[kind].events)
    for place, suffix in enumerate(["pdf", "png", "svg"])
]


@pytest.mark.parametrize(("kind", "suffix"), FILES)
@pytest.mark.usefixtures("swept")
def test_files_repeat(kind: str, suffix: str, command: Command) -> None:
    for name in ("one", "two"):
        words: tuple[str, ...] = ("plot", "swept", "--kind", kind, "--title", "A title", "-o", f"new/{name}.{suffix}")
        words += ("--reach", "0.5") if kind == "matrix" else ()
        code, output, messages = command(*words)
        assert (code, messages) == (0, "")
        assert output.splitlines()[-3:] == [f"new/{name}{end}" for end in (f".{suffix}", "-table.csv", "-table.md")]
    for end in (f".{suffix}", "-table.csv"):
        assert Path(f"new/one{end}").read_bytes() == Path(f"new/two{end}").read_bytes()
    assert Path(f"new/one.{suffix}").read_bytes()[:4] in {b"%PDF", b"<?xm", b"\x89PNG"}


def test_each_figure_says_how_it_was_made(swept: list[Result], drawn: list[Figure], command: Command) -> None:
    assert command("plot", "swept", "--by", "server.name", "--reach", 0.5, "--output=figure.svg")[0] == 0
    (caption,) = [text.get_text() for text in drawn[0].texts if "$" in text.get_text()]
    assert caption.endswith("\n$ fredsim plot swept --by server.name --reach 0.5")
    page = Path("figure-table.md").read_text(encoding="utf-8")
    assert page.startswith("```console\n$ fredsim plot swept -o figure.svg --by server.name --reach 0.5\n```\n")
    assert re.search(r"^\| ASGD \| 2 \| 0 \| 0\.\d{4} \|", page, re.MULTILINE)
    (row, _) = read("figure-table.csv")
    assert float(row["final validation_error"]) == np.mean([run.summary["validation_error"] for run in swept[:2]])
    assert command("plot", "swept", "--no-caption", "-o", "figure.svg")[0] == 0
    assert not [text for text in drawn[1].texts if "fredsim" in text.get_text()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--by", "server.nme"), ("'server.nme' is no key of these runs; did you mean 'server.name'?", "server.lr")),
        (("--panel", "sead"), ("'sead' is no key of these runs; did you mean 'seed'?",)),
        (
            ("--x", "updats"),
            ("--x: is 'updats'; did you mean 'updates'? (known: iterations, updates, bytes, seconds)",),
        ),
        (("--y", "error"), ("--y: is 'error'; did you mean 'validation_error'? (known: ",)),
        (("--kind", "probe", "--reach", "0.1"), ("--reach: is given; it goes with figures of the kind curves",)),
        (("--kind", "curve"), ("--kind: is 'curve'; did you mean 'curves'?",)),
        (("--kind", "copies", "--panel", "seed"), ("--panel: is given; a figure of the kind copies has panels",)),
        (("-o", "figure.gif"), ("figure.gif: unknown suffix '.gif'; choose .pdf, .svg, .png",)),
    ],
)
@pytest.mark.usefixtures("swept")
def test_what_cannot_be_drawn(words: tuple[str, ...], says: tuple[str, ...], refused: Refused) -> None:
    refused("plot", "swept", *words, says=says)
    assert not list(Path().glob("error*"))


def test_a_figure_of_probes_needs_probes(small_yaml: Path, refused: Refused) -> None:
    fredsim.run(small_yaml, out="out")
    refused(
        "plot", "out", "--kind", "probe", says=("out: has no probe.csv; give the experiment `probe: {every: 100}`",)
    )


@pytest.mark.parametrize(
    ("published", "says"),
    {
        "3": ("published: is 3; it must be a mapping",),
        "{series: []}": ("published.source: is required",),
        "{source: a, y: error, series: []}": ("published.y: is 'error'; did you mean 'validation_error'? (known: ",),
        "{source: a, series: [{where: {}, points: [[1]]}]}": ("published.series.0.points.0: is [1]; it should have",),
        "{source: a, series: [{where: {}, points: [[1, x]]}]}": ("published.series.0.points.0.1: is 'x'",),
        "{source: a, series: [{where: {server.nam: a}, points: [[1, 2]]}]}": (
            "published.series.0.where: no run has a key 'server.nam'; did you mean 'server.name'?",
        ),
    }.items(),
)
def test_published_points_that_cannot_be(
    published: str, says: tuple[str, ...], small_yaml: Path, refused: Refused
) -> None:
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write(f"published: {published}\n")
    refused("show", small_yaml, says=(f"{small_yaml}:8: ", *says))


def test_published_points_change_no_run(small_yaml: Path) -> None:
    plain = fredsim.run(small_yaml, out="plain")
    small_yaml.write_text(small_yaml.read_text(encoding="utf-8") + PUBLISHED, encoding="utf-8")
    with_points = fredsim.run(small_yaml, out="plain")  # the same folder: it is the same experiment
    assert isinstance(plain, Result)
    assert isinstance(with_points, Result)
    assert plain.summary["digest"] == with_points.summary["digest"]
    assert plain.summary["experiment"] == with_points.summary["experiment"]
