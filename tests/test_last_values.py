"""The final value of a run is that of its last row, NaN and infinity included, wherever runs are counted or drawn."""

import csv
import importlib.util
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.runs.folder.results import Result, Results
from fredsim.show.overview import overview
from fredsim.show.plots.finals import final_values
from tests.reports import rows_in
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
#: Learning rates after two steps of which the parameters are finite, and the loss is finite, infinite, and NaN.
GOOD, INFINITE, NOT_A_NUMBER = 0.1, 2e19, 3e19
TEXTS = {GOOD: "", INFINITE: "inf", NOT_A_NUMBER: "nan"}


@pytest.fixture
def swept(small_yaml: Path, digits_experiment: dict[str, Any]) -> Results:
    data = digits_experiment | {
        "iterations": 2, "model": {"hidden": [8]}, "clients": {"count": 4, "batch_size": 4},
        "evaluation": {"every": 1, "gradient_norm": True}, "sweep": {"server.lr": [*TEXTS]},
        "select": {"best": "validation_error", "over": "server.lr"},
    }  # fmt: skip
    small_yaml.write_text(dump_yaml(data), encoding="utf-8")
    found = fredsim.run(data, out="sweep")
    assert isinstance(found, Results)
    return found


def cells(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def last(run: Result, column: str) -> str:
    return cells(str(run.folder / "metrics.csv"))[-1][column]


def test_how_a_run_ended(swept: Results) -> None:
    assert [last(run, "validation_loss") for run in swept][1:] == ["inf", "nan"]
    assert [run.has_diverged for run in swept] == [False, True, True]
    assert [run.summary["status"] for run in swept] == ["finished"] * 3
    for run in swept:
        for column in ("validation_loss", "validation_error", "train_loss", "gradient_norm"):
            assert str(run.final(column)) == last(run, column)


def test_the_tables_of_a_sweep(swept: Results) -> None:
    rows = cells("sweep/runs.csv")
    for row, run in zip(rows, swept, strict=True):
        assert [row[name] for name in ("validation_loss", "gradient_norm")] == [
            last(run, name) for name in ("validation_loss", "gradient_norm")
        ]
        assert row["status"] == "finished"
    (best,) = cells("sweep/best.csv")
    assert (best["server.lr"], best["diverged"]) == ("0.1", "0")


def test_tables_without_what_is_not_finite(swept: Results, command: Command) -> None:
    """Those of fredsim 1.0.0, in which such runs could be chosen, pass for its runs alone, and whole tables alone."""
    runs, best = Path("sweep/runs.csv"), Path("sweep/best.csv")
    now = runs.read_text(encoding="utf-8"), best.read_text(encoding="utf-8")
    blank = re.sub(r"(?<=,)(?:nan|inf)(?=,|\n)", "", now[0])
    one = re.sub(r"(?<=,)inf(?=,|\n)", "", now[0])
    assert len({*now, blank, one}) == 4
    assert one.count("nan") == now[0].count("nan") > 0
    folders = [run.folder for run in swept]
    summaries = [run.summary for run in swept]
    for version, text, passes in (
        ("1.0.0", now[0], True), ("1.0.0", blank, True), ("1.0.0", one, False),
        ("1.1.0", now[0], True), ("1.1.0", blank, False), ("2.0", one, False), ("", blank, False),
        (fredsim.__version__, now[0], True), (fredsim.__version__, blank, False),
    ):  # fmt: skip
        for folder, summary in zip(folders, summaries, strict=True):
            seal(folder, summary | {"versions": summary["versions"] | {"fredsim": version}})
        runs.write_text(text, encoding="utf-8")
        best.write_text(now[1], encoding="utf-8")
        assert (command("plot", "sweep", "-o", "a.svg")[0] == 0) is passes, (version, text)
        if version:
            code, output, _ = command("verify", "sweep")
            assert (code, "sweep: different: runs.csv" in output) == (int(not passes), not passes), (version, text)
    for folder in folders:
        shutil.rmtree(folder)
    for text, code, notes in ((now[0], 0, 0), (blank, 0, 2), (one, 1, 0)):
        runs.write_text(text, encoding="utf-8")
        found, _, messages = command("verify", "sweep")
        assert (found, messages.count("leaves out what is not finite, as fredsim 1.0.0 did")) == (code, notes)


@pytest.mark.parametrize("y", ["validation_loss", "validation_error", "train_loss", "gradient_norm"])
@pytest.mark.parametrize("kind", ["curves", "ends"])
def test_what_is_drawn_and_tabulated(kind: str, y: str, swept: Results, command: Command, drawn: list[Figure]) -> None:
    """A line of its own for each run: its last value; one line for all: none, as most of its runs diverged."""
    x = ["--x", "server.lr"] if kind == "ends" else []
    plot = ("plot", "sweep", "-o", "a.png", "--kind", kind, "--y", y)
    code, output, _ = command(*plot, *(x or ["--by", "server.lr"]))
    assert code == 0
    rows = cells("a-table.csv")
    assert [row[f"final {y}"] for row in rows] == [last(run, y) for run in swept]
    assert [row["diverged"] for row in rows] == ["0", "1", "1"]
    assert (" nan" in output) or y not in {"validation_loss", "gradient_norm"}
    crosses = [line for line in drawn[-1].axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == 2
    assert all(math.isfinite(float(cross.get_ydata()[0])) for cross in crosses)  # type: ignore[index, arg-type]
    assert "×: a run diverged, or ended with a loss that is not finite" in Path("a-table.md").read_text("utf-8")
    if kind == "curves":
        assert command(*plot, "--by", "server.name")[0] == 0
        (row,) = cells("a-table.csv")
        assert (row[f"final {y}"], row["runs"], row["diverged"]) == ("", "3", "2")


@pytest.mark.usefixtures("swept")
def test_what_is_printed_and_reported(small_yaml: Path, command: Command) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    output = command("run", small_yaml, "--out", "again")[1]
    assert output.count("finished, loss not finite") == 2
    assert command("report", "sweep", "-o", "r.html")[0] == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "3 runs: 1 finished, 2 finished, loss not finite." in page
    assert {"nan", "inf"} <= {row["validation loss"] for row in rows_in(page)}


#: A problem of the user's own whose loss is finite at the end; `rmse` is not, if the case says so.
PROBLEM = """import math
import numpy as np

class P:
    measured_by = "rmse"
    def __init__(self, end=1.0, mixed=False):
        self.end, self.mixed = float(end), mixed
    def initial(self, rng):
        self.sign = -1 if self.mixed and rng.random() < 0.5 else 1
        return np.zeros(3, np.float32)
    def gradient(self, params, draw):
        return -np.ones(3, np.float32), 1.0
    def evaluate(self, params):
        x = float(params[0])
        return {"loss": 1 / (1 + x), "rmse": 2.0 if x < 3 else self.sign * self.end}
"""
ENDS = ("nan", "-inf", "5.0", "inf")


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Be in a new folder with a module of such a problem; return an experiment of it."""
    monkeypatch.chdir(tmp_path)
    Path("measured.py").write_text(PROBLEM, encoding="utf-8")
    return {
        "name": "measured", "iterations": 4, "problem": {"name": "measured:P"}, "clients": {"count": 2},
        "server": {"name": "asgd", "lr": 1.0}, "evaluation": {"every": 2},
    }  # fmt: skip


def test_a_measure_of_the_users_own_that_is_not_finite(measured: dict[str, Any], command: Command) -> None:
    sweep = {"problem.end": [*map(float, ENDS)], "seed": [0, 1]}
    data = measured | {"sweep": sweep, "select": {"best": "rmse", "over": "problem.end"}}
    Path("x.yaml").write_text(dump_yaml(data), encoding="utf-8")
    code, output, messages = command("run", "x.yaml", "--out", "own")
    assert (code, output.count("finished, rmse not finite")) == (0, 6)
    assert "finished, rmse not finite after 4 iterations" in messages
    table = output.splitlines()
    assert "valid. error" not in table[0]
    (at,) = (at for at, name in enumerate(re.split(r"  +", table[0].strip())) if name == "rmse")
    assert [re.split(r"  +", line.strip())[at] for line in table[1:9:2]] == ["nan", "-inf", "5.0000", "inf"]
    assert cells("own/best.csv") == [
        {"problem.end": "5.0", "mean_rmse": "5.0", "runs": "2", "diverged": "0", "candidates": "4"}
    ]
    rows = cells("own/runs.csv")
    assert [row["rmse"] for row in rows] == [end for end in ENDS for _ in range(2)]
    assert {(row["validation_loss"], row["validation_error"]) for row in rows} == {(repr(1 / 5), "")}
    for words in (["--by", "problem.end"], ["--kind", "ends", "--x", "problem.end"]):
        assert command("plot", "own", "-o", "a.png", *words)[0] == 0
        assert [row["final rmse"] for row in cells("a-table.csv")] == [*ENDS]
        assert "×: a run diverged, or ended with a rmse that is not finite" in Path("a-table.md").read_text("utf-8")
    (row,) = overview(Path("own"))
    assert (row["best"], row["measure"], row["run"]) == (5.0, "rmse", "end=5.0,seed=0")
    (row,) = overview(Path("own") / rows[0]["run"])
    assert (row["best"], row["state"]) == (None, "finished, rmse not finite")
    assert command("verify", "own", "--allow-code")[0] == 0
    if importlib.util.find_spec("plotly"):
        assert command("report", "own", "-o", "r.html")[0] == 0
        page = Path("r.html").read_text(encoding="utf-8")
        assert "8 runs: 6 finished, rmse not finite, 2 finished." in page
        assert [str(row["rmse"]) for row in rows_in(page)] == [end for end in ENDS for _ in range(2)]


def test_numbers_at_the_ends_of_what_floats_hold(measured: dict[str, Any], command: Command) -> None:
    """Means and medians of seeds are right, and something is drawn, without a warning."""
    data = measured | {"sweep": {"problem.end": [1.7e308, 1e-300], "seed": [0, 1]}}
    data |= {"select": {"best": "rmse", "over": "problem.end"}}
    fredsim.run(data, out="own")
    (best,) = cells("own/best.csv")
    assert (best["problem.end"], best["mean_rmse"], best["diverged"]) == ("1e-300", "1e-300", "0")
    for words in (["--by", "problem.end"], ["--kind", "ends", "--x", "problem.end"], ["--by", "server.name"]):
        assert command("plot", "own", "-o", "a.png", *words)[0] == 0
        finals = [row["final rmse"] for row in cells("a-table.csv")]
        assert sorted(finals) == (["1.7e+308", "1e-300"] if "problem.end" in words else ["8.5e+307"])
    if importlib.util.find_spec("plotly"):
        assert command("report", "own", "-o", "r.html")[0] == 0


def test_infinities_of_both_signs_among_seeds(measured: dict[str, Any], command: Command) -> None:
    data = measured | {"problem": {"name": "measured:P", "end": math.inf, "mixed": True}}
    data |= {"sweep": {"server.lr": [1.0, 2.0], "seed": [0, 1, 2, 3]}, "select": {"best": "rmse", "over": "server.lr"}}
    fredsim.run(data, out="own")
    assert {row["rmse"] for row in cells("own/runs.csv")} == {"-inf", "inf"}
    (best,) = cells("own/best.csv")
    assert (best["mean_rmse"], best["diverged"]) == ("inf", "4")
    assert command("plot", "own", "-o", "a.png", "--by", "server.name")[0] == 0
    assert cells("a-table.csv")[0]["final rmse"] == "nan"


@pytest.mark.usefixtures("small_yaml")
def test_only_what_is_measured_counts(digits_experiment: dict[str, Any]) -> None:
    """Without rows to validate on, and with targets instead of classes, nan means that there is no number."""
    data = digits_experiment | {"iterations": 3}
    unmeasured: dict[str, Any] = {"data": {"name": "digits", "validation": 0}}
    for number, (changes, measure) in enumerate([
        (unmeasured, "validation_error"),
        (unmeasured | {"loss": {"name": "cross_entropy", "label_smoothing": 0.1}}, "validation_error"),
        ({
            "data": {"name": "least_squares", "columns": 5, "train": 50},
            "model": {"name": "linear"},
            "server": {"name": "asgd", "lr": 1e-3},
        }, "gap"),
    ]):  # fmt: skip
        run = fredsim.run(data | changes, out=str(number))
        assert isinstance(run, Result)
        assert not run.has_diverged
        assert (run.ending, run.measure) == ("finished", measure)
        assert final_values([run], "train_loss") == [run.metrics["train_loss"].iloc[-1]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
def test_mlflow_gets_no_other_number(swept: Results, command: Command) -> None:
    """NaN stays NaN; infinity, for which MLflow would write the largest float, is left out and named in a tag."""
    for library in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install .[mlflow]")
    assert command("export", "sweep", "--to", "mlflow")[0] == 0
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{Path('mlflow.db').resolve()}")
    (experiment,) = (one for one in client.search_experiments() if one.name == "small")
    found = {one.data.params["server.lr"]: one for one in client.search_runs([experiment.experiment_id])}
    for lr, run in zip(TEXTS, swept, strict=True):
        one = found[str(lr)]
        assert one.info.status == ("FINISHED" if lr == GOOD else "FAILED")
        for column in ("validation_loss", "gradient_norm", "train_loss"):
            there = [(point.step, str(point.value)) for point in client.get_metric_history(one.info.run_id, column)]
            rows = [(int(row["iteration"]), row[column]) for row in cells(str(run.folder / "metrics.csv"))]
            assert there == [(at, text) for at, text in rows if text not in {"", "inf"}]
        tag = one.data.tags.get("fredsim.not_exported", "")
        assert tag == ("MLflow has no infinity: validation_loss: inf at 2" if lr == INFINITE else "")


def test_tensorboard_gets_no_other_number(swept: Results, command: Command) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install .[tensorboard]")
    assert command("export", "sweep", "--to", "tensorboard")[0] == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for run in swept:
        events = EventAccumulator(str(Path("tensorboard") / "sweep" / run.folder.name))
        events.Reload()
        there = [point.value for point in events.Scalars("validation_loss")]
        wanted = [float(row["validation_loss"]) for row in cells(str(run.folder / "metrics.csv"))]
        np.testing.assert_array_equal(there, np.array(wanted, np.float32))
