"""When lines reach a value, as a heat map, and figures of what `select` chose alone."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.runs.folder.results import Results
from fredsim.show import plots
from fredsim.show.plots.kinds.matrix import _wrapped
from fredsim.show.plots.styles import PLAIN

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

WORDS = (
    "dispatcher.name=clock", "evaluation.every=10", "iterations=300",
    "select={best: seconds_to, error: 0.4, over: server.lr}",
    "sweep={dispatcher.compute.seconds: [1.0, {name: power}], server: [{name: asgd}, {name: sync}, {name: sasgd}], "
    "server.lr: [0.001, 0.2], seed: [0, 1, 2]}",
)  # fmt: skip
HOW = ("--by", "server.name", "--panel", "dispatcher.compute.seconds")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sweep, which is done once."""
    folder = tmp_path_factory.mktemp("matrix") / "out"
    experiment = {"name": "small", "data": {"name": "digits"}, "model": {"hidden": [16]}}
    fredsim.run(experiment | {"clients": {"count": 8, "batch_size": 3}}, WORDS, out=folder)
    return folder


@pytest.fixture
def swept(whole: Path, small_yaml: Path) -> Results:
    """A copy of it in the current folder."""
    del small_yaml  # the fixture has changed the current folder
    shutil.copytree(whole, "out")
    results = fredsim.load("out")
    assert isinstance(results, Results)
    return results


def test_seconds_and_times_the_best(swept: Results, drawn: list[Figure]) -> None:
    when: dict[tuple[str, str, float], list[float]] = {}
    for run in swept:
        rows = run.metrics[run.metrics["validation_error"] <= 0.4]["time"]
        seconds, server = run.config["dispatcher"]["compute"]["seconds"], run.config["server"]
        column = "seconds 1" if seconds == 1.0 else "seconds power"
        when.setdefault((column, server["name"], server["lr"]), []).append(rows.iloc[0] if len(rows) else math.inf)
    options = plots.Options(by=["server.name"], panel=["dispatcher.compute.seconds"], reach=[0.4], best=True)
    drawing = plots.plot(list(swept), Path("m.png"), "matrix", options)
    axes, bar = drawn[0].axes
    assert bar.get_xlabel() == "times the best of the column"
    texts = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text() for t in axes.texts}
    columns, servers = (
        [label.get_text() for label in labels] for labels in (axes.get_xticklabels(), axes.get_yticklabels())
    )
    assert (columns, sorted(servers)) == (["compute time 1 s", "power-law compute time"], ["ASGD", "SASGD", "Sync"])
    columns = ["seconds 1", "seconds power"]  # as the table has them
    middles = {key: median(values) for key, values in when.items()}
    kept = {}
    for row in swept.best.to_dict("records"):
        column = "seconds 1" if row["dispatcher.compute.seconds"] == 1.0 else "seconds power"
        kept[column, row["server.name"]] = middles[column, row["server.name"], row["server.lr"]]
    assert sum(map(math.isfinite, kept.values())) >= 4
    ranks = [
        sum(sum(kept[c, other.lower()] < kept[c, name.lower()] for other in servers) for c in columns)
        for name in servers
        if all(math.isfinite(kept[c, name.lower()]) for c in columns)
    ]
    assert ranks == sorted(ranks)
    for (x, y), text in texts.items():
        value = kept[columns[x], servers[y].lower()]
        assert text == ("never" if math.isinf(value) else f"{value:.3g}")
    assert "only so many runs" not in drawing.caption
    for found in drawing.tables[0].rows:
        column = found["panel"]
        value, best = kept[column, found["line"].lower()], min(v for (c, _), v in kept.items() if c == column)
        assert found["seconds to 0.4"] == (None if math.isinf(value) else value)
        assert found["times the best"] == (None if math.isinf(value) else pytest.approx(value / best))
        assert found["runs"] == 3


def test_some_runs_that_get_there_are_no_never(swept: Results, drawn: list[Figure]) -> None:
    """Of each line's three runs, 0, 1, 2 or 3 reach the error."""
    there: dict[tuple[str, str, float], int] = {}
    runs = list(swept)
    for number, run in enumerate(runs):
        server, seconds = run.config["server"], run.config["dispatcher"]["compute"]["seconds"]
        key = "power" if seconds != 1.0 else "constant", server["name"], server["lr"]
        reached = run.config["seed"] < number // 3 % 4
        run.metrics["validation_error"] = 0.2 if reached else 0.8
        there[key] = there.get(key, 0) + reached
    assert {*there.values()} == {0, 1, 2, 3}
    options = plots.Options(by=["server.name", "server.lr"], panel=["dispatcher.compute.seconds"], reach=[0.4])
    drawing = plots.plot(runs, Path("m.png"), "matrix", options)
    texts = sorted(text.get_text() for text in drawn[0].axes[0].texts)
    finite = [text for text in texts if text not in {"never", "1 of 3"}]
    counts = [*there.values()]
    assert (texts.count("never"), texts.count("1 of 3"), len(finite)) == (
        counts.count(0), counts.count(1), counts.count(2) + counts.count(3)
    )  # fmt: skip
    assert "1 of 3: only so many runs reach it." in drawing.caption


def test_how_lines_ended(swept: Results, drawn: list[Figure]) -> None:
    """Medians, in which a run that diverged counts as infinite; nothing is so many times an error of 0."""
    runs = list(swept)
    ends: dict[tuple[str, str], list[float]] = {}
    lines = {"asgd": 0.0, "sync": 0.5, "sasgd": 0.25}  # by how much the errors of its runs are changed
    for number, run in enumerate(runs):
        name, seconds = run.config["server"]["name"], run.config["dispatcher"]["compute"]["seconds"]
        value = 0.0 if name == "asgd" else lines[name] + number / 100
        run.metrics.loc[run.metrics.index[-1], "validation_error"] = value
        run.summary["validation_error"] = value
        if name == "sasgd" and seconds == 1.0:
            run.summary["status"] = "diverged"
            value = math.inf
        ends.setdefault(("seconds 1" if seconds == 1.0 else "seconds power", name), []).append(value)
    options = plots.Options(by=["server.name"], panel=["dispatcher.compute.seconds"])
    drawing = plots.plot(runs, Path("m.png"), "matrix", options)
    assert drawing.question == "Which server has the lowest validation error at the end?"
    for row in drawing.tables[0].rows:
        values = ends[row["panel"], row["line"].lower()]
        middle = median(values)
        assert row["final validation_error"] == (pytest.approx(middle) if math.isfinite(middle) else None)
        assert (row["runs"], row["diverged"]) == (6, values.count(math.inf))
        assert row["times the best"] == (1.0 if middle == 0 else None)
        if math.isfinite(middle):
            assert (row["smallest"], row["largest"]) == (pytest.approx(min(values)), pytest.approx(max(values)))
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ASGD", "SASGD", "Sync"]  # which is not compared
    alone = [run for run in runs if run.config["dispatcher"]["compute"]["seconds"] == 1.0]
    some = [run for run in runs[::-1] if run in alone or run.config["server"]["name"] != "sync"]
    plots.plot(some, Path("m.png"), "matrix", replace(options, where={"server.name": [*lines]}))  # in its order
    says = [" ".join(shown.axes[0].get_xlabel().split()) for shown in drawn]
    assert ["rows: most wins first" in text for text in says] == [True, False]
    assert ["empty: not run" in text for text in says] == [False, True]
    assert not any(line.get_visible() for line in axes.get_xgridlines() + axes.get_ygridlines())
    assert sorted(text.get_text() for text in axes.texts).count("diverged") == 1
    assert [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"].count("0") == 2
    assert plots.plot(alone, Path("m.png"), "matrix", options).answer.startswith("Ahead: ASGD (0); ")


def test_only_what_was_chosen(swept: Results, command: Command) -> None:
    chosen = [(row["server.name"], row["server.lr"]) for row in swept.best.to_dict("records")]
    assert len(swept.chosen) == 18
    found = {name: fredsim.load(swept.folder / name) for name in swept.chosen}
    assert {(run.config["server"]["name"], run.config["server"]["lr"]) for run in found.values()} == {*chosen}  # type: ignore[union-attr]
    code, output, _ = command("plot", "out", "--best", *HOW, "-o", "b.png")
    assert code == 0
    assert [line.split()[-5] for line in output.splitlines() if "ASGD" in line][:1] == ["3"]  # runs of a line


def test_only_runs_that_have_what_is_asked_for(swept: Results, command: Command) -> None:
    every = list(swept)
    hidden = every[0].config["model"]["hidden"]
    for where, runs in (
        ({"server.name": "asgd"}, {"asgd": 12}),
        ({"server.name": ["asgd", "sasgd"], "seed": 1}, {"asgd": 4, "sasgd": 4}),
        ({"model.hidden": hidden, "server.lr": 0.2, "seed": [0, 2]}, {"asgd": 4, "sync": 4, "sasgd": 4}),
    ):
        options = plots.Options(by=["server.name"], where=where)
        (table,) = plots.plot(every, Path("w.png"), options=options).tables
        assert {row["line"].lower(): row["runs"] for row in table.rows} == runs
    words = ("plot", swept.folder, "--where", "server.name=asgd", "--where", "seed=0", "--where", "seed=2")
    code, output, _ = command(*words, "--by", "server.name", "-o", "w.png")
    assert code == 0
    assert output.splitlines()[1].split()[:2] == ["ASGD", "8"]


def test_names_leave_out_what_is_not_there(small_yaml: Path) -> None:
    """But where nothing else is left they say so; of a clock they say which part has a distribution."""
    noise = "[none, {name: gamma, cv: 0.1}]"
    seconds = "[1.0, {name: gamma, cv: 0.6}]"
    servers = "[{name: sync, lr: 0.1}, {name: sync, lr: 0.1, aggregate: 2}, {name: asgd, lr: 0.1}]"
    clock = f"dispatcher.compute.seconds: {seconds}, dispatcher.compute.noise: {noise}"
    words = ["dispatcher.name=clock", "iterations=30", f"sweep={{{clock}, server: {servers}}}"]
    results = list(fredsim.sweep(small_yaml, words, out="out"))
    by, parts = ["server.name", "server.aggregate"], ["dispatcher.compute.seconds", "dispatcher.compute.noise"]
    (table,) = plots.plot(results, Path("n.png"), options=plots.Options(by=by, panel=parts)).tables
    panels = ["seconds 1", "seconds 1, noise gamma", "seconds gamma", "seconds gamma, noise gamma"]
    lines = ["Sync", "Sync, aggregate 2", "ASGD"]
    assert [(row["panel"], row["line"]) for row in table.rows] == [(panel, line) for panel in panels for line in lines]
    (table,) = plots.plot(results, Path("n.png"), options=plots.Options(by=parts[1:], panel=by[1:])).tables
    lines = ["no noise", "noise gamma"]
    panels = ["aggregate all", "aggregate 2", "ASGD"]
    assert [(row["panel"], row["line"]) for row in table.rows] == [(panel, line) for panel in panels for line in lines]


def test_what_is_refused(swept: Results, refused: Refused) -> None:
    ends = ("plot", swept.folder, "--kind", "matrix")
    refused(*ends, "--x", "updates", says=("--x: is 'updates'; a matrix without reach shows how runs ended",))
    refused(*ends, "--y", "pushes", says=("y is pushes, of which less need not be better; give a matrix `reach`, or",))
    words = ("plot", swept.folder, "--kind", "matrix", "--reach", 0.4)
    refused(*words, "--reach", 0.3, says=("--reach: is given 2 times",))
    refused(*words, "--x", "pushes", says=("--x: is 'pushes'",))
    refused(*words, "--log", says=("--log: is given; it goes with figures of the other kinds",))
    other = next(run.folder for run in swept if run.folder.name not in swept.chosen)
    refused("plot", other, "--best", says=(f"--best: `select` chose none of {other}",))
    for where, says in (
        ("server.lr=0.3", "--where: server.lr is 0.3 in no run (known: 0.001, 0.2)"),
        ("server.lrr=0.2", "--where: no run has a key 'server.lrr'; did you mean 'server.lr'?"),
        ("server", "override 'server': must have the form KEY=VALUE"),
    ):
        refused("plot", swept.folder, "--where", where, says=(says,))
    figures = "figures=[{name: a, where: {server.nam: asgd}}]"
    refused("run", "small.yaml", figures, says=("figures.0.where: no run has a key 'server.nam'; did you mean",))
    (swept.folder / "best.csv").unlink()
    refused(*words, "--best", says=("best.csv: is not there; give the experiment `select`",))


def test_rows_that_are_numbers_stay_in_their_order(swept: Results, drawn: list[Figure]) -> None:
    runs = [run for run in swept if run.config["server"]["name"] == "asgd"]
    rates = sorted({run.config["server"]["lr"] for run in runs})
    assert len(rates) > 1
    for run in runs:  # so that the largest is the best
        run.metrics["validation_error"] = run.summary["validation_error"] = 0.9 - run.config["server"]["lr"]
    of_one_clock = [run for run in runs if run.config["dispatcher"]["compute"]["seconds"] == 1.0]
    for some, by, reach in ((runs, ["server.lr"], [0.8]), (of_one_clock, None, [])):
        options = plots.Options(by=by, panel=["dispatcher.compute.seconds"], reach=reach)
        plots.plot(some, Path("m.png"), "matrix", options)
        assert [label.get_text().rpartition(" ")[2] for label in drawn[-1].axes[0].get_yticklabels()] == [
            f"{rate:g}" for rate in rates
        ]


def test_a_label_takes_as_few_lines_as_it_needs() -> None:
    """Lines end where parts do, and a part begins a line only if it does not fit into the last one."""
    label = "in a cell: loss; less is better; bold: the best"
    assert _wrapped(label, "; ", 47, PLAIN) == label
    assert _wrapped(label, "; ", 32, PLAIN) == "in a cell: loss; less is better;\nbold: the best"
    assert _wrapped(label, "; ", 31, PLAIN) == "in a cell: loss;\nless is better; bold: the best"
    assert _wrapped(label, "; ", 12, PLAIN).count("\n") == 4  # parts do not fit: words are the least
