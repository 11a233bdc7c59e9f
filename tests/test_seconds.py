"""Figures, tables, reports and progress of runs with a clock, beside independent counts of simulated seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.errors import OutputError
from fredsim.runs.folder.results import Result
from fredsim.show.console import PlainConsole
from fredsim.show.plots import Options, plot
from fredsim.show.progress import LineMonitor, TableMonitor
from fredsim.simulation.record.recorder import METRICS, Row
from tests.reports import data_in

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

CLOCK = "dispatcher={name: clock, compute: {seconds: {name: gamma, cv: 0.6}, noise: {name: exponential}}}"
BY_SECONDS = ("iterations=null", "seconds=12", "evaluation={every: 0.25, unit: seconds}", CLOCK)
BY_UPDATES = ("iterations=null", "updates=10", "evaluation={every: 5, unit: updates}", "server.name=sync", CLOCK)
SEEDS = "sweep={seed: [0, 1, 2]}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps of three seeds, with rows on the clock and by iteration, which all tests here read anew."""
    folder = tmp_path_factory.mktemp("recorded")
    base = {
        "data": {"name": "digits"}, "model": {"hidden": [16]}, "clients": {"count": 3, "batch_size": 3},
        "server": {"name": "asgd", "lr": 0.1},
    }  # fmt: skip
    for name, words in (("timed", BY_SECONDS), ("counted", ("iterations=50", CLOCK, "evaluation.every=10"))):
        fredsim.run({"name": name, **base}, [*words, SEEDS], out=folder / name)
    return folder


@pytest.fixture
def timed(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """Three seeds whose rows are due on the clock, some of them without a further arrival."""
    monkeypatch.chdir(tmp_path)
    return list(fredsim.load(recorded / "timed"))  # type: ignore[arg-type]


@pytest.fixture
def counted(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """Three seeds with a clock whose rows are due every few iterations."""
    monkeypatch.chdir(tmp_path)
    return list(fredsim.load(recorded / "counted"))  # type: ignore[arg-type]


def last_rows(run: Result, y: str, x: str, at: float) -> float:
    """Return the value of y in the last row, among those that have one, whose x is at most `at`."""
    metrics = run.metrics
    places = metrics["bytes_pushed"] + metrics["bytes_fetched"] if x == "bytes" else metrics[x]
    found = [float(value) for place, value in zip(places, metrics[y], strict=True) if place <= at and value == value]
    return found[-1]


def test_rows_without_a_further_arrival_are_read(timed: list[Result]) -> None:
    assert any(run.metrics["iteration"].duplicated().any() for run in timed)
    for run in timed:
        assert run.metrics["time"].tolist() == [0.25 * n for n in range(49)]


def test_rows_at_the_same_time_are_read(small_yaml: Path, drawn: list[Figure]) -> None:
    """Clients that are equally fast arrive together; the file is refused where neither iteration nor time goes on."""
    words = ["dispatcher={name: clock}", "iterations=16", "evaluation.every=1"]
    run = fredsim.run(small_yaml, words, out="together")
    assert isinstance(run, Result)
    assert run.metrics["time"].tolist() == [0.0, *[1.0] * 8, *[2.0] * 8]
    plot([run], Path("x.svg"), options=Options(x="seconds"))
    assert drawn[0].axes[0].lines[0].get_xydata().tolist() == [  # type: ignore[union-attr]
        [time, run.metrics["validation_error"][row]] for time, row in ((0, 0), (1, 8), (2, 16))
    ]
    path = Path("together/metrics.csv")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:5], lines[4], *lines[5:]]), encoding="utf-8")
    with pytest.raises(OutputError, match=r"line 6: time is 1\.0 after 1"):
        _ = Result(Path("together")).metrics


@pytest.mark.parametrize(
    ("x", "column", "unit"), [(None, "time", 1), ("iterations", "iteration", 1), ("bytes", "bytes", 1000)]
)
@pytest.mark.parametrize("y", ["validation_error", "train_loss"])
def test_runs_meet_at_the_same_x(
    x: str | None, column: str, unit: float, y: str, timed: list[Result], drawn: list[Figure]
) -> None:
    """Their median and their band there are those of each run's last row so far, as far as all runs go."""
    drawing = plot(timed, Path("x.svg"), options=Options(x=x, y=y))
    (axes,) = drawn[0].axes
    (line,), (band,) = axes.lines, axes.collections
    ends = []
    points = set()
    for run in timed:
        metrics = run.metrics.assign(bytes=run.metrics["bytes_pushed"] + run.metrics["bytes_fetched"])
        there = metrics.loc[metrics[y].notna(), column]
        points |= set(there)
        ends.append(max(there))
    expected = sorted(point for point in points if point <= min(ends))
    assert list(line.get_xdata()) == pytest.approx([point / unit for point in expected])  # type: ignore[arg-type]
    begun = [point for point in expected if all(point >= _first(run, y, column) for run in timed)]
    values = dict(zip(expected, line.get_ydata(), strict=True))  # type: ignore[arg-type]
    for point in begun:
        assert values[point] == median(last_rows(run, y, column, point) for run in timed)
    corners = np.asarray(band.get_paths()[0].vertices)
    for point in begun:
        heights = corners[np.isclose(corners[:, 0], point / unit), 1]
        rows = [last_rows(run, y, column, point) for run in timed]
        assert (heights.min(), heights.max()) == (min(rows), max(rows))
    names = {None: "simulated time (s)", "iterations": "iteration (gradients arrived)"}
    assert axes.get_xlabel() == names.get(x, "pushed and fetched (kB)")
    assert "last row so far" in drawing.caption


def _first(run: Result, y: str, x: str) -> float:
    metrics = run.metrics.assign(bytes=run.metrics["bytes_pushed"] + run.metrics["bytes_fetched"])
    return float(metrics.loc[metrics[y].notna(), x].iloc[0])


def test_iterations_stay_the_axis_of_rows_by_iteration(counted: list[Result], drawn: list[Figure]) -> None:
    """And their times, which differ from run to run, meet where a run has a row, until the first run ends."""
    plot(counted, Path("x.svg"))
    plot(counted, Path("x.svg"), options=Options(x="seconds"))
    assert list(drawn[0].axes[0].lines[0].get_xdata()) == [0, 10, 20, 30, 40, 50]  # type: ignore[arg-type]
    (line,) = drawn[1].axes[0].lines
    end = min(run.summary["time"] for run in counted)
    times = sorted({time for run in counted for time in run.metrics["time"] if time <= end})
    assert list(line.get_xdata()) == times  # type: ignore[arg-type]
    assert list(line.get_ydata()) == [  # type: ignore[arg-type]
        median(last_rows(run, "validation_error", "time", time) for run in counted) for time in times
    ]


@pytest.mark.parametrize("y", ["validation_error", "train_loss"])
def test_a_last_row_without_a_further_iteration(y: str, small_yaml: Path, drawn: list[Figure]) -> None:
    """Of runs that end by the clock, with rows by iteration: it changes neither axis nor value."""
    words = ["dispatcher={name: clock}", "iterations=null", "seconds=2.5", "evaluation.every=8", "sweep={seed: [0, 1]}"]
    runs = list(fredsim.sweep(small_yaml, words, out="ended"))
    assert [run.metrics["iteration"].tolist() for run in runs] == [[0, 8, 16, 16]] * 2
    plot(runs, Path("x.svg"), options=Options(y=y))
    first = 1 if y == "train_loss" else 0
    assert drawn[0].axes[0].lines[0].get_xydata().tolist() == [  # type: ignore[union-attr]
        [8 * row, median(run.metrics[y][row] for run in runs)] for row in range(first, 3)
    ]


def test_a_run_that_diverged_does_not_end_the_others(counted: list[Result], drawn: list[Figure]) -> None:
    counted[0].summary["status"] = "diverged"
    vars(counted[0])["metrics"] = counted[0].metrics.head(2)
    plot(counted, Path("x.svg"), options=Options(x="seconds"))
    line, cross = drawn[0].axes[0].lines
    at, values = map(np.asarray, line.get_data())
    assert at[-1] == min(run.summary["time"] for run in counted[1:])
    assert list(cross.get_xdata()) == [counted[0].metrics["time"].iloc[-1]]  # type: ignore[arg-type]
    assert values[-1] == median(
        [math.inf, *(last_rows(run, "validation_error", "time", at[-1]) for run in counted[1:])]
    )


def test_seconds_to_an_error(timed: list[Result], counted: list[Result], small_yaml: Path) -> None:
    for runs in (timed, counted):
        for run, error in zip(runs, (0.4, 0.3, 0.2), strict=True):
            run.metrics["validation_error"] = 0.9
            run.metrics.loc[2:, "validation_error"] = error
        (row,) = plot(runs, Path("x.svg"), options=Options(reach=[0.3, 0.2])).tables[0].rows
        times = [run.metrics["time"][2] for run in runs]
        assert (row["seconds to 0.3"], row["reached 0.3"]) == (max(times[1:]), 2)
        assert (row["seconds to 0.2"], row["reached 0.2"]) == (None, 1)
    plain = fredsim.run(small_yaml, out="plain")
    assert isinstance(plain, Result)
    for kind, options in (("curves", Options(reach=[0.3])), ("ends", Options())):
        (row,) = plot([plain], Path("x.svg"), kind, options).tables[0].rows
        assert not [column for column in row if "seconds" in column]


def test_ends_against_seconds(counted: list[Result], drawn: list[Figure]) -> None:
    """In the unit that fits, in the figure alone."""
    for run in counted:
        run.metrics["time"] /= 1e3
    (row,) = plot(counted, Path("x.svg"), "ends", Options(x="seconds")).tables[0].rows
    seconds = median(run.metrics["time"].iloc[-1] for run in counted)
    assert row["seconds"] == seconds
    (axes,) = drawn[0].axes
    assert axes.get_xlabel() == "simulated time (ms)"
    assert list(axes.lines[0].get_xdata()) == [seconds / 1e-3]  # type: ignore[arg-type]


def test_seconds_need_a_clock(small_yaml: Path, command: Command, refused: Refused) -> None:
    assert command("run", small_yaml, "--quiet", "--out", "plain")[0] == 0
    for kind in ("curves", "ends"):
        says = "--x is 'seconds', and plain has no clock; give its experiment `dispatcher: {name: clock}`, or choose"
        refused("plot", "plain", "--kind", kind, "--x", "seconds", says=(says,))
    says = "figures.0.x: is 'seconds', and the dispatcher uniform has no clock; give dispatcher: {name: clock}"
    refused("run", small_yaml, "figures=[{name: a, x: seconds}]", says=(says,))
    assert command("run", small_yaml, "figures=[{name: a, x: seconds}]", CLOCK, "--out", "clock")[0] == 0
    assert Path("clock/a.png").exists()
    refused("plot", "plain", "clock", "--x", "seconds", says=("and plain has no clock",))


def test_published_seconds(timed: list[Result], drawn: list[Figure]) -> None:
    series = [{"where": {}, "points": [[3.1, 0.5], [12, 0.25]]}]
    for run in timed:
        run.config["published"] = {"source": "A paper", "x": "seconds", "y": "validation_error", "series": series}
    rows = plot(timed, Path("x.svg")).tables[1].rows
    assert [row["seconds"] for row in rows] == [3.1, 12]
    for row in rows:
        assert row["here"] == median(last_rows(run, "validation_error", "time", row["seconds"]) for run in timed)
    (row,) = plot(timed, Path("x.svg"), "ends").tables[1].rows
    assert (row["published"], row["here"]) == (0.25, rows[1]["here"])
    assert len(drawn) == 2


def test_a_report_against_seconds(timed: list[Result], recorded: Path, command: Command, small_yaml: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    assert command("report", recorded / "timed")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert '<input type="radio" name="x" value="seconds" checked>' in page
    data = data_in(page)
    assert [data["table"]["shared"]["time"]] * len(timed) == [run.summary["time"] for run in timed]
    figure = data["figures"]["curves-0"]
    assert figure["x"]["seconds"]["title"] == "simulated time (s)"
    for y in ("validation_error", "train_loss"):
        low, high, middle = (trace for trace in figure["data"] if "seconds" in trace["x"] and y in trace["y"])
        for number, at in enumerate(middle["x"]["seconds"]):
            if at >= max(_first(run, y, "time") for run in timed):
                values = sorted(last_rows(run, y, "time", at) for run in timed)
                assert [trace["y"][y][number] for trace in (low, middle, high)] == pytest.approx(values, rel=1e-5)
    assert command("run", small_yaml, "--quiet", "--out", "plain")[0] == 0
    assert command("report", "plain", recorded / "timed", "-o", "both.html")[0] == 0
    assert 'value="seconds"' not in Path("both.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [BY_SECONDS, ("evaluation.every=25", CLOCK), BY_UPDATES], ids=["seconds", "iterations", "updates"]
)
def test_progress(words: tuple[str, ...], small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done of all: simulated seconds, iterations or updates, as the experiment gives its length."""
    for module in ("LINE_SECONDS", "BAR_SECONDS"):
        monkeypatch.setattr(f"fredsim.show.progress.{module}", 0.0)
    console = PlainConsole(file=StringIO(), width=200)
    (result,) = [_followed(small_yaml, words, LineMonitor(console))]
    time, text = result.summary["time"], console.file.getvalue()  # type: ignore[attr-defined]
    if "seconds=12" in words:
        assert "second 0.25 of 12 simulated seconds, iteration " in text
        assert "second 12 of 12 simulated seconds" in text
    elif "updates=10" in words:
        assert f"update 10 of 10, iteration {result.summary['iterations']}, " in text
    else:
        assert "iteration 25 of 50 iterations, " in text
    assert f"finished after {result.summary['iterations']} iterations and {time:.6g} simulated seconds" in text
    table = TableMonitor(console)
    seen: list[tuple[float, float | None, str]] = []
    update = table.progress.update

    def updated(task: int, **fields: object) -> None:
        update(task, **fields)  # type: ignore[arg-type]
        if "rate" in fields:
            shown = table.progress.tasks[-1]
            seen.append((shown.completed, shown.total, shown.fields["done"]))

    monkeypatch.setattr(table.progress, "update", updated)
    _followed(small_yaml, words, table)
    completed, total, done = seen[-1]
    assert [one for one, *_ in seen] == sorted(one for one, *_ in seen)
    if "seconds=12" in words:
        assert total == 12
        assert 11 < completed <= 12
        assert done == f"{completed:.6g}/12 s"
    else:
        length = 10 if "updates=10" in words else 50
        assert (completed, total, done) == (length, length, f"{length}/{length}")


def test_the_rate_after_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of the iterations since this start, not of those that the checkpoint has."""
    now = [100.0]
    monkeypatch.setattr("fredsim.show.progress.time", SimpleNamespace(perf_counter=lambda: now[0]))
    counts: dict[str, Any] = {**dict.fromkeys(METRICS, 0), "validation_error": 0.5, "digest": ""}
    console = PlainConsole(file=StringIO(), width=200)
    table, lines = TableMonitor(console), LineMonitor(console)
    bar, line = table.observer(), lines.observer()
    for observer in (bar, line):
        observer.begin("x", 10**6, None)
    rates = []
    for iteration, seconds in ((900_500, 3.0), (902_500, 4.0), (903_100, 2.0)):
        now[0] += seconds
        bar.advance(iteration, iteration, 0.0)
        line.row(Row(**counts | {"iteration": iteration}))
        rates.append(table.progress.tasks[-1].fields["rate"])
    assert rates == ["", "500 it/s", "433 it/s"]  # 2,000 in 4 s, 2,600 in 6 s
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.findall(r"iteration (\d+) of 1000000 iterations, (?:(\d+) it/s, )?validation error 0.5000", text) == [
        ("900500", ""), ("902500", "500"), ("903100", "433"),
    ]  # fmt: skip
    line.begin("another", 10, None)
    line.row(Row(**counts))
    now[0] += 4
    line.row(Row(**counts | {"iteration": 8}))
    assert "iteration 8 of 10 iterations, 2 it/s, " in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_rows_of_the_live_table() -> None:
    """They have names as they are, and losses where there is no error; that of a run that failed goes."""
    console = PlainConsole(file=StringIO(), width=200, force_terminal=True)
    table = TableMonitor(console)
    table.sweep(2, 0)
    for name in ("[/a]", "[b]"):
        observer = table.observer()
        observer.begin(name, 10, None)
    with table:
        assert re.search(r"\n\[/a\] .*\n\[b\] ", re.sub(r"\x1b\[[\d;?]*\w|\r", "", console.file.getvalue()))  # type: ignore[attr-defined]
    losses: dict[str, Any] = {"validation_error": math.nan, "validation_loss": 0.25, "digest": ""}
    observer.row(Row(**dict.fromkeys(METRICS, 0) | losses))
    table.failed("[/a]", "it is dark")
    assert [(row.description, row.fields["error"]) for row in table.progress.tasks] == [
        ("all runs", "1 failed"), ("[b]", "loss 0.25"),
    ]  # fmt: skip


def _followed(path: Path, words: tuple[str, ...], monitor: LineMonitor | TableMonitor) -> Result:
    from fredsim.runs.many.runner import run_expansion
    from fredsim.runs.single.opening import open_expansion

    found = run_expansion(open_expansion(str(path), list(words)), Path("followed"), monitor=monitor)
    assert isinstance(found, Result)
    return found


def test_the_table_of_results(small_yaml: Path, command: Command) -> None:
    code, out, _ = command("run", small_yaml, *BY_SECONDS)
    assert code == 0
    header, row = out.splitlines()[:2]
    assert header.split()[:5] == ["run", "status", "iterations", "sim.", "seconds"]
    assert row.split()[3] == "12.0000"
    assert "sim. seconds" not in command("run", small_yaml, "--out", "plain")[1]
