"""`figures` of an experiment, drawn by `run` and `plot`; `reproduce`: a paper's experiments, one after another."""

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import fredsim
from fredsim.config.experiment import Experiment
from fredsim.config.shipped import shipped
from fredsim.config.sweep.expansion import ResolvedRun, expand, open_source
from fredsim.reproduce import Item, _estimates
from fredsim.runs.many.resuming import reason_to_run
from fredsim.show.progress import LineObserver
from fredsim.simulation.record.recorder import Row

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

FIGURES = """
evaluation: {every: 10}
figures:
  - {name: error, reach: [0.5]}
  - {name: rates, kind: ends, x: server.lr, by: server.name, title: Rates}
sweep: {server.lr: [0.1, 0.2]}
"""
PUBLISHED = """
published:
  source: A paper
  series: [{where: {server.lr: 0.1}, points: [[50, 0.25]]}]
"""


@pytest.fixture
def swept_yaml(small_yaml: Path) -> Path:
    small_yaml.write_text(small_yaml.read_text(encoding="utf-8") + FIGURES, encoding="utf-8")
    return small_yaml


@pytest.fixture
def paper(swept_yaml: Path) -> Path:
    """A paper of two experiments: a sweep with published points, and a single run."""
    folder = swept_yaml.parent / "paper"
    folder.mkdir()
    text = swept_yaml.read_text(encoding="utf-8")
    (folder / "one.yaml").write_text(text + PUBLISHED, encoding="utf-8")
    (folder / "two.yaml").write_text(text.partition("figures:")[0], encoding="utf-8")
    return folder


def test_run_and_plot_draw_what_is_asked_for(swept_yaml: Path, command: Command) -> None:
    code, output, messages = command("run", swept_yaml, "--out", "out")
    assert code == 0
    assert output.splitlines()[-2:] == ["figure:  out/error.png", "figure:  out/rates.png"]
    assert "left out" not in messages
    files = {name: Path("out", name).read_bytes() for name in ("error.png", "rates.png", "rates-table.csv")}
    for name in files:
        Path("out", name).unlink()
    assert command("plot", "out")[0] == 0
    assert {name: Path("out", name).read_bytes() for name in files} == files
    assert command("plot", "out", "-o", "other.pdf")[0] == 0
    assert Path("other.pdf").exists()


def test_a_single_run_keeps_its_figures(swept_yaml: Path, command: Command) -> None:
    assert command("run", swept_yaml, "sweep=null", "server.lr=0.1", "--out", "out")[0] == 0
    Path("out/rates.png").unlink()
    assert command("plot", "out")[0] == 0
    assert Path("out/rates.png").exists()


def test_figures_change_no_run(swept_yaml: Path, command: Command) -> None:
    before = expand(open_source(swept_yaml))
    assert command("run", swept_yaml, "--quiet", "--out", "out")[0] == 0
    text = swept_yaml.read_text(encoding="utf-8")
    swept_yaml.write_text(text.replace("kind: ends", "kind: curves").replace("x: server.lr", "x: bytes"), "utf-8")
    after = expand(open_source(swept_yaml))
    assert [run.experiment.digest for run in before.runs] == [run.experiment.digest for run in after.runs]
    code, _, messages = command("run", swept_yaml, "--resume", "--out", "out")
    assert (code, messages) == (0, "2 runs, 2 of them finished before\n")
    assert "bytes" in Path("out/rates-table.md").read_text(encoding="utf-8")
    assert "figures" not in fredsim.load("out")[0].config  # type: ignore[index]
    swept_yaml.write_text(text.replace("[0.1, 0.2]", "[0.1, 0.3]"), "utf-8")
    assert command("run", swept_yaml, "--resume", "--out", "out")[0] == 2


def test_a_figure_that_an_override_took_away(swept_yaml: Path, command: Command) -> None:
    averaged = "average: {name: window, rate: 0.5, min_window: 1}\n"
    text = swept_yaml.read_text(encoding="utf-8").replace("x: server.lr", "x: average.rate")
    swept_yaml.write_text(text + averaged, "utf-8")
    code, output, messages = command("run", swept_yaml, "average=null", "--out", "out")
    assert code == 0
    assert "left out: out/rates.png ('average.rate' is no key of these runs" in messages
    assert "figure:  out/error.png" in output
    assert "figure:  out/rates.png" not in output


@pytest.mark.parametrize(
    ("figure", "says"),
    {
        "{kind: ends}": ("figures.0.name: is required",),
        "{name: a, knd: ends}": ("figures.0.knd: unknown key; did you mean 'kind'?",),
        "{name: a, kind: end}": ("figures.0.kind: is 'end'; did you mean 'ends'?",),
        "{name: a, x: updats}": ("figures.0.x: is 'updats'; did you mean 'updates'?",),
        "{name: a, kind: copies, reach: [0.1]}": (
            "figures.0.reach: is given; it goes with figures of the kind curves",
        ),
        "{name: a, kind: ends, x: server.lt}": ("no run has a key 'server.lt'; did you mean 'server.lr'?",),
        "{name: a, by: server.nam}": ("no run has a key 'server.nam'; did you mean 'server.name'?",),
        "{name: a/b}": ("figures.0.name: is 'a/b'; it names files",),
        "{name: a}, {name: a}": ("figures.1.name: is 'a', as another figure's; give it its own",),
    }.items(),
)
@pytest.mark.parametrize("sweep", ["", "sweep: {seed: [0, 1]}\n"])
def test_figures_that_cannot_be(
    sweep: str, figure: str, says: tuple[str, ...], small_yaml: Path, refused: Refused
) -> None:
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write(f"figures: [{figure}]\n{sweep}")
    refused("show", small_yaml, says=(f"{small_yaml}:8: ", *says))


def test_reproduce(paper: Path, command: Command) -> None:
    code, output, _ = command("reproduce", paper)
    assert code == 0
    lines = output.splitlines()
    assert [line.split()[:3] for line in lines[:3]] == [
        ["experiment", "runs", "left"],
        ["one", "2", "2"],
        ["two", "1", "1"],
    ]
    assert lines[3].startswith("about ")
    assert lines[3].endswith(", 1 run at a time")
    (row,) = [line.split() for line in lines if "0.2500" in line]
    (first, _) = fredsim.load("results/paper/one")  # type: ignore[misc]
    here = first.summary["validation_error"]
    assert row[-3:] == ["0.2500", f"{here:.4f}", f"{here - 0.25:.4f}"]
    assert "figure:  results/paper/one/rates.png" in lines
    assert "figure:  results/paper/two/error.png" in lines
    assert lines[-1].startswith("took: one ")
    written = [path.stat().st_mtime_ns for path in sorted(Path("results").rglob("summary.json"))]
    again = command("reproduce", paper, "--jobs", 2)[1].splitlines()
    assert [path.stat().st_mtime_ns for path in sorted(Path("results").rglob("summary.json"))] == written
    assert [line.split()[2] for line in again[1:3]] == ["0", "0"]
    assert again[3] == "about 0 s, 2 runs at a time"


def test_what_is_left_is_asked_of_the_data_that_is_given(
    paper: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = []

    def reason(folder: Path, experiment: Experiment, root: Path | None = None) -> str | None:
        roots.append(root)
        return reason_to_run(folder, experiment, root)

    for module in ("fredsim.reproduce", "fredsim.runs.many.sweep", "fredsim.runs.many.runner"):
        monkeypatch.setattr(f"{module}.reason_to_run", reason)
    assert command("reproduce", paper, "--data-root", "here")[0] == 0
    assert roots == [Path("here")] * len(roots)
    assert len(roots) >= 6  # each run before it is measured, and before it is done


def test_reproduce_fails_as_one_of_its_experiments(
    paper: Path, own_server: Callable[..., str], command: Command
) -> None:
    """Though the last one does not, nor the run whose time is measured."""
    Path("own_lost.py").write_text(own_server("if self.lr == 0.2:\n    raise ValueError('lost')\n"), encoding="utf-8")
    one = paper / "one.yaml"
    one.write_text(one.read_text(encoding="utf-8").replace("name: asgd", "name: own_lost:Plain"), encoding="utf-8")
    two = paper / "two.yaml"
    two.write_text(two.read_text(encoding="utf-8").partition("sweep:")[0], encoding="utf-8")
    assert "results: results/paper/two" in (ended := command("reproduce", paper))[1]
    assert ended[0] == 2


@pytest.mark.parametrize("when", ["at once", "while it is measured"])
def test_a_single_run_that_fails_does_not_stop_the_others(
    when: str, paper: Path, own_server: Callable[..., str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may be `.yml`, as those of other commands."""
    Path("own_failing.py").write_text(own_server("raise ValueError('lost')\n"), encoding="utf-8")
    two, first = paper / "two.yaml", paper / "a_first.yml"
    text = two.read_text(encoding="utf-8").partition("sweep:")[0]
    first.write_text(text.replace("name: asgd", "name: own_failing:Plain"), encoding="utf-8")
    two.rename(paper / "two.yml")
    if when == "at once":
        monkeypatch.setattr("fredsim.reproduce.estimate", lambda *_, **__: iter([SimpleNamespace(seconds=1.0)]))
    code, output, messages = command("reproduce", paper)
    lines = output.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["a_first", "one", "two"]
    assert ("unknown" in lines[1]) == (when != "at once")
    assert (code, "ValueError: lost" in messages) == (2, True)
    assert {"results: results/paper/one", "results: results/paper/two"} <= {*lines}
    assert re.fullmatch("took: a_first .* s, one .* s, two .* s", lines[-1])


def test_a_folder_in_the_place_of_a_shipped_paper_is_told(paper: Path, command: Command, refused: Refused) -> None:
    paper = paper.rename(paper.with_name("fasgd"))
    code, output, messages = command("reproduce", "fasgd", "--only", "two")
    assert (code, "results: results/fasgd/two" in output) == (0, True)
    assert f"note: fasgd: is the folder {paper}, not the paper of this name that comes with fredsim" in messages
    (paper / "two.yml").touch()
    refused("reproduce", paper, says=("fasgd: has two.yaml and two.yml, whose results would be in the same folder",))


@pytest.mark.parametrize(
    ("jobs", "expected"), [(1, "12 s, 1 run at"), (2, "6 s, 2 runs at"), (3, "5 s, 3 runs at"), (6, "5 s, 6 runs at")]
)
def test_the_estimate_is_of_runs_side_by_side(
    jobs: int, expected: str, paper: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs of 3, 4 and 5 s: their sum, half of it, and the longest."""

    given = []

    def estimate(runs: Sequence[ResolvedRun], *others: object, **more: object) -> Iterator[SimpleNamespace]:
        del others
        given.append(more["threads"])
        yield from (SimpleNamespace(seconds=3.0 + number) for number, _ in enumerate(runs))

    monkeypatch.setattr("fredsim.reproduce.estimate", estimate)

    def interrupted(*plan: object, **how: object) -> None:
        del plan, how
        raise KeyboardInterrupt

    monkeypatch.setattr("fredsim.reproduce.default_threads", lambda: 8)
    monkeypatch.setattr("fredsim.reproduce.run_expansion", interrupted)
    one = paper / "one.yaml"
    one.write_text(one.read_text(encoding="utf-8").replace("[0.1, 0.2]", "[0.1, 0.2, 0.3]"), encoding="utf-8")
    output = command("reproduce", paper, "--only", "one", "--jobs", jobs)[1]
    assert "took:" not in output
    assert f"about {expected} a time" in output
    assert given == [{1: None, 2: 4, 3: 2, 6: 2}[jobs]]  # of 8 processors, as many as each run will have


def test_reproduce_goes_on(paper: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    row = LineObserver.row

    def interrupting(self: LineObserver, given: Row) -> None:
        if given.iteration == 20 and Path("out/one/runs.csv").read_text(encoding="utf-8").count("\n") == 2:
            signal.raise_signal(signal.SIGINT)  # in the second run
        row(self, given)

    monkeypatch.setattr(LineObserver, "row", interrupting)
    words = ("reproduce", paper, "--only", "one", "--out", "out")
    code, output, messages = command(*words)
    assert code == 130
    assert messages.endswith("interrupted: 1 of 2 runs remain; continue with the same command\n")
    assert "figure:" not in output
    monkeypatch.undo()
    monkeypatch.chdir(paper.parent)
    code, output, _ = command(*words)
    assert code == 0
    assert output.splitlines()[1].split()[:3] == ["one", "2", "1"]
    assert not Path("out/two").exists()


def test_too_many_jobs_are_refused_before_anything_is_measured(paper: Path, refused: Refused) -> None:
    refused("reproduce", paper, "--jobs", 10**6, says=("jobs is 1000000; it must be 1 at least, and",))


def test_what_cannot_be_reproduced(paper: Path, refused: Refused) -> None:
    refused("reproduce", "fasdg", says=("'fasdg' is no paper", "did you mean 'fasgd'?", "terngrad"))
    refused("reproduce", paper, "--only", "one,tow", says=("has no 'tow'; did you mean 'two'? (known: one, two)",))
    assert not Path("results").exists()


def test_shipped_experiments_compare_what_they_carry() -> None:
    """Each can be read; one with published points has a figure against what they are given by."""
    for path in shipped().values():
        plan = expand(open_source(path))
        published = next((p for run in plan.runs if (p := run.experiment.published)), None)
        drawn = [(figure.kind, figure.x or "iterations", figure.y) for figure in plan.figures or ()]
        assert drawn, path
        assert published is None or ("curves", published.x, published.y) in drawn, path


def test_what_it_will_take_is_measured_in_this_process(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each kind of run would only measure memory, which is not said."""
    network = ["model={name: resnet, depth: 8, width: 8}", "iterations=2"]
    item = Item("small", expand(open_source(small_yaml), network), Path("out"))
    monkeypatch.setattr("fredsim.runs.plan.estimates.do_apart", None)
    named: list[str] = []
    ((found, left, seconds),) = _estimates([item], None, 1, lambda one: named.append(one.name))
    assert (found, left, named) == (item, 1, ["small"])
    assert seconds is not None
    assert seconds > 0
