"""What `import fredsim` offers: results with methods, progress, a function called with each row, HTML for notebooks."""

import csv
import importlib
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.figure import Figure

import fredsim
from docs.generate.links import ROOT
from fredsim.config.document import dump_yaml
from fredsim.data.datasets import data_root
from fredsim.jit.cache import cache_folder
from fredsim.plugins.modules import imported_before
from fredsim.runs.processes.observer import Observer

SEEDS = {"sweep": {"seed": [0, 1]}}


@pytest.fixture
def experiment(digits_experiment: dict[str, Any]) -> dict[str, Any]:
    return digits_experiment | {"evaluation": {"every": 10}}


def test_a_run_and_a_sweep(experiment: dict[str, Any], tmp_path: Path) -> None:
    one = fredsim.run(experiment, out=tmp_path / "one")
    both = fredsim.sweep(experiment | SEEDS, out=str(tmp_path / "both"))
    assert isinstance(one, fredsim.Result)
    assert [type(result) for result in both] == [fredsim.Result] * 2
    assert both[0].summary["digest"] == one.summary["digest"] != both[1].summary["digest"]
    assert isinstance(fredsim.load(tmp_path / "both"), fredsim.Results)
    assert fredsim.Results(str(tmp_path / "both"))[1].metrics.equals(both[1].metrics)
    assert fredsim.Result(str(tmp_path / "one")).summary == one.summary
    for kind, folder, says in (
        (fredsim.Result, "both", "is read by fredsim.Results"),
        (fredsim.Results, "one", "is read by fredsim.Result"),
    ):
        with pytest.raises(fredsim.OutputError, match=says):
            kind(tmp_path / folder)
    with pytest.raises(
        fredsim.ConfigError, match=r"a single run, no sweep; give it sweep or cases, or call fredsim.run"
    ):
        fredsim.sweep(experiment)
    again: object = fredsim.run(experiment | SEEDS, out=tmp_path / "again")  # as before there was `sweep`
    assert isinstance(again, fredsim.Results)


def test_results_stay_those_of_their_folder(
    experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read when they are needed: then the current folder may be one that holds others of the same name."""
    digests = []
    for name, seed in (("mine", "seed=0"), ("theirs", "seed=1")):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        digests.append(fredsim.run(experiment, [seed], out="results/one").summary["digest"])
        fredsim.sweep(experiment | SEEDS, [f"server.lr={1 + digests.index(digests[-1])}.0"], out="results/both")
    monkeypatch.chdir(tmp_path / "mine")
    loaded = [fredsim.load("results/one"), fredsim.Result("results/one"), fredsim.run(experiment, out="results/one")]
    sweeps = [fredsim.load("results/both"), fredsim.Results("results/both")]
    monkeypatch.chdir(tmp_path / "theirs")
    for result in map(pickle.loads, map(pickle.dumps, loaded)):
        with (tmp_path / "mine/results/one/metrics.csv").open(newline="", encoding="utf-8") as file:
            assert result.metrics["digest"].tolist() == [row["digest"] for row in csv.DictReader(file)]
        assert result.metrics["digest"].iloc[-1] == digests[0] != digests[1]
    assert [run.config["server"]["lr"] for sweep in sweeps for run in cast(fredsim.Results, sweep)] == [1.0] * 4
    assert (tmp_path / "mine/results/one").samefile(loaded[0].folder)


def test_a_result_is_of_the_run_that_was_done(experiment: dict[str, Any], tmp_path: Path) -> None:
    """Not of another one that has taken its place in the folder, nor of half of it done anew."""
    one = fredsim.run(experiment, out=tmp_path)
    metrics = (tmp_path / "metrics.csv").read_bytes()
    shutil.rmtree(tmp_path)
    other = fredsim.run(experiment, ["seed=1"], out=tmp_path)
    assert one.summary["digest"] == metrics.decode().split(",")[-1].strip() != other.summary["digest"]
    with pytest.raises(fredsim.OutputError, match=r"summary.json and metrics.csv disagree"):
        _ = one.metrics
    with pytest.raises(fredsim.OutputError, match="holds another run than when its summary was read"):
        one.plot()
    (tmp_path / "summary.json").unlink()  # as another process does that begins the run anew
    (tmp_path / "metrics.csv").write_bytes(b"\n".join(metrics.splitlines()[:2]) + b"\n")
    for result in (one, other):
        with pytest.raises(fredsim.OutputError, match=r"summary.json and metrics.csv disagree"):
            _ = result.metrics
        with pytest.raises(fredsim.OutputError, match=r"metrics.csv: is not as the run wrote it"):
            _ = result.cells
        with pytest.raises(fredsim.OutputError, match=r"has no summary.json: the run did not end"):
            result.plot()


def test_a_sweep_has_the_runs_of_its_table(
    experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the user's class, which the name of a run's folder does not tell, has been edited since."""
    module = tmp_path / "edited_rates.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    text = """class Plain:
    def init(self, params, clients):
        self.params = params.copy()
    def apply_update(self, grad, client, timestamp):
        self.params -= grad / 8
"""
    module.write_text(text)
    data = experiment | {"server": {"name": "edited_rates:Plain"}, "sweep": {"seed": [0]}}
    before = fredsim.sweep(data, out=tmp_path / "out")
    digests = [result.summary["digest"] for result in before]
    module.write_text(text.replace("8", "16"))
    after = fredsim.sweep(data, out=tmp_path / "out")
    assert list(before.runs["digest"]) == digests != list(after.runs["digest"])
    with pytest.raises(fredsim.OutputError, match=r"holds another run than .* load .* anew"):
        _ = before[0]


@pytest.mark.parametrize("how", ["import", "reload"])
def test_a_module_that_is_imported_again_is_the_users(
    how: str, experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, which may change it: it is not in its file then, of which runs are. Fredsim leaves it there."""
    name = f"again_by_{how}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    text = """class Plain:
    def init(self, params, clients):
        self.params = params.copy()
    def apply_update(self, grad, client, timestamp):
        self.params -= grad / 8
"""
    (tmp_path / f"{name}.py").write_text(text)
    data = experiment | {"server": {"name": f"{name}:Plain"}}
    fredsim.run(data, out=tmp_path / "first")
    assert not imported_before(name)
    if how == "import":
        del sys.modules[name]
        module = importlib.import_module(name)
    else:
        module = importlib.reload(sys.modules[name])
    assert imported_before(name)  # so that runs are in processes of their own
    (tmp_path / f"{name}.py").write_text(text.replace("8", "16"))
    fredsim.run(data, out=tmp_path / "second")
    assert sys.modules[name] is module


@pytest.mark.parametrize("sweep", [{}, SEEDS], ids=["run", "sweep"])
def test_a_folder_that_is_taken_at_once(
    sweep: dict[str, Any], experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process begins the run anew as soon as it may: the first one ends as it did, or says what is gone."""
    wanted = fredsim.run(experiment, out=tmp_path / "wanted").summary["digest"]

    def memory(self: Observer, *_: int) -> None:
        """Which is told when the lock has been given back."""
        del self
        for path in (tmp_path / "out").rglob("summary.json"):
            if "seed=1" not in path.parent.name:
                path.unlink()

    with monkeypatch.context() as late:
        late.setattr(Observer, "memory", memory)
        ended: object = fredsim.run(experiment | sweep, out=tmp_path / "out")
    if isinstance(ended, fredsim.Result):
        assert (ended.summary["digest"], ended.summary["status"]) == (wanted, "finished")
    else:
        assert isinstance(ended, fredsim.Results)
        assert list(ended.runs["status"]) == ["failed", "finished"]
        assert "has no summary.json" in ended.failures[0][1]


def test_figures_are_of_what_was_recorded(experiment: dict[str, Any], tmp_path: Path) -> None:
    """A table that the user has changed, say to percents, is the user's: it is neither drawn nor shown."""
    result = fredsim.run(experiment, out=tmp_path / "one")
    errors, shown = [*result.metrics["validation_error"]], result._repr_html_()
    result.metrics["validation_error"] *= 100
    result.summary["validation_error"] *= 100
    (line,) = (line for line in result.plot().axes[0].lines if len(line.get_xdata()) > 2)
    assert [*line.get_ydata()] == errors
    assert result._repr_html_() == shown


def test_each_row_is_told(experiment: dict[str, Any], tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    result = fredsim.run(experiment, out=tmp_path / "one", on_row=told.append)
    with (tmp_path / "one" / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [
        {key: "" if value is None else str(value) for key, value in row.items() if key != "run"} for row in told
    ] == rows
    assert told[-1]["digest"] == result.summary["digest"]
    told.clear()
    fredsim.sweep(experiment | SEEDS, out=tmp_path / "both", on_row=told.append, jobs=2)
    assert len(told) == 2 * len(rows)
    assert len({row["run"] for row in told}) == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_function_that_changes_the_folder(
    jobs: int, experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results lie where they were to lie, also of a relative path."""
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    results = fredsim.sweep(experiment | SEEDS, out="both", on_row=lambda row: os.chdir(tmp_path / "other"), jobs=jobs)
    assert (len(results), Path.cwd(), [*Path("other").iterdir()]) == (2, tmp_path, [])


def test_each_row_of_a_run_that_diverges_is_told_once(experiment: dict[str, Any], tmp_path: Path) -> None:
    """It is repeated up to the event before the divergence, and records the same rows again."""
    told: list[dict[str, Any]] = []
    changes = ["server.lr=1.0e+30", "clients.count=8", "evaluation.every=3"]
    result = fredsim.run(experiment, changes, out=tmp_path / "one", on_row=told.append)
    assert result.summary["status"] == "diverged"
    assert len(told) > 1
    assert [row["iteration"] for row in told] == result.metrics["iteration"].tolist()
    assert told[-1]["digest"] == result.summary["digest"]


@pytest.mark.parametrize("last", [False, True])
def test_what_a_function_raises_stops_the_run(last: bool, experiment: dict[str, Any], tmp_path: Path) -> None:
    """What was done is kept, and the same call continues it."""
    whole = fredsim.run(experiment, out=tmp_path / "whole")
    at = whole.metrics["iteration"].iloc[-1 if last else 1]

    def refuse(row: dict[str, Any]) -> None:
        if row["iteration"] == at:
            raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        fredsim.run(experiment, out=tmp_path / "part", on_row=refuse)
    part = fredsim.Result(tmp_path / "part")
    assert part.summary["status"] == ("finished" if last else "interrupted")
    again = fredsim.run(experiment, out=tmp_path / "part", resume=True)
    assert again.summary["digest"] == whole.summary["digest"]
    assert again.metrics.equals(whole.metrics)


def test_verify_and_compare(experiment: dict[str, Any], tmp_path: Path) -> None:
    both = fredsim.sweep(experiment | SEEDS, out=tmp_path / "both")
    assert both.verify(jobs=2) == both[0].verify(backend="numpy") == both.compare(tmp_path / "both") == []
    (found,) = both[0].compare(both[1])
    assert found.startswith(f"{both[0].folder} and {both[1].folder}: ")
    assert found.endswith("config.yaml: seed is 0 and 1; the parameters differ before the first event")
    path = both[1].folder / "metrics.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], lines[-1].replace(",", ",0", 1)]), encoding="utf-8")
    (found,) = fredsim.Result(both[1].folder).verify()
    assert "metrics.csv, line" in found
    with pytest.raises(fredsim.OutputError, match="is not as the run wrote it"):
        _ = fredsim.Result(both[1].folder).metrics


def test_figures(experiment: dict[str, Any], tmp_path: Path) -> None:
    both = fredsim.sweep(experiment | SEEDS, out=tmp_path / "both")
    figure = both.plot(by="seed", panel="none", path=tmp_path / "a.png", title="名")  # which the font lacks
    assert isinstance(figure, Figure)
    assert figure._repr_png_()[:4] == (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"  # type: ignore[attr-defined]
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]  # type: ignore[arg-type]
    assert len(drawn) == 2
    for line, result in zip(drawn, both, strict=True):
        assert np.array_equal(line.get_ydata(), result.metrics["validation_error"])
    assert len(both[0].plot("staleness").axes) == 1
    one = both.plot(
        where={"seed": (both[0].config["seed"], 99)}, by=("seed",), reach=np.array([0.5]), log=np.bool_(True)
    )
    assert len([line for line in one.axes[0].lines if len(line.get_xdata()) > 2]) == 1
    for options, says in (
        ({"reach": math.nan}, "reach"),
        ({"kind": "curvs"}, "kind=…: is 'curvs'; did you mean 'curves'"),
        (
            {"bye": "seed"},
            r"^bye: plot has no such option; did you mean 'by'\? \(known: by, .*, from, to, .*, path, data_",
        ),
        ({"name": "a"}, "^name: plot has no such option"),
        ({"latex": True}, "^latex: plot has no such option"),  # which would write nothing
        ({"log": "yes"}, "^plot: log: is 'yes'"),
        ({"by": {"seed"}}, "^plot: by is a set; use numbers, strings, lists or mappings"),
        ({"by": "sead"}, "sead"),
        ({"reach": "x"}, "reach"),
    ):
        with pytest.raises(fredsim.ConfigError, match=says):
            both.plot(**options)


def test_some_runs_and_numbers_of_numpy(experiment: dict[str, Any], tmp_path: Path) -> None:
    both = fredsim.sweep(experiment | {"sweep": {"seed": [np.int64(3), 4, 5]}}, out=tmp_path / "both")
    assert [run.config["seed"] for run in both[1:]] == [4, 5]
    assert [run.config["seed"] for run in both[::-1]] == [5, 4, 3]
    numbers = {
        "server.lr": np.linspace(0.25, 0.5, 2),
        "model": [{"hidden": (np.int32(4),)}, {"hidden": np.array([4, 3])}],
    }
    odd = experiment | {"clients": {"count": np.array(4), "batch_size": 2, "noise": np.float32(0.5)}}
    four = fredsim.sweep(odd | {"sweep": numbers, "events": np.bool_(False)}, out=tmp_path / "four")
    found = [(run.config["server"]["lr"], run.config["model"]["hidden"]) for run in four]
    assert found == [(0.25, [4]), (0.25, [4, 3]), (0.5, [4]), (0.5, [4, 3])]
    assert {run.config["clients"]["noise"] for run in four} == {0.5}
    with pytest.raises(fredsim.ConfigError, match=r"server\.lr is a complex; use numbers"):
        fredsim.run(experiment | {"server": {"name": "asgd", "lr": np.complex128(1j)}}, out=tmp_path / "no")


@pytest.mark.parametrize(("how", "says"), [
    ({"jobs": "2"}, "jobs is '2'; it must be a whole number"),
    ({"jobs": 2.5}, "jobs is 2.5; it must be a whole number"),
    ({"jobs": True}, "jobs is True; it must be a whole number"),
    ({"checkpoint": None}, "checkpoint is None; it must be seconds"),
    ({"checkpoint": "60"}, "checkpoint is 60; it must be seconds"),
    *(({name: "no"}, f"{name} is 'no'; it must be True or False")
      for name in ("resume", "keep_checkpoints", "allow_code", "progress")),
], ids=str)  # fmt: skip
def test_options_of_another_type(how: dict[str, Any], says: str, experiment: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(fredsim.ConfigError, match=re.escape(says)):
        fredsim.sweep(experiment | SEEDS, out=tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


def test_a_report_by_one_key(experiment: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    both = fredsim.sweep(experiment | SEEDS, out=tmp_path / "both")
    pages = [
        both.report(tmp_path / f"{number}.html", by=by, panel=panel).read_bytes()
        for number, (by, panel) in enumerate([("server.name", "none"), (["server.name"], [])])
    ]
    assert pages[0] == pages[1]


def test_a_report(experiment: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    result = fredsim.run(experiment, out=tmp_path / "one")
    path = result.report(tmp_path / "page.html")
    assert result.summary["digest"][:12] in path.read_text(encoding="utf-8")


def test_code_of_a_script_is_for_one_process(
    experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others cannot import it: so are the classes of a notebook, whose module has no file."""

    class Plain:
        def __init__(self, lr: float) -> None:
            self.lr = lr

        def init(self, params: Any, clients: int) -> None:
            self.params = params.copy()

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
            self.params -= np.float32(self.lr) * grad

    cells = ModuleType("cells_of_a_notebook")
    Plain.__module__, vars(cells)["Plain"] = cells.__name__, Plain
    monkeypatch.setitem(sys.modules, cells.__name__, cells)
    own = experiment | SEEDS | {"server": {"name": f"{cells.__name__}:Plain", "lr": 0.5}}
    says = "^jobs is 2; the module cells_of_a_notebook, a script or a notebook, cannot be imported in other processes"
    with pytest.raises(fredsim.ConfigError, match=says):
        fredsim.sweep(own, out=tmp_path / "out", jobs=2)
    both = fredsim.sweep(own, out=tmp_path / "out", jobs=1)
    assert len(both) == 2
    with pytest.raises(fredsim.ConfigError, match=says):
        both.verify(jobs=2)
    assert both.verify() == []


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.points: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "polyline":
            self.points.append(dict(attrs)["points"] or "")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1].append(data)


def test_what_a_notebook_shows(experiment: dict[str, Any], tmp_path: Path) -> None:
    both = fredsim.sweep(experiment | SEEDS, out=tmp_path / "<i>both")
    page = _Page()
    page.feed(both._repr_html_())
    assert page.tags <= {"div", "table", "tr", "th", "td", "b", "span", "p", "svg", "title", "polyline", "text"}
    assert len(page.rows) == 3
    assert all(run.summary["digest"][:12] in row for run, row in zip(both, page.rows[1:], strict=True))
    for points, run in zip(page.points, both, strict=True):
        heights = [float(point.partition(",")[2]) for point in points.split()]
        errors = run.metrics["validation_error"].to_numpy()
        assert np.array_equal(np.argsort(heights, kind="stable"), np.argsort(-errors, kind="stable"))  # y points down
    page = _Page()
    page.feed(both[0]._repr_html_())
    assert len(page.rows) == 2


def test_progress(experiment: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fredsim.run(experiment, out=tmp_path / "silent")
    assert capfd.readouterr() == ("", "")
    result = fredsim.run(experiment, out=tmp_path / "told", progress=True)
    output, messages = capfd.readouterr()
    assert output == ""
    assert f"digest {result.summary['digest'][:12]}" in messages


#: The pages whose blocks of Python are scripts that use what `fredsim` exports.
SCRIPTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("export", "order", "scripts", "staleness", "sweeps", "tutorial", "verify")),
)


def written_scripts(folder: Path) -> list[Path]:
    """Write the blocks of each of these pages, one after another, to a file."""
    written = []
    for page in SCRIPTS:
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
        used = [block for block in blocks if not re.search(r"^class ", block, re.M)]  # not a class of one's own
        assert any("fredsim." in block for block in used), page
        written.append(folder / f"{Path(page).stem.lower()}_page.py")
        written[-1].write_text("\n".join(["import fredsim", *used]), encoding="utf-8")
    return written


def test_a_users_types_are_checked(tmp_path: Path) -> None:
    """Scripts on the pages of the manual, and more, pass a strict type checker."""
    path = tmp_path / "script.py"
    path.write_text(
        "import fredsim\n"
        "from matplotlib.figure import Figure\n\n"
        'result: fredsim.Result = fredsim.run("quickstart", ["iterations=10"], out="out", progress=True)\n'
        "error: object = result.metrics['validation_error'].min()\n"
        'results: fredsim.Results = fredsim.sweep("quickstart", jobs=2, on_row=lambda row: print(row["iteration"]))\n'
        'figure: Figure = results.plot("curves", by="server.name", log=True)\n'
        "differences: list[str] = results.verify() + results[0].compare(results[1])\n"
        "first: fredsim.Result = next(iter(results))\n",
        encoding="utf-8",
    )
    scripts = [path, *written_scripts(tmp_path)]
    how = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent", *map(str, scripts)]
    done = subprocess.run(how, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_path_begins_in_the_home_folder(
    experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell has it, where no shell replaces ~: in Python, and in variables of the environment."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("home").mkdir()
    one = fredsim.run(experiment, out="~/one")
    Path("home/x.yaml").write_text(dump_yaml(experiment), encoding="utf-8")
    other = fredsim.run("~/x.yaml", out=Path("~/other"), data_root="~/data")
    assert [one.folder, other.folder] == [Path("home/one").absolute(), Path("home/other").absolute()]
    assert fredsim.load("~/one").folder == fredsim.Result("~/one").folder == one.folder
    assert one.compare("~/other") == []
    fredsim.sweep(experiment | SEEDS, out="~/both").plot(path="~/a.svg")
    assert len(fredsim.Results("~/both")) == 2
    assert Path("home/a.svg").is_file()
    assert not Path("~").exists()
    assert data_root("~/data") == tmp_path / "home/data"
    for variable, folder in (("FREDSIM_DATA", data_root), ("FREDSIM_CACHE", cache_folder)):
        monkeypatch.setenv(variable, "~/mine")
        assert folder() == tmp_path / "home/mine"


def test_no_path_is_empty_or_of_another_type(
    experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path takes it for the current folder, where nobody wants a run's files."""
    monkeypatch.chdir(tmp_path)
    one = fredsim.run(experiment, out="one")
    calls: dict[str, Callable[[], object]] = {
        "out": lambda: fredsim.run(experiment, out=""),
        "data_root": lambda: fredsim.sweep(experiment | SEEDS, data_root=""),
        "the experiment's name": lambda: fredsim.run(""),
        "folder": lambda: fredsim.load(""),
        "path": lambda: one.plot(path=""),
        "other": lambda: one.compare(""),
    }
    for what, call in calls.items():
        with pytest.raises(fredsim.ConfigError, match=f"^{what} is empty; name a folder or a file"):
            call()
    anything: Any = 5
    calls = {
        "out is 5; it must be a path": lambda: fredsim.run(experiment, out=anything),
        "data_root is 5; it must be a path": lambda: fredsim.sweep(experiment | SEEDS, data_root=anything),
        "the experiment's name is [{}]; it must be a path": lambda: fredsim.run(cast(Any, [{}])),
        "folder is null; it must be a path": lambda: fredsim.load(cast(Any, None)),
        "folder is 5; it must be a path": lambda: fredsim.Results(anything),
        "other is 5; it must be a path": lambda: one.compare(anything),
        "overrides: is null; it must be a list of strings": lambda: fredsim.run(experiment, cast(Any, None)),
        "overrides: is 5; it must be a list of strings": lambda: fredsim.sweep(experiment | SEEDS, anything),
        "on_row is 5; it must be a function": lambda: fredsim.run(experiment, out="two", on_row=anything),
        "allow_code is 5; it must be True or False": lambda: one.verify(allow_code=anything),
        "replay is 5; it must be True or False": lambda: one.compare(one, replay=anything),
        r"out is 'a\x00b'; no name of a file has": lambda: fredsim.run(experiment, out="a\0b"),
        r"path is 'a\x00.html'; no name of a file has": lambda: one.report("a\0.html"),
    }
    for says, call in calls.items():
        with pytest.raises(fredsim.ConfigError, match=f"^{re.escape(says)}"):
            call()
    assert [path.name for path in Path().iterdir()] == ["one"]
