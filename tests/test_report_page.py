"""What a report is made of: its size with many runs, its colours, who won, the table's columns."""

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.runs.folder.result import Result
from fredsim.show.colours import DARK_GROUND, DARK_PALETTE, DARK_SEQUENCE, PALETTE, SEQUENCE
from fredsim.show.html import html_of
from fredsim.show.plots import plot
from fredsim.show.plots.groups import Line, Panel, group
from fredsim.show.plots.thinning import outlined
from fredsim.show.report import parts, report, winner
from fredsim.show.report.compression import MOST_POINTS, Pool, packed, thinned
from fredsim.show.report.figures import curves, run_curve, staleness
from fredsim.show.report.page import parsed_once
from fredsim.show.report.run_table import run_table
from fredsim.show.report.sections import Section
from fredsim.show.tables import Table
from tests.many_runs import many_runs
from tests.reports import data_in, opened, rows_in, unpacked, until

Command = Callable[..., tuple[int, str, str]]
MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """The folders of 300 runs of 51 rows each, and their report."""
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    folder = tmp_path_factory.mktemp("many")
    run = fredsim.run(
        {
            "name": "one", "iterations": 50, "data": {"name": "digits"}, "model": {"hidden": [8]}, "backend": "numpy",
            "clients": {"count": 4, "batch_size": 4}, "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 1},
        },
        out=folder / "one",
    )  # fmt: skip
    folders = list(many_runs(Path(run.folder), folder / "many", 300))
    report(folders, folder / "report.html")
    return folders, folder / "report.html"


def test_three_hundred_runs_fit(many: tuple[list[Path], Path]) -> None:
    folders, path = many
    assert path.stat().st_size <= MOST_BYTES
    page = path.read_text(encoding="utf-8")
    data = data_in(page)
    assert (len(data["runs"]), len(data["lines"]), len(data["texts"])) == (300, 60, 300)
    rates = [f"{1e-3 * 1.25**number:.3g}" for number in range(20)]  # the first ones and the last are listed
    assert f"<td>server.lr</td><td>{', '.join(rates[:6])}, … {rates[-1]} (20 values)</td>" in page
    for number in (0, 123, 299):
        rows = fredsim.load(folders[number])
        assert isinstance(rows, Result)
        curve = data["runs"][number]
        for y in ("validation_error", "train_loss"):
            wanted = [None if math.isnan(value) else value for value in rows.metrics[y].tolist()]
            assert curve["y"][y] == [value and pytest.approx(value, rel=1e-5) for value in wanted]


#: Uses every control that is shown, and draws after each; returns their kinds.
USE_ALL = """async () => {
  const used = [];
  const tell = (one, name, value) => {
    one.value = value;
    one.dispatchEvent(new Event(name, { bubbles: true }));
  };
  const all = (names) => [...document.querySelectorAll(names)].filter((one) => one.checkVisibility() && !one.disabled);
  const use = async (one) => {
    const kind = one.type || one.localName;
    used.push(kind);
    if (kind == "select-one") for (const option of [...one.options]) tell(one, "change", option.value);
    else if (kind == "range") for (const end of [one.max, one.min]) tell(one, "input", end);
    else if (kind == "text" || kind == "search") for (const text of ["fasgd", ""]) tell(one, "input", text);
    else for (const time of [1, 2]) one.click();
    await new Promise(requestAnimationFrame);
  };
  const box = "#runs tbody input";  // one in ten
  for (let at = 0; at < all(box).length; at += 10) await use(all(box)[at]);
  for (const one of all(`button, input:not(${box}), select, summary`)) await use(one);
  return used;
}"""


def test_every_control_of_three_hundred_runs(many: tuple[list[Path], Path], browser: Any) -> None:
    page, said, asked = opened(browser, many[1], 1280)
    used = Counter(page.evaluate(USE_ALL))
    until(page, "waiting === null")
    assert said == []
    assert used["checkbox"] >= 30, used  # for runs
    assert used["button"] > 60, used  # one for each line
    assert {"range", "search", "select-one", "summary"} < set(used), used
    assert [one for one in asked if not one.startswith("blob:")] == [page.url]


def test_columns_are_kept_once_and_rounded() -> None:
    pool = Pool()
    assert pool.places({"a": [1, 2.0, math.nan], "b": [0.123456789, 1e30]}) == {"a": 0, "b": 1}
    assert [pool.place([1, 2, math.inf]), pool.place([12_345_678])] == [0, 2]
    assert pool.columns == [[1, 2, None], [0.123457, 1e30], [12_345_678]]
    assert thinned(3) == [0, 1, 2]
    rows = thinned(10_000)
    assert (len(rows), rows[0], rows[-1]) == (MOST_POINTS, 0, 9_999)
    text = "σ" * 1000
    assert len(packed(text)) < 100
    assert unpacked(f'<script type="text/plain" id="x">{packed(text)}</script>', "x") == text


def long_runs(folder: Path, count: int) -> list[Any]:
    """Return two runs with so many rows, of which single ones have the smallest and the largest values."""
    data = {
        "name": "long", "iterations": 2, "data": {"name": "digits"}, "model": {"hidden": [4]}, "backend": "numpy",
        "clients": {"count": 2, "batch_size": 2}, "server": {"name": "asgd", "lr": 0.1}, "sweep": {"seed": [0, 1]},
    }  # fmt: skip
    runs: list[Any] = list(fredsim.sweep(data, out=folder / "long"))
    for number, run in enumerate(runs):
        frame = pd.DataFrame({name: np.resize(run.metrics[name], count) for name in run.metrics})
        frame["iteration"] = frame["timestamp"] = np.arange(count)
        frame["validation_error"] = 0.5 + 0.001 * np.sin(np.arange(count))
        frame.loc[count // 3 + number, "validation_error"] = 0.9
        frame.loc[count // 2, "validation_error"] = 0.125 + number / 8
        frame.loc[5, "validation_error"] = 0.25
        cells = run.cells
        run.__dict__["metrics"], run.__dict__["cells"] = frame, [cells[row % len(cells)] for row in range(count)]
    return runs


def test_long_curves_keep_their_extremes(tmp_path: Path) -> None:
    count = 50_000
    runs = long_runs(tmp_path, count)
    (figure,) = curves(group(runs, None, None))
    low, high, middle = ({axis: trace[axis] for axis in "xy"} for trace in figure["data"])
    for trace in (low, high, middle):
        at, values = trace["x"]["iterations"].tolist(), trace["y"]["validation_error"].tolist()
        assert (at[0], at[-1], at) == (0, count - 1, sorted({*at}))
        assert len(at) == len(values) == len(trace["x"]["bytes"]) < 4_000
        assert max(np.diff(at)) <= count // 100
        assert dict(zip(at, values, strict=True))[5] == 0.25  # near the beginning
    columns = np.array([run.metrics["validation_error"] for run in runs])
    for number, run in enumerate(runs):  # by itself, too
        curve = run_curve(run, ["iterations"], ["validation_error", "train_loss"])
        shown = dict(zip(curve["x"]["iterations"], curve["y"]["validation_error"], strict=True))
        assert (shown[count // 3 + number], shown[count // 2], shown[count - 1]) == (
            0.9,
            columns[number].min(),
            columns[number][-1],
        )
        assert len(shown) < 2 * MOST_POINTS
    assert low["y"]["validation_error"].min() == columns.min() == 0.125
    assert high["y"]["validation_error"].max() == columns.max() == 0.9
    assert middle["y"]["validation_error"].min() == np.median(columns, axis=0).min() == 0.1875
    html = html_of(runs, tmp_path)
    assert len(html) < 50_000
    width, height = map(int, re.findall('svg width="(.*?)" height="(.*?)"', html)[0])
    texts = [(int(x), int(y)) for x, y in re.findall(' x="(.*?)" y="(.*?)"', html)]
    assert len(texts) == 4
    assert all(0 <= x <= width and 10 <= y <= height for x, y in texts)  # letters of 10 pixels are within the picture
    for points in re.findall('points="([^"]*)"', html):
        places = [tuple(map(float, point.split(","))) for point in points.split()]
        assert (places[0][0], places[-1][0]) == (50, 410)  # the ends of the axis
        assert (f"{min(y for _, y in places):.1f}", len(places) < 2_000) == ("10.0", True)  # its top
    assert "more</p>" not in html
    for run in runs:
        run.metrics.loc[[5, 9], "validation_error"] = 0.0, math.inf  # an axis from 0 is linear; no place is at infinity
    html = html_of(runs * 11, tmp_path)
    assert (html.count("<tr>"), html.count("<p>… and 2 more</p>")) == (1 + 20, 1)
    assert "<p>validation error against iterations</p>" in html
    for points in re.findall('points="([^"]*)"', html):
        heights = [float(point.partition(",")[2]) for point in points.split()]
        assert (heights[0], min(heights), max(heights)) == (50, 10, 100)  # of 0.5, 0.9 and 0


def test_which_rows_of_long_columns_are_kept() -> None:
    rng = np.random.default_rng(0)
    for count, parts_ in ((0, 10), (7, 10), (100, 10), (101, 10), (5000, 3), (4999, 40)):
        one, other = rng.normal(size=count), rng.integers(0, 2, count).astype(float)
        one[count // 2 :] = math.nan
        rows = outlined([one, other, np.full(count, math.nan)], parts_)
        assert rows.tolist() == sorted({*rows.tolist()})
        if count <= 10 * parts_:
            assert rows.tolist() == list(range(count))
            continue
        assert count // 2 in rows  # where the gap begins
        assert {0, count // 2 - 1, count - 1, np.nanargmin(one), np.nanargmax(one)} <= {*rows.tolist()}
        assert len(rows) <= 1.5 * parts_ * 5 + 10
        assert max(np.diff(rows)) <= count / parts_ + 1


class _Run:
    """What the verdict asks of a run, which ended with this error at its last row."""

    timed = by_the_clock = larger = False
    summary: ClassVar = {"status": "finished"}

    def __init__(self, value: float, diverged: bool = False, *, count: int = 4, end: int = 100, **config: Any) -> None:
        self.value, self.has_diverged = value, diverged
        self.metrics = pd.DataFrame({"validation_error": [0.9, value], "iteration": [0, end]})
        self.outcome = {"test_error": value}
        self.config = {"server": {"name": "asgd"}, "clients": {"count": count}, "data": {"name": "digits"}} | config

    def larger_is_better(self, _: str) -> bool:
        return self.larger

    def final(self, _: str) -> float:
        return self.value

    def first_row(self, column: str, value: float) -> pd.DataFrame:
        return self.metrics[self.metrics[column] <= value].iloc[:1]


@pytest.fixture
def _by_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of such runs are compared by their errors."""
    monkeypatch.setattr(winner, "default_y", lambda _: "validation_error")


def panel(title: str = "", **lines: list[_Run]) -> Panel:
    runs: dict[str, Any] = dict(lines)
    return Panel(title, [Line(name, "#000000", "-", runs[name]) for name in runs])


def panels(**lines: list[float]) -> list[Panel]:
    return [panel("", **{name: [_Run(value, math.isinf(value)) for value in lines[name]] for name in lines})]


@pytest.mark.usefixtures("_by_error")
@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ({"b": [0.3] * 3, "a": [0.1, 0.2, 0.15]}, "a won: its final validation error is 0.1500 (median of 3 runs, "
         "0.1000 to 0.2000), the smallest of 2. Next is b, 0.3000. "
         "It is ahead in all 9 pairs of runs, as by chance alone once in 20."),
        ({"a": [0.1, 0.5, 0.2], "b": [0.3, 0.4, 0.15]},
         "It is ahead in 5 of 9 pairs of runs, so chance may have decided."),
        ({"a": [0.1, 0.35], "b": [0.2, 0.3, 0.4, 0.5, 0.6]},
         "It is ahead in 8 of 10 pairs of runs, so chance may have decided."),
        ({"a": [0.1, 0.2], "b": [0.3, 0.4, 0.5, 0.6]},
         "It is ahead in all 8 pairs of runs, as by chance alone once in 15."),
        ({"a": [0.1], "b": [0.3]}, "With one run of each, chance may have decided: only more seeds would tell."),
        ({"a": [0.1, 0.2], "b": [0.3]}, "It is ahead in 2 of 2 comparisons; with one run on a side, chance may"),
        ({"a": [0.125, 0.375], "b": [0.25, 0.25], "c": [1]}, "A tie: a and b have the same final validation error, 0."),
        ({"a": [0.25], "b": [0.25], "c": [0.25], "d": [0.25]}, "A tie: a and b and c (and 1 more) have the same final "
         "validation error, 0.2500 (one run), the smallest of 4."),
        ({"a": [0.01, math.inf, math.inf], "b": [0.3, 0.4, 0.5]}, "b won: its final"),
        ({"a": [0.01, 0.02, math.inf], "b": [0.3, 0.4, 0.5]}, "(median of 3 runs, from 0.01000, and some diverged)"),
        ({"a": [math.inf], "b": [math.inf]},
         "No line has a final validation error: half of the runs or more diverged, or have none."),
        ({"a": [0.1, 0.2, 0.3]}, "a: final validation error 0.2000 (median of 3 runs, 0.1000 to 0.3000)."),
    ],
)  # fmt: skip
def test_who_won(lines: dict[str, list[float]], says: str) -> None:
    assert says in winner.verdict(panels(**lines))
    rows = winner.winner_table(panels(**lines))[0].rows
    assert len(rows) == len(lines)
    finals = [row[next(key for key in row if key.startswith("final"))] for row in rows]
    assert finals == sorted(finals, key=lambda one: math.inf if one is None else one)
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in lines.items()}
    for row in rows:
        ends = finite[row["line"]] if len(lines[row["line"]]) > 1 else []
        assert [row.get("smallest"), row.get("largest")] == ([min(ends), max(ends)] if ends else [None, None])


@pytest.mark.usefixtures("_by_error")
def test_who_won_where_more_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest median, in which a run that diverged counts as −∞."""
    monkeypatch.setattr(_Run, "larger", True)
    found = panels(a=[0.3, 0.4, 0.6], b=[0.9, 0.8, math.inf])
    assert winner.verdict(found) == (
        "b won: its final validation error is 0.8000 (median of 3 runs, up to 0.9000, and some diverged), the largest "
        "of 2. Next is a, 0.4000. It is ahead in 6 of 9 pairs of runs, so chance may have decided."
    )
    assert [row["line"] for row in winner.winner_table(found)[0].rows] == ["b", "a"]


@pytest.mark.usefixtures("_by_error")
@pytest.mark.parametrize(
    ("lines", "won"),
    [
        ({"b": [0.25], "a": [0.125], "c": [0.125]}, ["a", "c"]),
        ({"a": [0.125, 0.375], "b": [0.5], "c": [0.25, 0.25, 0.75]}, ["a", "c"]),
        ({"a": [0.3], "b": [0.2]}, ["b"]),
        ({"a": [math.inf], "b": [math.inf]}, []),
    ],
)
def test_all_lines_of_a_tie_won(lines: dict[str, list[float]], won: list[str]) -> None:
    assert [one.line.label for one in winner.winners(panels(**lines))] == won
    rows = re.findall(r'<tr( class="won")?><td class="number">\d+</td><td>(\w)', parts.winner(panels(**lines)))
    assert len(rows) == len(lines)
    assert [name for bold, name in rows if bold] == won


SYNC: dict[str, Any] = {"server": {"name": "sync"}}
GLYPHS: dict[str, Any] = {"data": {"name": "glyphs"}}
GOAL: dict[str, Any] = {"until": {"validation_error": 0.05}}


def ending(*ends: int | None) -> list[_Run]:
    """Return runs that came to their goal after so many iterations, or not."""
    return [_Run(0.06 if end is None else 0.05, end=end or 900, **GOAL) for end in ends]


@pytest.mark.usefixtures("_by_error")
@pytest.mark.parametrize(
    ("found", "says", "places", "bold"),
    [
        ([panel(s=[_Run(0.1, **SYNC)], a=[_Run(0.3)], b=[_Run(0.4)], t=[_Run(0.2, **SYNC)])],
         ["a won: its final validation error is 0.3000 (one run), the smallest of 2. Next is b, 0.4000.",
          "Not compared and 1 more: s (no staleness), 0.1000."],
         [(1, "a"), (2, "b"), ("reference", "s")], [0]),
        ([panel(one=[_Run(0.1, count=1)], a=[_Run(0.4, count=8)], b=[_Run(0.3, count=8)])],
         ["b won: ", "the smallest of 2 at λ = 8.", "Not compared: one (λ = 1), 0.1000."],
         [(1, "b"), (2, "a"), ("reference", "one")], [0]),
        ([panel("µ = 1", a=[_Run(0.5)], b=[_Run(0.6)], c=[_Run(0.7)]), panel("µ = 2", a=[_Run(0.1)], b=[_Run(0.1)])],
         ["Ahead by the final validation error: a in 2 of 2 panels, b in 1 (1 tie). With one run of each, chance"],
         [(1, "a, µ = 1"), (2, "b, µ = 1"), (1, "a, µ = 2"), (1, "b, µ = 2")], [0, 2, 3]),
        ([panel("µ = 1", a=[_Run(0.5)], b=[_Run(0.6)]), panel("µ = 2", a=[_Run(0.1)])],
         ["a, µ = 1 won: its final validation error is 0.5000 (one run), the smallest of 2. Next is b, µ = 1, 0.6000."],
         [(1, "a, µ = 1"), (2, "b, µ = 1"), (None, "a, µ = 2")], [0]),
        ([panel("λ = 1", a=[_Run(0.1, count=1)], b=[_Run(0.2, count=1)]), panel("λ = 4", a=[_Run(0.4)], b=[_Run(0.3)])],
         ["b, λ = 4 won: its final validation error is 0.3000 (one run), the smallest of 2. Next is a, λ = 4, 0.4000."],
         [(1, "a, λ = 1"), (2, "b, λ = 1"), (1, "b, λ = 4"), (2, "a, λ = 4")], [0, 2]),
        ([panel("λ = 1", a=[_Run(0.5)]), panel("λ = 2", a=[_Run(0.1)])],
         ["No panel has two lines to compare by the final validation error."], [(0, "a, λ = 1"), (0, "a, λ = 2")], []),
        ([panel(a=[_Run(0.5)], b=[_Run(0.6)], c=[_Run(0.02, **GLYPHS)], d=[_Run(0.01, **GLYPHS)])],
         ["Ahead by the final validation error: a in 1 of 2 cases, d in 1."], [(1, "a"), (2, "b"), (1, "d"), (2, "c")],
         [0, 2]),
        ([panel(a=ending(400, 300, 350), b=ending(200, None, None), c=ending(310, None, 360))],
         ["a won: its number of iterations until the validation error is 0.05 is 350 (median of 3 runs, 300 to 400), "
          "the smallest of 3. Next is c, 360. It is ahead in 6 of 9 pairs of runs, so chance may have decided."],
         [(1, "a"), (2, "c"), (3, "b")], [0]),
        ([panel(a=ending(400), b=ending(None))],
         ["Next is b, of which half or more did not get there."], [(1, "a"), (2, "b")], [0]),
        ([panel(a=ending(None), b=[_Run(0.055, **GOAL)])], ["b won: its final validation error is 0.05500"],
         [(1, "b"), (2, "a")], [0]),
        ([panel(a=[_Run(0.1, iterations=100)], b=[_Run(0.05, iterations=400)])],
         ["b won", "only more seeds would tell. The runs that are compared have different lengths."],
         [(1, "b"), (2, "a")], [0]),
    ],
)  # fmt: skip
def test_only_like_is_compared(
    found: list[Panel], says: list[str], places: list[tuple[Any, str]], bold: list[int]
) -> None:
    """Within a panel, on the same data, as figures do; and runs with a goal by when they reach it."""
    text = winner.verdict(found)
    for part in says:
        assert part in text
    assert ("different lengths" in text) == ("different lengths" in says[-1])
    table, won = winner.winner_table(found)
    assert [(row.get("", 0), row["line"]) for row in table.rows] == places
    assert won == bold
    assert [one.name for one in winner.winners(found)] == [table.rows[at]["line"] for at in won]


def test_a_report_and_a_figure_name_the_same_winners(small_yaml: Path) -> None:
    sweep = "sweep={server.name: [asgd, sasgd, sync], clients.batch_size: [1, 8]}"
    runs = list(fredsim.sweep(small_yaml, [sweep, "iterations=40"]))
    ahead = plot(runs, Path("x.png")).answer.partition(": ")[2]
    assert " of 2 panels" in ahead
    assert winner.verdict(group(runs, None, None)).startswith(f"Ahead by the final validation error: {ahead}. ")


@pytest.mark.parametrize(
    ("span", "linear", "log"),
    [
        ((0.5, 2.0, 0.5), False, False), ((0.5, 6.0, 0.5), False, True), ((0.0, 6.0, 0.5), False, True),
        ((-1.0, 6.0, 0.5), False, False), ((0.5, 6.0, 0.5), True, False), (None, False, False),
    ],
)  # fmt: skip
def test_the_controls_of_curves(span: tuple[float, float, float] | None, linear: bool, log: bool) -> None:
    """Metrics come after fredsim's own columns; an axis is logarithmic first if positive values span a factor of 5."""
    figure: Any = {"panel": "", "data": [], "y": {"right": {"title": "right", "range": span}}}
    section = Section(
        "curves", "Curves", [figure], "", Table([{"line": "a"}]), x=["iterations"],
        y=["right", "validation_error", "hit"], linear=linear,
    )  # fmt: skip
    page = parts.section_html(section, 1, log=False)
    assert re.findall(r'name="y" value="(\w+)"( checked)?', page) == [
        ("validation_error", ""), ("right", " checked"), ("hit", ""),
    ]  # fmt: skip
    assert ('name="log" checked' in page) == log
    assert 'name="bands"' not in page
    figure["data"].append({"meta": {"is": "band"}})
    assert 'name="bands" checked' in parts.section_html(section, 1, log=False)


def test_the_last_bar_of_staleness_is_of_what_is_within_it() -> None:
    """The share that is shown is 99.9 %: of 10,000 pushes, the nine that were staler than 20 are in no bar."""
    counts = {3: 9987, 20: 4, 21: 8, 500: 1}
    run: Any = SimpleNamespace(staleness=pd.DataFrame({"staleness": list(counts), "count": list(counts.values())}))
    (figure,) = staleness([Panel("", [Line("a", "#000000", "-", [run])])])
    (trace,) = figure["data"]
    bars = dict(zip((trace["x"] + 0.5).tolist(), trace["y"], strict=True))
    assert {at: share for at, share in bars.items() if share} == {3: 0.9987, 20: 0.0004}
    assert max(bars) == 21  # where the last bar ends


def test_a_server_that_applied_nothing_has_no_staleness() -> None:
    """Its bars are empty, beside those of others."""
    tables = [pd.DataFrame({"staleness": found, "count": found}) for found in ([], [1, 2])]
    lines = [Line("a", "#000000", "-", [SimpleNamespace(staleness=table)]) for table in tables]  # type: ignore[list-item]
    (figure,) = staleness([Panel("", lines)])
    assert [sum(trace["y"]) for trace in figure["data"]] == [0, 1]


@pytest.mark.usefixtures("_by_error")
def test_in_how_many_pairs_the_winner_is_ahead() -> None:
    rows = winner.winner_table(panels(a=[0.25], b=[0.25], c=[0.5], d=[0.75, 0.25]))[0].rows
    assert [row.get("winner ahead") for row in rows] == [None, "equal", "1 of 1", "1.5 of 2"]


def test_the_table_has_only_what_differs(small_yaml: Path, digits_experiment: dict[str, Any], command: Command) -> None:
    """First what the sweep varies; not what follows from it, such as another server's hyper-parameters."""
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    sweep = {"server": [{"name": "asgd", "lr": 0.1}, {"name": "fasgd", "lr": 0.01, "gamma": 0.8}], "seed": [0, 1]}
    small_yaml.write_text(dump_yaml(digits_experiment | {"sweep": sweep}), encoding="utf-8")
    assert command("run", small_yaml, "--quiet", "--out", "out") == (0, "", "")
    assert command("report", "out", "-o", "report.html")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    table = data_in(page)["table"]
    kinds = {column["name"]: column["kind"] for column in table["columns"]}
    assert list(kinds)[:4] == ["run", "server.name", "server.lr", "seed"]
    assert [name for name, kind in kinds.items() if kind in {"own", "key"}] == ["server.name", "server.lr", "seed"]
    assert table["shared"]["iterations"] == 50
    assert [row["server.lr"] for row in rows_in(page)] == [0.1, 0.1, 0.01, 0.01]
    words = ("sweep=null", "iterations=20", "clients.current=true", "--quiet", "--out", "other")
    assert command("run", small_yaml, *words) == (0, "", "")
    assert command("report", "out", "other", "-o", "report.html")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    columns = data_in(page)["table"]["columns"]
    assert {"name": "iterations", "kind": "key", "numeric": True, "measure": False} in columns
    assert [row["clients.current"] for row in rows_in(page)] == [*["false"] * 4, "true"]  # also what is a default


def test_each_column_has_its_own_name(small_yaml: Path) -> None:
    """Iterations are a key of runs that differ in them, and how many were done."""

    def names() -> list[str]:
        return [column["name"] for column in run_table(runs, [], [], several=True)["columns"]]

    runs: list[Any] = [fredsim.run(small_yaml, [f"iterations={count}"], out=str(count)) for count in (10, 20)]
    assert [name for name in names() if "iterations" in name] == ["iterations"]
    assert len({*names()}) == len(names())
    runs[1].summary["iterations"] = 15  # as of one that stopped at its goal
    assert [name for name in names() if "iterations" in name] == ["iterations", "iterations done"]
    runs[1].summary["iterations"] = 10
    table = run_table(runs, [], [], several=True)
    assert (table["shared"]["iterations done"], [*table["shared"]].count("iterations")) == (10, 0)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("theme", "ground", "lines"),
    [("light", "#FFFFFF", (*PALETTE, *SEQUENCE)), ("dark", DARK_GROUND, (*DARK_PALETTE, *DARK_SEQUENCE))],
)
def test_contrasts(theme: str, ground: str, lines: tuple[str, ...]) -> None:
    """WCAG 2.2: 4.5:1 for text on each of its grounds, 3:1 for lines and the edges of controls."""
    css = (Path(winner.__file__).parent / "assets/page.css").read_text(encoding="utf-8")
    blocks = {
        scheme: body
        for body in re.findall(r":root[^{]*\{([^}]*)\}", css)
        for scheme in re.findall(r"scheme: (\w+)", body)
    }
    names = dict(re.findall(r"--(\w+): (#[0-9A-F]{6})", blocks[theme]))
    assert names["ground"] == ground
    text, grounds = {"ink", "quiet", "accent", "wrong"}, {"ground", "raised", "best"}
    edges, faint = {"axis", "edge"}, {"rule", "grid"}
    assert {*names} == text | grounds | edges | faint
    used = {*re.findall(r"(?<![-\w])color: var\(--(\w+)\)", css), *re.findall(r"fill: var\(--(\w+)\)", css)}
    assert used <= text
    assert {*re.findall(r"background: var\(--(\w+)\)", css)} <= grounds
    for name in text:
        for on in grounds - (set() if name in {"ink", "quiet"} else {"best", "raised"}):
            assert _contrast(names[name], names[on]) >= 4.5, (name, on)
    for colour in (*lines, *(names[name] for name in edges)):
        assert _contrast(colour, ground) >= 3, colour


def test_plotly_is_parsed_once() -> None:
    head, tail = (
        "/** plotly.js */\n(\n function(root, factory) {\n} (typeof self, ",
        "() => {\nlet a = (1);\nreturn a;\n}",
    )
    assert parsed_once(f"{head}{tail}));\n") == f"{head}({tail})));\n"
    for other in ("", "window.Plotly = {};", f"{tail})"):
        assert parsed_once(other) == other
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    from plotly.offline import get_plotlyjs

    program = get_plotlyjs()
    assert len(parsed_once(program)) == len(program) + 2
