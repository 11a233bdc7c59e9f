"""`select`: for each combination of the other axes the value with the smallest mean at its end."""

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest

import fredsim
from fredsim.config.sweep.selection import Selection, best_rows
from fredsim.runs.folder.results import Results

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


def run(value: float | None, status: str = "finished", **axes: object) -> tuple[dict[str, object], dict[str, object]]:
    return {key.replace("_", "."): item for key, item in axes.items()}, {"status": status, "validation_error": value}


def test_the_smallest_mean_over_cases_and_seeds() -> None:
    runs = [
        run(0.5, server="a", lr=1, seed=0, cell=1),
        run(0.1, server="a", lr=1, seed=1, cell=1),
        run(0.2, server="a", lr=2, seed=0, cell=1),
        run(0.3, server="a", lr=2, seed=1, cell=1),
        run(0.9, server="b", lr=1, seed=0, cell=1),
        run(0.4, server="b", lr=1, seed=0, cell=2),
        run(0.7, server="b", lr=2, seed=0, cell=1),
        run(0.7, server="b", lr=2, seed=0, cell=2),
    ]
    found = best_rows(Selection(over="lr"), runs, ["cell"])
    assert [(row["server"], row["lr"], row["runs"], row["candidates"]) for row in found] == [
        ("a", 2, 2, 2),
        ("b", 1, 2, 2),
    ]
    assert [row["mean_validation_error"] for row in found] == pytest.approx([0.25, 0.65])
    assert list(found[0]) == ["server", "lr", "mean_validation_error", "runs", "diverged", "candidates"]


def test_a_choice_for_each_of_some_cases() -> None:
    """Cases list servers, and two lengths, over which the mean is taken: each server has a rate of its own."""
    runs = [
        run(error, server=server, lr=lr, length=length, clients=clients)
        for server, errors in {"a": {1: 0.1, 2: 0.3}, "b": {1: 0.6, 2: 0.2}}.items()
        for lr, error in errors.items()
        for length in (10, 20)
        for clients in (8, 32)
    ]
    cases = ["server", "lr", "length"]
    for per in ("server", ["server"]):
        found = best_rows(Selection(over="lr", per=per), runs, cases)
        assert [(row["server"], row["clients"], row["lr"], row["runs"]) for row in found] == [
            ("a", 8, 1, 2), ("a", 32, 1, 2), ("b", 8, 2, 2), ("b", 32, 2, 2),
        ]  # fmt: skip
    assert [row["lr"] for row in best_rows(Selection(over="lr"), runs, cases)] == [2, 2]
    assert "server" not in best_rows(Selection(over="lr"), runs, cases)[0]


def test_a_run_without_a_value_counts_worst() -> None:
    one = [run(0.1, lr=1, seed=0), run(0.1, "diverged", lr=1, seed=1), run(0.9, lr=2, seed=0), run(0.9, lr=2, seed=1)]
    assert best_rows(Selection(over="lr"), one, [])[0]["lr"] == 2
    both = [run(None, "failed", lr=1), run(0.1, "diverged", lr=2)]
    (found,) = best_rows(Selection(over=["lr"]), both, [])
    assert (found["lr"], found["diverged"], found["mean_validation_error"]) == (1, 1, math.inf)


@pytest.mark.parametrize("larger", [False, True])
def test_a_value_that_is_not_finite_counts_as_diverged(larger: bool) -> None:
    """Of a column of the user's own, which is not among the usual losses."""
    for bad in (math.nan, math.inf, -math.inf):
        runs = [
            ({"lr": lr, "seed": seed}, {"status": "finished", "rmse": value, "validation_loss": 0.5})
            for lr, values in {1: (bad, bad), 2: (5.0, 7.0), 3: (0.001, bad), 4: (bad, -bad)}.items()
            for seed, value in enumerate(values)
        ]
        (found,) = best_rows(Selection(best="rmse", over="lr"), runs, [], larger=larger)
        assert found == {"lr": 2, "mean_rmse": 6.0, "runs": 2, "diverged": 0, "candidates": 4}
        (found,) = best_rows(Selection(best="rmse", over="lr"), runs[:2] + runs[6:] + runs[4:6], [], larger=larger)
        assert found == {"lr": 3, "mean_rmse": 0.001, "runs": 2, "diverged": 1, "candidates": 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("loss", ["validation_loss", "gap", "gradient_norm"])
def test_a_run_of_which_a_loss_is_not_finite_is_not_chosen(loss: str, bad: float) -> None:
    runs = [run(error, lr=lr) for lr, error in ((1, 0.1), (2, 0.9))]
    for (_, outcome), value in zip(runs, (bad, 1.0), strict=True):
        outcome[loss] = value
    (found,) = best_rows(Selection(over="lr"), runs, [])
    assert found == {"lr": 2, "mean_validation_error": 0.9, "runs": 1, "diverged": 0, "candidates": 2}


def test_means_whose_sum_overflows() -> None:
    large = [run(value, lr=lr) for lr, values in {1: (1.7e308, 1.5e308, -1.7e308, 1.7e308), 2: (1.7e308,) * 2}.items()
             for value in values]  # fmt: skip
    (found,) = best_rows(Selection(over="lr"), large, [])
    assert (found["lr"], found["mean_validation_error"]) == (1, float((Fraction(1.7e308) + Fraction(1.5e308)) / 4))
    (found,) = best_rows(Selection(over="lr"), large[4:], [])
    assert (found["lr"], found["mean_validation_error"]) == (2, 1.7e308)


def test_a_candidate_without_a_value_is_no_largest_one() -> None:
    """As many runs gave no value, of two and of one."""
    runs = [run(5.0, lr=1), run(None, lr=1), run(None, lr=2)]
    for larger in (False, True):
        (found,) = best_rows(Selection(over="lr"), runs, [], larger=larger)
        assert (found["lr"], found["diverged"]) == (1, 1)


def test_the_fastest_there_by_the_clock(small_yaml: Path, command: Command) -> None:
    """The first row with the error, in simulated seconds; a value with which a run never has it comes last."""
    clock = "dispatcher={name: clock, compute: {noise: {name: gamma, cv: 0.3}}}"
    words = [clock, "evaluation.every=5", "iterations=300", "sweep={server.lr: [1.0e-4, 0.05, 0.2], seed: [0, 1]}"]
    select = "select={best: seconds_to, error: 0.5, over: server.lr}"
    results = fredsim.run(small_yaml, [*words, select], out="out")
    assert isinstance(results, Results)
    took: dict[float, list[float]] = {}
    for result, recorded in zip(results, results.runs["seconds_to"], strict=True):
        rows = result.metrics[result.metrics["validation_error"] <= 0.5]["time"]
        assert recorded == rows.iloc[0] if len(rows) else math.isnan(recorded)
        took.setdefault(result.config["server"]["lr"], []).append(rows.iloc[0] if len(rows) else math.inf)
    assert took[1e-4] == [math.inf, math.inf]
    means = {lr: sum(values) / 2 for lr, values in took.items()}
    best = min(means, key=lambda lr: means[lr])
    (row,) = results.best.to_dict("records")
    assert (row["server.lr"], row["mean_seconds_to"], row["never"]) == (best, means[best], 0)
    Path("kept").mkdir()
    for name in ("runs.csv", "sweep.yaml"):
        Path("kept", name).write_bytes(Path("out", name).read_bytes())
    assert command("verify", "kept")[0] == 0
    text = Path("kept/runs.csv").read_text(encoding="utf-8")
    Path("kept/runs.csv").write_text(text.replace(f",{took[best][0]}", ",1.5"), encoding="utf-8")
    code, output, _ = command("verify", "kept")
    assert (code, "seconds_to is 1.5 (recorded)" in output) == (1, True)


def test_never_there_is_the_worst() -> None:
    runs = [({"lr": lr}, {"status": "finished", "seconds_to": value}) for lr, value in
            [(1, 3.0), (1, None), (2, 50.0), (2, 60.0), (3, None), (3, None)]]  # fmt: skip
    (found,) = best_rows(Selection(best="seconds_to", error=0.1, over="lr"), runs, [])
    assert found == {"lr": 2, "mean_seconds_to": 55.0, "runs": 2, "never": 0, "candidates": 3}


def test_in_a_sweep(small_yaml: Path) -> None:
    text = small_yaml.read_text(encoding="utf-8")
    servers = "[{name: asgd, lr: 0.1}, {name: asgd, lr: 1.0e-6}, {name: sasgd, lr: 1.0e+30}, {name: sasgd, lr: 0.1}]"
    small_yaml.write_text(f"{text}sweep: {{server: {servers}, seed: [0, 1]}}\nselect: {{over: server.lr}}\n", "utf-8")
    results = fredsim.run(small_yaml, out="out")
    assert isinstance(results, Results)
    assert results.best["server.lr"].tolist() == [0.1, 0.1]
    assert results.best["server.name"].tolist() == ["asgd", "sasgd"]
    means = results.runs.groupby(["server.name", "server.lr"])["validation_error"].mean()
    assert results.best["mean_validation_error"].tolist() == [means["asgd", 0.1], means["sasgd", 0.1]]
    pd.testing.assert_frame_equal(results.best, pd.read_csv("out/best.csv"))
    fredsim.run(small_yaml, ["select=null"], out="without")
    with pytest.raises(fredsim.FredsimError, match="give the experiment `select`"):
        fredsim.load("without").best  # type: ignore[union-attr]  # noqa: B018


def test_by_the_norm_of_the_gradient(small_yaml: Path) -> None:
    words = ["sweep={server.lr: [0.001, 0.1], seed: [0, 1]}", "select={best: gradient_norm, over: server.lr}"]
    results = fredsim.run(small_yaml, [*words, "evaluation.gradient_norm=true"], out="out")
    assert isinstance(results, Results)
    norms = [result.metrics["gradient_norm"].iloc[-1] for result in results]
    assert results.runs["gradient_norm"].tolist() == norms
    means = {0.001: (norms[0] + norms[1]) / 2, 0.1: (norms[2] + norms[3]) / 2}
    best = min(means, key=lambda lr: means[lr])
    assert results.best[["server.lr", "mean_gradient_norm"]].to_numpy().tolist() == [[best, means[best]]]


def test_by_a_metric_with_the_name_of_a_column_of_best(small_yaml: Path) -> None:
    Path("mine.py").write_text("def wrong(output, y):\n    return (output.argmax(axis=1) != y).mean()\n", "utf-8")
    words = ["sweep={server.lr: [0.001, 0.1]}", "evaluation.metrics=[{name: 'mine:wrong', column: runs}]"]
    results = fredsim.sweep(small_yaml, [*words, "select={best: runs, over: server.lr}", "backend=numpy"], out="out")
    ends = {run.folder.name: float(run.metrics["runs"].iloc[-1]) for run in results}
    assert len({*ends.values()}) == 2
    assert results.chosen == [min(ends, key=lambda name: ends[name])]


def test_an_axis_within_another(small_yaml: Path) -> None:
    words = ["sweep={server: [{name: asgd}, {name: fasgd}], server.lr: [0.1, 0.01]}", "select={over: server.lr}"]
    results = fredsim.run(small_yaml, words, out="out")
    assert isinstance(results, Results)
    assert list(results.runs)[1:3] == ["server.name", "server.lr"]
    found = [(result.config["server"]["name"], result.config["server"]["lr"]) for result in results]
    assert found == [("asgd", 0.1), ("asgd", 0.01), ("fasgd", 0.1), ("fasgd", 0.01)]
    assert results.best[["server.name", "server.lr"]].to_numpy().tolist() == [["asgd", 0.1], ["fasgd", 0.01]]


def test_over_how_long_runs_are(small_yaml: Path) -> None:
    """Runs.csv says how long a run was, best.csv what it was given: a row may have ended it."""
    words = ["sweep={iterations: [10, 100], seed: [0, 1]}", "until={validation_error: 0.7}", "evaluation.every=10"]
    results = fredsim.run(small_yaml, [*words, "select={over: iterations}"], out="out")
    assert isinstance(results, Results)
    assert max(results.runs["iterations"]) < 100
    assert results.best["iterations"].tolist() == [100]
    assert results.chosen == [run for run in results.runs["run"] if run.startswith("iterations=100")]
    assert "seconds_to" not in results.runs  # of which nothing is asked
    lengths = "cases=[{iterations: 10}, {iterations: null, updates: 5}]"
    rates = ["sweep={server.lr: [1.0e-9, 0.1]}", lengths, "select={over: server.lr, per: [iterations, updates]}"]
    results = fredsim.run(small_yaml, rates, out="cases")
    assert isinstance(results, Results)
    assert results.chosen == [run for run in results.runs["run"] if "lr=0.1" in run]


def test_an_axis_with_mappings_is_all_keys_within_it(small_yaml: Path, refused: Refused) -> None:
    """Null beside compressors, a rate beside a schedule: each value is a candidate, whatever kind it is of."""
    compressors = "[null, {name: top_k, k: 0.01}]"
    rates = "[{name: inverse_power, base: 1.0e-3, lambd: 0.0}, 0.1]"
    words = [f"sweep={{compress: {compressors}, server.lr: {rates}, seed: [0, 1]}}", "iterations=20", "backend=numpy"]
    results = fredsim.sweep(small_yaml, [*words, "select={over: [server.lr, compress]}"], out="out")
    ends: dict[str, list[float]] = {}
    for result in results:
        key = repr([result.config.get("compress"), result.config["server"]["lr"]])
        ends.setdefault(key, []).append(float(result.metrics["validation_error"].iloc[-1]))
    means = {key: sum(values) / 2 for key, values in ends.items()}
    assert len(means) == 4
    (row,) = results.best.to_dict("records")
    assert row["mean_validation_error"] == min(means.values())
    assert (row["runs"], row["candidates"]) == (2, 4)
    best = min(means, key=lambda key: means[key])
    chosen = [fredsim.Result(f"out/{name}").config for name in results.chosen]
    assert [repr([config.get("compress"), config["server"]["lr"]]) for config in chosen] == [best, best]
    refused("show", small_yaml, *words, "select={over: server.lr, per: server}", says=("an axis of which a value",))


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([{"a": None}, {"a.name": "top_k", "a.k": 1}], ["a", "a.name"]),
        ([{"a": None}, {"a.name": "top_k", "a.k": 1}, {"a.name": "top_k", "a.k": 2}], ["a", "a.k", "a.name"]),
        ([{"a": 1}, {"a.k": 2}], ["a"]),
        ([{"a.k": 1}, {"a.k": 2}], ["a.k"]),
    ],
)
def test_a_choice_for_each_value_that_may_be_a_mapping(values: list[dict[str, object]], columns: list[str]) -> None:
    """For each value of a, the rate that is as large as its number is best; b is the mean's."""
    runs = [
        ({**value, "b": b, "lr": lr}, {"status": "finished", "validation_error": abs(lr - number) + b})
        for number, value in enumerate(values)
        for b in (0, 1)
        for lr in (0, 1, 2)
    ]
    found = best_rows(Selection(over="lr", per="a"), runs, [*columns, "a.name", "a.k", "b"])
    assert [row["lr"] for row in found] == [*range(len(values))]
    assert all(row["runs"] == 2 and row["candidates"] == 3 and row["mean_validation_error"] == 0.5 for row in found)
    assert sorted({*found[0]} & {"a", "a.name", "a.k", "b"}) == columns


@pytest.mark.parametrize(
    ("select", "says"),
    {
        "{over: server.lrr}": (":9: select.over: is 'server.lrr', no axis; did you mean 'server.lr'? (axes: ",),
        "{over: []}": (":9: select.over: is []; it should have at least 1 item",),
        "{over: 3}": (":9: select.over: is 3; it should be a valid list",),
        "{best: validation_error}": (":9: select.over: is required",),
        "{best: test_error, over: server.lr}": (
            ":9: select.best: is 'test_error'",
            "(known: validation_error, validation_loss, gap, gradient_norm, seconds_to)",
        ),
        "{best: seconds_to, error: 0.1, over: seed}": (":9: select.best: is 'seconds_to', and not every run",),
        "{best: gradient_norm, over: seed}": (":9: select.best: is 'gradient_norm', and not every run measures it",),
        "{best: seconds_to, over: seed}": (":9: select: error is missing; it goes with best: seconds_to",),
        "{error: 0.1, over: seed}": (":9: select: error is 0.1, and best is validation_error; it goes",),
        "{over: seed} & data.validation=0": ("select.best: is 'validation_error', and data.validation is 0",),
        "{best: validation_loss, over: seed} & data.validation=0": ("select.best: is 'validation_loss', and data.val",),
        "{best: seconds_to, error: 0.1, over: seed} & data.validation=0 & dispatcher={name: clock}": (
            "select.best: is 'seconds_to', and data.validation is 0",
        ),
        "{bast: 1, over: server.lr}": (":9: select.bast: unknown key; did you mean 'best'?",),
        "{over: server.lr, per: server.nam}": (":9: select.per: is 'server.nam', no axis", "(other axes: seed)"),
        "{over: server.lr, per: server.lr}": (":9: select.per: is 'server.lr', an axis of which a value is chosen",),
        "{over: server.lr, per: []}": (":9: select.per: is []; it should have at least 1 item",),
        "[over]": (":9: select: is ['over']; it must be a mapping",),
    }.items(),
)
def test_what_cannot_be_selected(select: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    with small_yaml.open("a", encoding="utf-8") as file:
        select, *overrides = select.split(" & ")
        file.write(f"sweep: {{server.lr: [0.1, 0.2], seed: [0, 1]}}\nselect: {select}\n")
    refused("show", small_yaml, *overrides, says=says)
    refused("show", small_yaml, "select=null", "select.over=seeds", says=("override 'select.over=seeds'", "'seed'?"))


def test_runs_that_disagree_on_which_way_is_better(small_yaml: Path, refused: Refused) -> None:
    """The largest mean was chosen for all, also for those of which the smallest is the best."""
    path = small_yaml.with_name("mine.py")
    path.write_text("def right(output, y):\n    return (output.argmax(axis=1) == y).mean()\n", encoding="utf-8")
    metrics = ["mine:right", {"name": "mine:right", "larger_is_better": True}]
    cases = [{"evaluation.metrics": [one], "clients.count": 2 + n} for n, one in enumerate(metrics)]
    words = [f"cases={json.dumps(cases)}", "sweep={server.lr: [0.1, 0.2]}"]
    says = "select.best: is 'right', of which more is better in some runs, and less in others; let all say the same"
    refused("show", small_yaml, *words, "select={best: right, over: server.lr}", says=(says,))


def test_by_a_metric_of_the_test_rows_alone(small_yaml: Path) -> None:
    """Without rows to validate on: it needs none, nor does a goal."""
    small_yaml.with_name("mine.py").write_text(
        "def right(output, y):\n    return (output.argmax(axis=1) == y).mean()\n"
    )
    metrics = json.dumps([{"name": "mine:right", "larger_is_better": True}])
    words = ["data.validation=0", f"evaluation={{every: 20, test: true, metrics: {metrics}}}"]
    sweep = ["sweep={server.lr: [0.001, 0.2]}", "select={best: test_right, over: server.lr}"]
    found = fredsim.sweep(small_yaml, [*words, *sweep], out="swept")
    assert found.runs["test_right"].is_monotonic_increasing
    assert (found.best["server.lr"].tolist(), found.best["diverged"].tolist()) == ([0.2], [0])
    goal = float(found[1].metrics["test_right"][1])
    one = fredsim.run(small_yaml, [*words, "server.lr=0.2", f"until={{test_right: {goal}}}"], out="one")
    assert one.summary["iterations"] == 20


def test_nothing_to_select_from(small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, "select={over: seed}", says=("select.over: is 'seed', no axis (axes: none: there is",))
