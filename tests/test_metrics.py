"""The metrics of `evaluation.metrics`: their values, by independent computation, and where their columns go."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fredsim
from fredsim.compute.metrics import PerClass, Perplexity, TopK
from fredsim.config.document import dump_yaml
from fredsim.config.experiment import Experiment
from fredsim.config.metrics import RESERVED
from fredsim.data.datasets import Dataset, Split, load_dataset
from fredsim.errors import ConfigError, SimulationError
from fredsim.runs.folder.result import Result
from fredsim.runs.folder.results import Results
from fredsim.runs.folder.sweep_tables import SUMMARY_COLUMNS
from fredsim.show.export.recorded import read_run
from fredsim.show.plots.drawing import available_y, default_y
from fredsim.show.report.run_table import run_table
from fredsim.simulation.record.recorder import MEASURED, METRICS, TEST

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
FUNCTIONS = """
import fractions
import random

import numpy as np

def largest(output, y, times=1.0):
    assert output.dtype == np.float32 and len(output) == len(y)
    output[:] = 0  # its own copy
    return times * float(len(output))

def apart(output, y):
    return np.float32(np.abs(output.reshape(y.shape) - y).mean())

def fails(output, y):
    raise ValueError("on purpose")

def text(output, y):
    return "good"

def several(output, y):
    return np.zeros(3)

def masked(output, y):
    return np.ma.masked


def nothing(output, y):
    return None

def größe(output, y):
    return 1.0

def nan(output, y):
    return float("nan")

def many(output, y):
    return 2**70

def third(output, y):
    return fractions.Fraction(1, 3)

def endless(output, y):
    return -(10**400)

def time(output, y):
    return 1.0

def mae(output, y):
    return np.abs(output - y).mean()

def unexplained(output, y):
    return ((output - y) ** 2).sum() / ((y - y.mean(axis=0)) ** 2).sum()

def indexed(output, y):
    return np.abs(output[:, 0] - y).mean()

def last(output, y):
    return np.abs(output[..., 0] - y).mean()

def summed(output, y):
    return np.abs(output.sum(axis=-1) - y).mean()

def length(output, y):
    return np.linalg.norm(output, axis=-1).mean()

def bias(output, y):
    return (output.reshape(y.shape) - y).mean()

def wrong(output, y):
    return float((output.argmax(axis=1) != y).mean())

def resampled(output, y):
    rows = np.random.randint(0, len(y), len(y))
    return random.random() + (output[rows].argmax(axis=1) != y[rows]).mean()

def unseeded(output, y):
    return np.random.default_rng().random()
"""


@pytest.fixture(autouse=True)
def functions(small_yaml: Path) -> None:
    """Write a user's functions into a new current folder."""
    del small_yaml
    Path("mine.py").write_text(FUNCTIONS, encoding="utf-8")


def metrics(*names: Any, **more: Any) -> dict[str, Any]:
    return {"evaluation": {"every": 25, "metrics": [*names], **more}}


def rows_of(path: str) -> list[dict[str, str]]:
    return [*csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())]


def logits_of(result: Result, x: Any) -> Any:
    p = {name: value.astype(np.float64) for name, value in result.params.items()}
    return np.maximum(x.astype(np.float64) @ p["W1"] + p["b1"], 0) @ p["W2"] + p["b2"]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_values(backend: str, simulate: Simulate) -> None:
    names = ["top5", "top2", "perplexity", "per_class", "mine:largest", "mine:many", "mine:third"]
    result = simulate({"backend": backend} | metrics(*names, test=True))
    data, last = load_dataset("digits", None, None, Path()), result.metrics.iloc[-1]
    for split, prefix in ((data.validation, ""), (data.test, "test_")):
        z = logits_of(result, split.x)
        order, labels = np.argsort(-z, axis=1), split.y[:, None]
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        assert last[f"{prefix}top5"] == pytest.approx(1 - (order[:, :5] == labels).any(axis=1).mean())
        assert last[f"{prefix}top2"] == pytest.approx(1 - (order[:, :2] == labels).any(axis=1).mean())
        wanted = math.exp(-np.take_along_axis(log_p, labels, 1).mean())
        assert last[f"{prefix}perplexity"] == pytest.approx(wanted, rel=1e-5)
        for label in range(10):
            wrong = (order[:, 0] != split.y)[split.y == label]
            assert last[f"{prefix}error_class_{label}"] == pytest.approx(wrong.mean())
        assert last[f"{prefix}largest"] == len(split)
        assert (last[f"{prefix}many"], last[f"{prefix}third"]) == (2.0**70, 1 / 3)
    assert result.summary["metrics"]["top5"] == last["top5"]
    assert [*result.summary["metrics"]][:4] == ["top5", "top2", "perplexity", "error_class_0"]


def test_metrics_change_no_bit_and_are_the_same_on_every_backend(simulate: Simulate) -> None:
    names = ["top5", "perplexity", "per_class"]
    plain, one, other = simulate({}), simulate(metrics(*names)), simulate({"backend": "numpy"} | metrics(*names))
    assert plain.summary["digest"] == one.summary["digest"]
    assert one.metrics.to_csv() == other.metrics.to_csv()
    images: dict[str, Any] = {"model": {"name": "resnet", "width": 8}, "iterations": 2}
    one, other = (simulate(images | {"backend": name} | metrics("top5", "perplexity")) for name in ("numba", "numpy"))
    assert one.metrics.to_csv() == other.metrics.to_csv()


def of_places(labels: Any, ignored: int | None = -1) -> Dataset:
    """Return sequences of tokens below 4 with these labels."""
    y = np.array(labels, np.int32)
    split = Split(np.ones_like(y), y)
    return Dataset(split, split, split, 4, y.shape[1:], (), ignored)


def test_places_that_do_not_count_and_ties() -> None:
    data = of_places([[0, -1], [3, 1]])
    z = np.array([[[1, 1, 0, 0], [9, 9, 9, 9]], [[2, 2, 0, 2], [0, 5, 0, 0]]], np.float32)
    y = data.train.y
    found = TopK(2).block(z, y, data)  # 3 comes after 0 and 1, which are equal to it
    assert found.tolist() == [0.0, 0.5]
    assert TopK(1).block(z, y, data).tolist() == [0.0, 0.5]
    assert TopK(1).block(np.full_like(z, np.nan), y, data).tolist() == [1.0, 1.0]
    assert PerClass().columns(data) == ("error_class_0", "error_class_1", "error_class_3")
    assert PerClass().values(PerClass().block(z, y, data), y) == [0.0, 0.0, 1.0]
    p = [math.e / (2 * math.e + 2), math.e**2 / (3 * math.e**2 + 1), math.e**5 / (math.e**5 + 3)]
    (value,) = Perplexity().values(Perplexity().block(z, y, data), y)
    assert value == pytest.approx(math.exp(-np.log(p).mean()), rel=1e-6)


def test_perplexity_is_without_smoothing(simulate: Simulate) -> None:
    loss = {"name": "cross_entropy", "label_smoothing": 0.3}
    result = simulate({"loss": loss, "backend": "numpy"} | metrics("perplexity"))
    data = load_dataset("digits", None, None, Path()).validation
    z = logits_of(result, data.x)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    wanted = math.exp(-log_p[np.arange(len(data)), data.y].mean())
    assert result.summary["metrics"]["perplexity"] == pytest.approx(wanted, rel=1e-5)
    assert wanted < math.exp(result.summary["validation_loss"])


def test_own_metrics(simulate: Simulate) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    np.savez("own.npz", x_train=x[:48], y_train=x[:48].sum(axis=1), x_test=x[48:], y_test=x[48:].sum(axis=1))
    own = {"name": "mine:largest", "column": "rows", "times": 2.0}
    changes = {
        "data": {"name": "npz:own.npz"},
        "loss": "mse",
        "backend": "numpy",
        "server": {"name": "asgd", "lr": 0.01},
    }
    result = simulate(changes | metrics("mine:apart", own))
    wanted = np.abs(logits_of(result, x[40:48])[:, 0] - x[40:48].sum(axis=1)).mean()
    assert result.summary["metrics"] == {"apart": pytest.approx(wanted, rel=1e-5), "rows": 16.0}
    assert "mine" in result.summary["code"]
    assert (result.measure, default_y([result])) == ("validation_loss", "validation_loss")
    assert result.outcome["rows"] == 16.0


@pytest.fixture
def of_one_number() -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    np.savez("own.npz", x_train=x[:48], y_train=x[:48].sum(axis=1), x_test=x[48:], y_test=x[48:].sum(axis=1))
    return {"data": {"name": "npz:own.npz"}, "loss": "mse", "server": {"name": "asgd", "lr": 0.01}}


@pytest.mark.parametrize("name", ["mae", "unexplained"])
def test_a_metric_in_which_each_output_meets_each_target(
    name: str, of_one_number: dict[str, Any], simulate: Simulate
) -> None:
    """Of outputs (8, 1) and targets (8,) their difference has 64 numbers."""
    with pytest.raises(SimulationError) as caught:
        simulate(of_one_number | metrics(f"mine:{name}"))
    assert f"mine:{name} returned" in str(caught.value)
    assert "outputs (8, 1) and targets (8,), of which each meets each, and" in str(caught.value)
    assert "for outputs of the targets' shape; take output[:, 0], or save y as (n, 1)" in str(caught.value)
    arrays = dict(np.load("own.npz"))
    np.savez("own.npz", **arrays | {key: arrays[key][:, None] for key in ("y_train", "y_test")})
    found = simulate(of_one_number | metrics(f"mine:{name}"))
    e = logits_of(found, arrays["x_train"][40:]) - (y := arrays["y_train"][40:, None])
    wanted = np.abs(e).mean() if name == "mae" else (e**2).sum() / ((y - y.mean()) ** 2).sum()
    assert found.summary["metrics"][name] == pytest.approx(wanted, rel=1e-5)


def test_metrics_that_bring_outputs_and_targets_together(of_one_number: dict[str, Any], simulate: Simulate) -> None:
    found = simulate(
        of_one_number | metrics(*(f"mine:{name}" for name in ("indexed", "last", "summed", "length", "bias")))
    )
    x = np.load("own.npz")["x_train"][40:]
    z, y = logits_of(found, x)[:, 0], x.sum(axis=1)
    wanted = dict.fromkeys(("indexed", "last", "summed"), np.abs(z - y).mean())
    wanted |= {"length": np.abs(z).mean(), "bias": (z - y).mean()}
    assert found.summary["metrics"] == pytest.approx(wanted, rel=1e-4)


def test_a_goal(simulate: Simulate) -> None:
    found = simulate({"until": {"top5": 0.3}, "iterations": 400} | metrics("top5", "per_class"))
    rows = found.metrics["top5"].to_numpy()
    assert rows[-1] <= 0.3 < rows[:-1].min()
    assert found.summary["iterations"] < 400
    found = simulate({"until": {"error_class_0": 0.5}, "iterations": 400} | metrics("per_class"))
    assert found.metrics["error_class_0"].iloc[-1] <= 0.5 < found.metrics["error_class_0"].iloc[:-1].min()


def test_more_is_better(small_yaml: Path, command: Command) -> None:
    """Of one metric, and by the same numbers less of another: goals, choices, titles and verification follow it."""
    Path("mine.py").write_text("def right(output, y):\n    return (output.argmax(axis=1) == y).mean()\n", "utf-8")
    least = {"name": "mine:right", "column": "least"}
    more = {"name": "mine:right", "column": "most", "larger_is_better": True}
    given = ("run", small_yaml, f"evaluation.metrics={json.dumps([least, more])}", "evaluation.every=20")
    assert command(*given, "until={most: 0.5}", "iterations=2000", "--out", "goal")[0] == 0
    run = Result(Path("goal"))
    rows = run.metrics["most"].to_numpy()
    assert rows[-1] >= 0.5 > rows[:-1].max()
    assert run.metrics["least"].tolist() == rows.tolist()
    assert run.summary["larger_is_better"] == ["most"]
    assert run.config["evaluation"]["metrics"] == [least, more]
    assert command("verify", "goal")[0] == 0
    sweep = json.dumps({"server.lr": [0.01, 0.1], "seed": [1, 2]})
    for column, top in (("most", max), ("least", min)):
        select = f"select={{best: {column}, over: server.lr}}"
        assert command(*given, "evaluation.test=true", f"sweep={sweep}", select, "--out", column)[0] == 0
        means = pd.read_csv(f"{column}/runs.csv").groupby("server.lr")[column].mean()
        (best,) = rows_of(f"{column}/best.csv")
        assert float(best["server.lr"]) == means[means == top(means)].index[0]
        loaded = fredsim.load(column)
        assert isinstance(loaded, Results)
        assert all({*one.summary["larger_is_better"]} == {"most", "test_most"} for one in loaded)
        assert command("verify", column)[0] == 0
        assert command("plot", column, "--y", "most", "--out", "some.png")[0] == 0
    assert Path("most/best.csv").read_text("utf-8") != Path("least/best.csv").read_text("utf-8")
    other = Path("most/best.csv").read_text("utf-8").replace("0.1,", "0.01,", 1)
    Path("most/best.csv").write_text(other, "utf-8")
    code, output, errors = command("verify", "most")
    assert (code, "best.csv" in output + errors) == (1, True)


def test_a_sweep(digits_experiment: dict[str, Any], command: Command) -> None:
    sweep = {"sweep": {"server.lr": [0.01, 0.1]}, "select": {"best": "top5", "over": "server.lr"}}
    figures = {"figures": [{"name": "five", "y": "top5"}, {"name": "one", "y": "error_class_1", "kind": "ends"}]}
    plain = digits_experiment | metrics("top5", "per_class") | sweep | figures
    Path("some.yaml").write_text(dump_yaml(plain), encoding="utf-8")
    code, output, _ = command("run", "some.yaml", "--out", "some")
    assert (code, "top5" in output) == (0, True)
    rows = rows_of("some/runs.csv")
    loaded = fredsim.load("some")
    assert isinstance(loaded, Results)
    for row, run in zip(rows, loaded, strict=True):
        kept = {name: str(value) for name, value in run.summary["metrics"].items()}
        assert {name: row[name] for name in kept} == kept
    (best,) = rows_of("some/best.csv")
    assert float(best["mean_top5"]) == min(float(row["top5"]) for row in rows)
    assert Path("some/five.png").exists()
    assert Path("some/one.png").exists()
    table = run_table([*loaded], [], [], several=False)
    assert {"top5", "error class 9"} <= {column["name"] for column in table["columns"] if column["measure"]}
    assert {"top5", "error_class_9"} <= {*available_y([*loaded])}
    assert [point.value for point in read_run("a", loaded[0]).points["top5"]] == loaded[0].metrics["top5"].tolist()
    assert command("plot", "some", "--y", "error_class_2", "--out", "two.png")[0] == 0
    if importlib.util.find_spec("plotly") is not None:
        assert command("report", "some", "--out", "some.html")[0] == 0
        assert "error class 9" in Path("some.html").read_text(encoding="utf-8")
    Path("some/runs.csv").unlink()
    assert command("run", "some.yaml", "--out", "some", "--resume")[0] == 0
    assert rows_of("some/runs.csv") == rows


def test_verify_and_compare(small_yaml: Path, command: Command) -> None:
    given = ("run", small_yaml, "evaluation.every=25", "evaluation.metrics=[top5, 'mine:largest']")
    assert command(*given, "--out", "one")[0] == 0
    code, output, _ = command("verify", "one")
    assert (code, output) == (0, "one: same bits\n")
    summary = json.loads(Path("one/summary.json").read_text(encoding="utf-8"))
    assert summary["metrics"] == {"top5": Result(Path("one")).metrics["top5"].iloc[-1], "largest": 297.0}
    assert command(*given, "backend=numpy", "--out", "other")[0] == 0
    assert command("compare", "one", "other")[0] == 0
    assert command("run", small_yaml, "evaluation.every=25", "--out", "plain")[0] == 0
    code, output, _ = command("compare", "one", "plain")
    assert code != 0
    assert "top5" in output


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such metric": (metrics("top"), "did you mean 'top5'?"),
    "an option": (metrics({"name": "top5", "column": "five"}), "top5 has the option 'column'; it takes none"),
    "more of what is less": (
        metrics({"name": "top5", "larger_is_better": True}),
        "top5 has the option 'larger_is_better'; it takes none",
    ),
    "too many": (metrics("top10"), "it would always be 0"),
    "twice": (metrics("top5", "top5"), "metrics has 'top5' twice"),
    "the same column": (metrics("mine:largest", {"name": "mine:apart", "column": "largest"}), "has 'largest' twice"),
    "a column of every run": (metrics("mine:time"), "would have the column 'time', which is taken"),
    "a column that no file has": (metrics("mine:größe"), "column 'größe', which has not the letters"),
    "no such function": (metrics("mine:gone"), "has no 'gone'"),
    "no such argument": (metrics({"name": "mine:largest", "time": 2}), "metrics.0.time: unknown key"),
    "of no classes": (metrics("top5") | {"loss": "mse"}, "top5 is of classes, and loss mse is not"),
    "of a linear model": (
        metrics("mine:largest") | {"data": {"name": "mishchenko"}, "model": {"name": "linear"}}, "measured by its gap"),
    "an empty class": (
        metrics("per_class") | {"data": {"name": "digits", "validation": 5}}, "no validation row has the class"),
    "another goal": (metrics("top5") | {"until": {"top6": 0.1}}, "until.top6: unknown key; did you mean 'top5'?"),
    "a goal of no metric": ({"until": {"top5": 0.1}}, "until.top5: unknown key"),
    "another choice": (
        metrics("top5") | {"sweep": {"seed": [0, 1]}, "select": {"best": "top6", "over": "seed"}},
        "select.best: is 'top6'; did you mean 'top5'?"),
    "a goal of a class that there is not": (
        metrics("per_class") | {"until": {"error_class_10": 0.1}},
        "until.error_class_10: is the error of a class that the data have not; did you mean 'error_class_1'?"),
    "a goal of a class that does not count": (
        metrics("per_class") | {"loss": {"name": "cross_entropy", "ignore_index": 3}, "until": {"error_class_3": 0.1}},
        "(known: error_class_0, error_class_1, error_class_2, error_class_4,"),
    "what nobody published": (
        {"published": {"source": "a", "y": "top5", "series": [{"where": {"seed": 0}, "points": [[1, 2]]}]}},
        "published.y: is 'top5'"),
    "another figure": (metrics("top5") | {"figures": [{"name": "a", "y": "top6"}]}, "did you mean 'top5'?"),
}  # fmt: skip


@pytest.mark.parametrize("given", [5, True, "per_class", {"name": "per_class"}, [5]], ids=str)
def test_metrics_that_are_no_list_are_one_message(given: Any, simulate: Simulate) -> None:
    """Also where a figure's column is looked up among them, before they are checked."""
    with pytest.raises(ConfigError) as caught:
        simulate({"evaluation": {"metrics": given}, "figures": [{"name": "a", "y": "error_class_0"}]})
    assert "figures.0.y" in str(caught.value) or "evaluation.metrics" in str(caught.value)


@pytest.mark.parametrize("form", ["per_class", {"name": "per_class"}], ids=str)
def test_a_figure_of_one_class_by_either_form(form: Any, simulate: Simulate) -> None:
    figures = {"iterations": 2, "figures": [{"name": "a", "y": "error_class_0"}]}
    assert "error_class_0" in simulate({"evaluation": {"metrics": [form]}} | figures).metrics


@pytest.mark.parametrize(("changes", "says"), BAD.values(), ids=BAD)
def test_what_is_refused(changes: dict[str, Any], says: str, simulate: Simulate) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


TWO_SETS: list[dict[str, Any]] = [{"data": {"name": "digits"}}, {"data": {"name": "glyphs", "classes": 4}}]
BY_CLASS = {"best": "error_class_7", "over": "seed", "per": "data.name"}


@pytest.mark.parametrize(("changes", "says"), [
    (metrics("top5") | {"cases": TWO_SETS}, "evaluation.metrics: top5: the data have 4 classes.*in the run data=gl"),
    (metrics("per_class") | {"sweep": {"data.validation": [297, 5]}}, "no validation row has the class 3.*in the run"),
    (metrics("per_class") | {"cases": TWO_SETS, "sweep": {"seed": [0, 1]}, "select": BY_CLASS},
     "select.best: is 'error_class_7', the error of a class that the data have not.*in the run"),
    (metrics("per_class") | {"sweep": {"seed": [0, 1]}, "select": {"best": "error_class_10", "over": "seed"}},
     "select.best: is 'error_class_10', the error of a class that the data have not"),
], ids=str)  # fmt: skip
def test_a_sweep_of_which_one_run_cannot_be_measured_does_none(
    changes: dict[str, Any], says: str, digits_experiment: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        fredsim.sweep(digits_experiment | changes, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fails", "failed on outputs (297, 10) and targets (297,), arrays of NumPy: ValueError: on purpose (mine.py:"),
        ("text", "returned 'good'; it must return one real number"),
        ("several", "returned ndarray of shape (3,); it must return one real number"),
        ("masked", "returned masked; it must return one real number"),
        ("nothing", "returned None; it must return one real number"),
        ("nan", "returned nan for outputs that are all finite"),
        ("endless", "returned -inf for outputs that are all finite"),
        ("unseeded", " for the same outputs; it must depend on what it is given alone"),
    ],
)
def test_functions_that_fail(name: str, says: str, simulate: Simulate) -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(metrics(f"mine:{name}"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_metric_draws_is_the_same_each_time(simulate: Simulate) -> None:
    """As of a bootstrap: the generators that it draws from are seeded for each call, and put back."""
    random.seed(7)
    result = simulate({"model": {"hidden": []}} | metrics("mine:resampled"))
    test, drawn = load_dataset("digits", None, None, Path()).validation, np.random.RandomState(0)
    rows = drawn.randint(0, len(test), len(test))
    assert random.random() == random.Random(7).random()
    outputs = test.x[rows].reshape(len(rows), -1) @ result.params["W1"] + result.params["b1"]
    wanted = outputs.argmax(axis=1) != test.y[rows]
    assert result.metrics["resampled"].iloc[-1] == pytest.approx(random.Random(0).random() + wanted.mean())


def test_a_function_that_takes_finite_outputs_alone_ends_no_run(simulate: Simulate) -> None:
    """As those of scikit-learn, which refuse NaN: the run is one whose loss is not finite."""
    text = "import numpy as np\n\ndef strict(output, y):\n    assert np.isfinite(output).all()\n    return 1.0\n"
    Path("mine.py").write_text(text, encoding="utf-8")
    result = simulate({"server": {"name": "asgd", "lr": 1e25}, "iterations": 2} | metrics("mine:strict", every=1))
    assert result.metrics["strict"][0] == 1.0
    assert math.isnan(result.metrics["strict"].iloc[-1])
    assert result.summary["metrics"] == {"strict": None}
    assert result.has_diverged


def test_a_part_without_rows_and_a_run_that_diverges(simulate: Simulate) -> None:
    changes: dict[str, Any] = {"data": {"name": "digits", "validation": 0}} | metrics("top5", "mine:largest", test=True)
    found = simulate(changes).metrics.iloc[-1]
    assert math.isnan(found["top5"])
    assert math.isnan(found["largest"])
    assert found["test_largest"] == 300
    diverged = simulate({"server": {"name": "asgd", "lr": 1e30}} | metrics("top5", "mine:largest"))
    assert diverged.summary["status"] == "diverged"
    assert [*diverged.summary["metrics"]] == ["top5", "largest"]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"hidden": [6], "trainable": "*2"}},
        {"data": {"name": "digits", "augment": {"flip": True, "crop": 1}}},
        {"model": {"name": "vgg", "widths": [4], "dropout": 0.5, "trainable": ["*weight"]}},
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_outputs_are_those_that_the_error_is_of(changes: dict[str, Any], backend: str, simulate: Simulate) -> None:
    """Whatever stands between the run and its engine: tensors that stay, and samples that are changed in training."""
    changes = {"backend": backend, "data": {"name": "digits", "train": 200, "validation": 40}} | changes
    found = simulate(changes | metrics("mine:wrong")).metrics
    assert found["wrong"].tolist() == found["validation_error"].tolist()
    assert found["wrong"].nunique() > 1


def test_names_that_are_taken() -> None:
    assert {*METRICS, *TEST, *MEASURED, *SUMMARY_COLUMNS, *Experiment.model_fields} <= RESERVED
