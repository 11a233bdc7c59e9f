"""What figures are asked for, and by whom: checked before the run, drawn after it whatever becomes of one of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import fredsim
from fredsim import cli
from fredsim.config.document import dump_yaml, read_document
from fredsim.runs.folder.label_counts import label_counts
from fredsim.runs.folder.results import Result
from fredsim.show.plots import Options, plot
from fredsim.show.plots.figure import select_runs
from fredsim.show.plots.kinds import shards

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

SERVERS = "sweep={server: [{name: asgd, lr: 0.1}, {name: fasgd, lr: 0.01}], seed: [0, 1]}"
ERROR = ("error.png", "error-table.csv", "error-table.md")
BY_SERVER = "figures=[{name: servers, kind: ends, x: server.name}]"


def results_in(folder: str) -> list[Result]:
    return list(fredsim.load(folder))  # type: ignore[arg-type]


def test_servers_beside_each_other(small_yaml: Path, command: Command, drawn: list[Figure]) -> None:
    """On the x axis the server's name makes no line, and nor do its own hyper-parameters; nor do they above panels."""
    assert command("run", small_yaml, SERVERS, BY_SERVER, "--out", "out")[0] == 0
    assert command("plot", "out", "--kind", "ends", "--x", "server.name", "-o", "x.svg")[0] == 0
    finals = [run.summary["validation_error"] for run in results_in("out")]
    for figure in drawn:  # at the end of the run, too
        (axes,) = figure.axes
        (line,) = axes.lines[:1]
        assert list(line.get_ydata()) == [median(finals[:2]), median(finals[2:])]  # type: ignore[arg-type]
        assert [text.get_text() for text in axes.get_xticklabels()] == ["ASGD", "FASGD"]
    drawing = plot(results_in("out"), Path("x.svg"), options=Options(panel=["server.name"]))
    assert [axes.get_title() for axes in drawn[2].axes] == ["ASGD", "FASGD"]
    assert [drawn[2].legends, *(axes.get_legend() for axes in drawn[2].axes)] == [[], None, None]  # of one line
    assert [(row["line"], row["runs"]) for row in drawing.tables[0].rows] == [("all runs", 2)] * 2


def test_what_else_differs_makes_lines(small_yaml: Path) -> None:
    words = ["sweep={server: [{name: asgd, lr: 0.1}, {name: asgd, lr: 0.2}, {name: fasgd, lr: 0.01}]}"]
    rows = plot(list(fredsim.sweep(small_yaml, words)), Path("x.svg"), "ends", Options(x="server.name")).tables[0].rows
    assert [(row["line"], row["server.name"]) for row in rows] == [
        ("α = 0.1", "asgd"), ("α = 0.2", "asgd"), ("others", "fasgd"),
    ]  # fmt: skip


def test_numbers_of_axes(small_yaml: Path, drawn: list[Figure]) -> None:
    """Of three panels two have nothing below them; a staleness of 0 alone stands at 0, and at no fraction."""
    runs = list(fredsim.sweep(small_yaml, ["sweep={clients.count: [1, 2, 3]}"]))
    plot(runs, Path("curves.svg"))
    plot(runs, Path("staleness.svg"), "staleness")
    curves, staleness = (figure.axes[:3] for figure in drawn)
    shown = [any(text.get_text() and text.get_visible() for text in axes.get_xticklabels()) for axes in curves]
    assert shown == [False, True, True]
    assert [bool(axes.get_xlabel()) for axes in curves] == shown
    assert [bool(axes.get_ylabel()) for axes in curves] == [True, False, True]  # the second is beside the first
    for axes in staleness:
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks
        assert all(tick == int(tick) for tick in ticks)


def test_an_override_of_the_figures_of_a_sweep(small_yaml: Path, command: Command, refused: Refused) -> None:
    text = small_yaml.read_text(encoding="utf-8") + "figures: [{name: error}, {name: bytes, x: bytes}]\n"
    small_yaml.write_text(text, encoding="utf-8")
    for more, pictures in (
        ([BY_SERVER], ["servers.png"]),
        (["figures=[{name: a}]", "--resume"], ["a.png", "servers.png"]),
    ):
        code, _, messages = command("run", small_yaml, SERVERS, *more, "--out", "out")
        assert (code, "left out" in messages) == (0, False)
        assert sorted(path.name for path in Path("out").glob("*.png")) == pictures
    assert not any(result.config.get("figures") for result in results_in("out"))  # they are of all runs together
    Path("out/a.png").unlink()
    assert command("plot", "out")[0] == 0
    assert Path("out/a.png").is_file()
    wrong = {
        "{name: a, kind: ends, x: server.nam}": "figures.0.x: no run has a key 'server.nam'; did you mean",
        "{name: a, kind: probe}": "figures.0.kind: is 'probe', and not every run has one; give the experiment `probe:",
        "{name: a, kind: tensors}": "figures.0.kind: is 'tensors', and no run measures single tensors; give the exper",
        "{name: a, best: true}": "figures.0.best: is true, and the experiment chooses no runs; give it `select`",
        "{name: a, y: gradient_norm}": "figures.0.y: is 'gradient_norm', which not every run measures; give",
        "{name: a, where: {server.name: sagd}}": "figures.0.where: is {server.name: 'sagd'}, which no run has",
        "{name: a, y: gap}": "figures.0.y: is 'gap', which only linear models have; leave it out, or give",
        "{name: a, kind: ends, y: gap}": "figures.0.y: is 'gap', which only linear models have; leave it out, or",
        "{name: a, kind: timeline, clients: 0-8}": "figures.0.clients: names client 8, which not every run has; give",
        "{name: a, kind: waits, clients: '9'}": "figures.0.clients: names client 9, which not every run has; give some",
        "{name: a, kind: waits, clients: true}": "figures.0.clients: is true; it should be",
        "{name: a, kind: copies, log: true}": "figures.0.log: is given; it goes with figures of the other kinds",
        r"{name: a, title: 'a $\frac{$'}": r"figures.0.title: is 'a $\frac{$', whose formula cannot be read (",
    }
    for figure, says in wrong.items():
        override = f"figures=[{figure}]"
        refused("run", small_yaml, SERVERS, override, "--out", "new", says=(f"override '{override}': {says}",))
    assert not Path("new").exists()


def test_figures_that_these_runs_cannot_have(small_yaml: Path, command: Command, refused: Refused) -> None:
    """It is said before the first of them."""
    Path("own.py").write_text("def right(output, y):\n    return float((output.argmax(1) == y).mean())\n", "utf-8")
    clock = "dispatcher={name: clock, compute: {noise: none}}"
    own, other = "evaluation.metrics=['own:right']", "cases=[{evaluation.metrics: [top5]}, {seed: 5}]"
    many = "sweep={seed: [0, 1, 2, 3, 4, 5, 6, 7, 8]}"
    for words, figure, says in (
        ([own], "kind: matrix, y: right", "y: is 'right', of which less need not be better; give the matrix `reach`"),
        ([other], "y: top5", "y: is 'top5', which not every run measures; give it to all in `evaluation.metrics`, or"),
        (
            [many, clock, "events=true"],
            "kind: timeline",
            "kind: is 'timeline', which has a panel for each run, and",
        ),
        (
            ["sweep={clients.count: [70, 90]}", clock, "events=true"],
            "kind: timeline, clients: 0-64",
            "clients: names 65 clients, and a timeline has lanes for 64",
        ),
    ):
        override = f"figures=[{{name: a, {figure}}}]"
        refused("run", small_yaml, *words, override, "--out", "new", says=(f"figures.0.{says}",))
    assert not Path("new").exists()
    for which in ("best: true", "where: {seed: [0, 1, 2, 3, 4, 5, 6, 7]}"):  # of nine runs one, or eight
        words = [clock, "events=true", "select={over: seed}", f"figures=[{{name: a, kind: timeline, {which}}}]"]
        assert command("show", small_yaml, many, *words)[0] == 0


def test_a_figure_of_runs_that_all_failed(small_yaml: Path, own_server: Callable[..., str]) -> None:
    Path("failing.py").write_text(own_server("raise ValueError('no')\n"), encoding="utf-8")
    results = fredsim.sweep(small_yaml, ["sweep={seed: [0, 1]}", "server={name: 'failing:Plain', lr: 0.1}"])
    assert (len(results), len(results.failures)) == (0, 2)
    for kind in ("curves", "matrix", "timeline"):
        with pytest.raises(fredsim.OutputError, match="there is nothing to draw: no run has ended, or all failed"):
            results.plot(kind)


def test_where_the_data_are(small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of shards reads them, whoever draws it, from where they were for the run."""
    roots = []
    held = label_counts

    def counted(run: Result, root: Path | None) -> Any:
        roots.append(root)
        return held(run, root)

    monkeypatch.setattr(shards, "label_counts", counted)
    there = Path("elsewhere")
    figures = "figures=[{name: held, kind: shards}]"
    assert command("run", small_yaml, "iterations=2", figures, "--out", "out", "--data-root", there)[0] == 0
    Path("out/held.png").unlink()
    assert command("plot", "out", "--data-root", there)[0] == 0
    assert Path("out/held.png").is_file()
    assert command("plot", "out", "--kind", "shards", "-o", "x.png", "--data-root", there)[0] == 0
    fredsim.Result("out").plot("shards", data_root=there)
    assert roots == [there] * 4


def test_a_figure_that_breaks_costs_neither_the_run_nor_the_others(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, breaks = Figure.savefig, cycle([True, False])  # the first of two figures, whenever both are drawn

    def breaking(self: Figure, file: Any, **options: Any) -> None:
        if next(breaks):
            raise RuntimeError("a fault\nof a library")
        save(self, file, **options)

    monkeypatch.setattr(Figure, "savefig", breaking)
    code, output, messages = command("run", small_yaml, "figures=[{name: a}, {name: b}]", "--out", "out")
    assert (code, "figure:  out/b.png" in output) == (0, True)
    assert messages.endswith("\nleft out: out/a.png (RuntimeError: a fault of a library)\n")
    code, output, messages = command("plot", "out")
    assert (code, output.splitlines()[0]) == (2, "figure:  out/b.png")
    assert messages == "error: RuntimeError: a fault of a library (left out: out/a.png)\n"


def test_a_folder_alone_is_drawn_into_itself(small_yaml: Path, drawn: list[Figure]) -> None:
    """However it is written, and whatever the words were that started the program."""
    fredsim.run(small_yaml, out="results/single")
    before = {path.name for path in Path().iterdir()}
    pictures = []
    for folder in ("results/single", "results/single/", "./results//single"):
        assert CliRunner().invoke(cli.app, ["plot", folder]).exit_code == 0
        assert {path.name for path in Path("results/single").iterdir()} >= {*ERROR}
        pictures.append([Path("results/single", name).read_bytes() for name in ERROR])
    assert {path.name for path in Path().iterdir()} == before
    for folder in ("results/single", "results/single/"):
        assert CliRunner().invoke(cli.app, ["plot", folder, "--log", "--no-caption", "--output=x.svg"]).exit_code == 0
        pictures.append([Path(name).read_bytes() for name in ("x.svg", "x-table.md")])
    assert pictures[0] == pictures[1] == pictures[2]
    assert pictures[3] == pictures[4]
    assert b"$ fredsim plot results/single -o x.svg --log --no-caption\n" in pictures[4][1]
    assert drawn[0].get_supxlabel().endswith("\n$ fredsim plot results/single")


def test_damage_is_one_error(small_yaml: Path, refused: Refused) -> None:
    fredsim.run(small_yaml, ["figures=[{name: a}, {name: b, y: train_loss}]"], out="out")
    Path("out/metrics.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    why = "out/metrics.csv: is damaged (it has no column 'iteration'); run the experiment again"
    refused("plot", "out", says=(f"error: {why}\n",))


def test_titles_with_formulas(small_yaml: Path, command: Command, refused: Refused) -> None:
    fredsim.run(small_yaml, out="out")
    for title in (r"$\frac{1}{2}$ of it", "5 $", r"\$\frac{\$", r"$\frac{"):
        assert command("plot", "out", "--title", title, "-o", "x.svg")[0] == 0
    for title, why in ((r"$\frac{$", r"Expected \frac"), ("fine\n" r"a $\nothing$", r"Unknown symbol: \nothing")):
        says = f"--title: is '{title.splitlines()[0]}"
        refused("plot", "out", "--title", title, "-o", "y.svg", says=(says, why, r"write \$ for a"))
    assert not Path("y.svg").exists()


PUBLISHED = """
evaluation: {every: 10}
published:
  source: A paper
  series:
    - {where: {server.lr: 0.1}, points: [[20, 0.5], [50, 0.25], [100, 0.125]]}
"""


def test_what_is_published_is_compared_with_runs_that_came_so_far(small_yaml: Path) -> None:
    small_yaml.write_text(small_yaml.read_text(encoding="utf-8") + PUBLISHED, encoding="utf-8")
    results = list(fredsim.sweep(small_yaml, ["sweep={server.lr: [0.1, 0.2], iterations: [50, 105]}"]))
    (short, long), other = results[:2], results[2:]
    errors = {run: dict(zip(run.metrics["iteration"], run.metrics["validation_error"], strict=True)) for run in results}
    assert [max(found) for found in errors.values()] == [50, 105] * 2
    rows = plot([short], Path("x.svg")).tables[1].rows
    assert [row["here"] for row in rows] == [errors[short][20], errors[short][50], None]
    assert [row["difference"] for row in rows] == [errors[short][20] - 0.5, errors[short][50] - 0.25, None]
    assert plot([long], Path("x.svg")).tables[1].rows[2]["here"] == errors[long][100]
    together = plot(results, Path("x.svg"), options=Options(by=["server.name"])).tables[1].rows
    assert [row["here"] for row in together] == [  # of its own runs alone
        median([errors[short][20], errors[long][20]]), median([errors[short][50], errors[long][50]]), errors[long][100],
    ]  # fmt: skip
    (row,) = (
        plot([short, long, *other], Path("x.svg"), "ends", Options(x="server.lr", by=["server.name"])).tables[1].rows
    )
    assert (row["published"], row["here"]) == (0.25, errors[short][50])


def test_where_a_key_is_null_beside_mappings(small_yaml: Path, refused: Refused) -> None:
    """Runs without a compressor are told by `compress: null` from those with one, whose values are mappings."""
    kept = {"name": "top_k", "k": 0.5}
    made = read_document(small_yaml).data | {
        "iterations": 2,
        "backend": "numpy",
        "published": {"source": "a", "series": [{"where": {"compress": None}, "points": [[2, 0.5]]}]},
        "figures": [{"name": "a", "where": {"compress": None}}],
        "sweep": {"compress": [None, kept, kept | {"k": 0.25}], "server.name": ["asgd", "fasgd"]},
    }
    results = list(fredsim.sweep(made, out="out"))
    without, others = results[:2], results[2:]
    assert [run.config.get("compress") for run in without] == [None, None]
    assert ["published" in run.config for run in results] == [True, True, *[False] * 4]
    for where, wanted in (
        ({"compress": None}, without),
        ({"server.name": "asgd", "compress": None}, without[:1]),
        ({"compress.k": 0.5, "compress": kept}, others[:2]),
        ({"compress": [None, kept]}, results[:4]),
    ):
        assert list(select_runs(results, Options(where=where))) == wanted
    (small_yaml.parent / "made.yaml").write_text(dump_yaml(made), encoding="utf-8")
    for key in ("compres", "average"):
        words = (f"figures=[{{name: a, where: {{{key}: null}}}}]", "--out", "new")
        refused("run", "made.yaml", *words, says=(f"figures.0.where: no run has a key '{key}'",))


def test_no_figures_are_asked_for(small_yaml: Path, command: Command) -> None:
    """An empty list asks for none, also of `plot` without options; null for the error."""
    code, output, _ = command("run", small_yaml, "figures=[]", "--out", "none")
    assert (code, "figure:" in output, [*Path("none").glob("*.png")]) == (0, False, [])
    code, output, messages = command("plot", "none")
    assert (code, output, messages.count("none: figures is []")) == (2, "", 1)
    assert command("plot", "none", "--kind", "curves", "-o", "asked.svg")[0] == 0
    for change in ("figures=null", "seed=1"):
        assert command("run", small_yaml, change, "--out", change)[1].count("figure:") == 1
        assert Path(change, "error.png").exists()


@pytest.mark.parametrize(("larger", "better"), [(True, ["↑ higher is better"]), (False, [])])
def test_ends_of_what_more_is_better_say_so(
    larger: bool, better: list[str], small_yaml: Path, command: Command, drawn: list[Figure]
) -> None:
    """As curves do: the metric's own word for it is known; without one nobody knows which way is better."""
    Path("shares.py").write_text("def right(output, y):\n    return (output.argmax(axis=1) == y).mean()\n")
    metric = f"evaluation={{metrics: [{{name: 'shares:right', larger_is_better: {str(larger).lower()}}}]}}"
    sweep = ("sweep={server.lr: [0.01, 0.1]}", "figures=[]", metric)
    assert command("run", small_yaml, *sweep, "--out", "out")[0] == 0
    words = ("--y", "right", "-o", "right.svg")
    for kind in (["curves", "--by", "server.lr"], ["ends", "--x", "server.lr"], ["ends", "--x", "bytes"]):
        assert command("plot", "out", "--kind", *kind, *words)[0] == 0
        assert [
            text.get_text() for axes in drawn[-1].axes for text in axes.texts if "better" in text.get_text()
        ] == better
