"""Runs of least squares and quadratics: their files, their stability, and what is refused."""

import csv
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.data.datasets import data_root, load_dataset
from fredsim.data.squares import draw_rows
from fredsim.numerics import squares
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.sweep_tables import SweepTables
from fredsim.runs.single.opening import open_expansion
from fredsim.show.tables import short
from tests.conftest import needs_cuda
from tests.test_state import stop_and_go_on

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

LEAST_SQUARES: dict[str, Any] = {
    "data": {"name": "least_squares", "columns": 20, "noise": 0.01, "train": 120, "validation": 30},
    "model": {"name": "linear"},
    "clients": {"count": 8, "batch_size": 6, "sampling": "shuffled"},
    "evaluation": {"every": 20, "gradient_norm": True, "test": True, "per_client": True},
    "events": True,
}
QUADRATIC: dict[str, Any] = LEAST_SQUARES | {
    "data": {"name": "quadratic", "size": 50, "noise": 0.05},
    "model": {"name": "linear", "init": "first"},
    "clients": {"count": 8, "batch_size": 1},
}
STOPPING: dict[str, Any] = {
    "dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}}},
    "server": {"name": "ringmaster", "lr": 0.1, "threshold": 5, "stop": True},
}
FILES = ("metrics.csv", "staleness.csv", "clients.csv", "params.safetensors", "events.parquet")


def rows_of(result: Result) -> list[dict[str, str]]:
    with (result.folder / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("changes", [{}, STOPPING, {"server": {"name": "sync", "lr": 0.4}}])
@pytest.mark.parametrize("problem", [LEAST_SQUARES, QUADRATIC])
def test_the_same_files_however_computed(simulate: Simulate, problem: dict[str, Any], changes: dict[str, Any]) -> None:
    ways: list[dict[str, Any]] = [
        {"backend": "numpy"},
        {"threads": 1},
        {"threads": 2, "window": 3},
        {"threads": 3},
    ]
    results = [simulate(problem | changes | way) for way in ways]
    for name in FILES:
        assert len({(result.folder / name).read_bytes() for result in results}) == 1, name
    found = rows_of(results[0])
    assert list(found[0])[-4:] == ["test_loss", "test_error", "gap", "gradient_norm"]
    assert {row["validation_error"] for row in found} == {"nan"}
    summary = results[1].summary
    assert (summary["numerics"], summary["path"], summary["validation_error"]) == ("portable", "snapshots", None)
    assert float(found[-1]["gap"]) == summary["gap"] < float(found[0]["gap"])
    assert float(found[-1]["gradient_norm"]) == summary["gradient_norm"]


@needs_cuda
@pytest.mark.parametrize("changes", [
    LEAST_SQUARES | {"clients": {"count": 4, "batch_size": 70, "sampling": "iid"}},
    LEAST_SQUARES | {"clients": {"count": 4, "batch_size": 1}, "data": LEAST_SQUARES["data"] | {"columns": 1}},
    QUADRATIC,
    QUADRATIC | {"data": {"name": "quadratic", "size": 1100}},
    {"evaluation": {"every": 9, "gradient_norm": True}, "data": {"name": "digits", "train": 20, "validation": 5}},
], ids=["large minibatches", "one of one", "quadratic", "more than a block, no noise", "of a classifier"])  # fmt: skip
def test_on_a_device(simulate: Simulate, changes: dict[str, Any]) -> None:
    """Or emulated: the same files."""
    ways = {"backend": "numba"}, {"backend": "cuda"}, {"backend": "cuda", "path": "snapshots"}
    results = [simulate(changes | {"iterations": 4} | way) for way in ways]
    no_rows = changes.get("data", {}).get("name") == "quadratic"  # its noise is drawn on the host
    assert results[1].summary["path"] == ("snapshots" if no_rows else "queued")
    for name in ("metrics.csv", "params.safetensors"):
        assert len({(result.folder / name).read_bytes() for result in results}) == 1, name


@pytest.mark.parametrize("problem", [LEAST_SQUARES, QUADRATIC])
def test_a_run_that_stops_and_goes_on(problem: dict[str, Any]) -> None:
    data = problem | {"iterations": 60, "name": "stopped"} | STOPPING
    assert stop_and_go_on(data, [33, 47]) == "snapshots"


def test_until_a_gap(simulate: Simulate) -> None:
    plain = QUADRATIC | {"server": {"name": "asgd", "lr": 0.2}, "evaluation": {"every": 5}}
    gaps = simulate(plain).metrics["gap"].tolist()
    goal = sorted(gaps)[2]
    first = next(place for place, gap in enumerate(gaps) if gap <= goal)
    assert 0 < first < len(gaps) - 1
    assert simulate(plain | {"until": {"gap": goal}}).metrics["gap"].tolist() == gaps[: first + 1]


def test_each_local_step_has_noise_of_its_own(simulate: Simulate) -> None:
    """Three steps from the start, and three after that, by the formula in float64."""
    clients = {"count": 1, "batch_size": 1, "local_steps": 3}
    found = simulate(
        QUADRATIC | {"seed": 3, "clients": clients, "server": {"name": "asgd", "lr": 0.1}, "iterations": 2}
    )
    x = np.zeros(50)
    x[0] = np.sqrt(50)
    for task in range(2):
        at, total = x.copy(), np.zeros(50)
        for step in range(3):
            slopes = (2 * at - np.append(at[1:], 0) - np.append(0, at[:-1])) / 4
            slopes[0] += 0.25
            slopes += squares.quadratic_noise(Streams(3), 50, 0, 3 * task + step, 0.05)
            at, total = at - 0.1 * slopes, total + slopes
        x = x - 0.1 * total
    np.testing.assert_allclose(found.params["W1"][:, 0], x, atol=1e-5)


@pytest.mark.parametrize("by_clock", [False, True])
@pytest.mark.parametrize(("share", "converges"), [(0.95, True), (1.05, False)])
def test_stability_in_turn(simulate: Simulate, share: float, converges: bool, by_clock: bool) -> None:
    """λ clients in turn are stable if and only if α·λ_max < 2·sin(π/(2·(2τ + 1))), τ = λ − 1."""
    clients, size = 5, 2
    largest = np.sin(size * np.pi / (2 * (size + 1))) ** 2  # of the tridiagonal matrix
    rate = share * 2 * np.sin(np.pi / (2 * (2 * (clients - 1) + 1))) / largest
    gaps = simulate(
        {
            "iterations": 3000,
            "data": {"name": "quadratic", "size": size},
            "model": {"name": "linear", "init": "first"},
            "clients": {"count": clients, "batch_size": 1},
            "dispatcher": {"name": "clock" if by_clock else "round_robin"},
            "server": {"name": "asgd", "lr": rate},
        }
    ).metrics["gap"]
    assert (gaps.iloc[-1] < 1e-12) if converges else (gaps.iloc[-1] > 1e6)


@pytest.mark.parametrize(("share", "converges"), [(0.95, True), (1.05, False)])
def test_stability_of_forty_clients_on_least_squares(simulate: Simulate, share: float, converges: bool) -> None:
    """The same with whole gradients of rows: 2·sin(π/158) of 40 clients."""
    x = draw_rows(64, 16, 0.0, 0)[0].astype(np.float64)
    rate = share * 2 * np.sin(np.pi / 158) / np.linalg.eigvalsh(x.T @ x / 64)[-1]
    gaps = simulate(
        {
            "iterations": 9000,
            "data": {"name": "least_squares", "columns": 16, "noise": 0.0, "train": 64, "validation": 0},
            "model": {"name": "linear"},
            "clients": {"count": 40, "batch_size": 64},
            "dispatcher": {"name": "round_robin"},
            "server": {"name": "asgd", "lr": float(rate)},
        }
    ).metrics["gap"]
    assert gaps.iloc[0] > 0.01
    assert (gaps.iloc[-1] < 0.1 * gaps.iloc[0]) if converges else (gaps.iloc[-1] > 10 * gaps.iloc[0])


def test_gradient_norm_of_a_classifier(simulate: Simulate) -> None:
    """Softmax regression on 700 rows, so of a whole block and another: its formula in float64."""
    wanted = {
        "data": {"name": "digits", "train": 700}, "model": {"hidden": []},
        "evaluation": {"every": 25, "gradient_norm": True},
    }  # fmt: skip
    plain, *others = (
        simulate(wanted | way)
        for way in (
            {"evaluation": {"every": 25}},
            {"threads": 1},
            {"threads": 2, "path": "snapshots"},
            {"backend": "numpy"},
        )
    )
    assert len({(result.folder / "metrics.csv").read_bytes() for result in others}) == 1
    assert others[0].summary["digest"] == plain.summary["digest"]
    assert "gradient_norm" not in plain.metrics
    train, params = load_dataset("digits", 700, None, data_root()).train, others[0].params
    x, w, b = (array.astype(np.float64) for array in (train.x, params["W1"], params["b1"]))
    exponentials = np.exp(x @ w + b)
    errors = exponentials / exponentials.sum(axis=1, keepdims=True) - np.eye(10)[train.y]
    norm = np.sqrt((np.square(x.T @ errors).sum() + np.square(errors.sum(axis=0)).sum()) / 700**2)
    assert others[0].metrics["gradient_norm"].iloc[-1] == pytest.approx(norm, rel=1e-5)


def test_what_is_shown_of_runs_without_an_error(
    command: Command, tmp_path: Path, drawn_y: Callable[[], list[str]]
) -> None:
    text = """\
iterations: 60
data: {name: least_squares, columns: 5, train: 40, validation: 10}
model: {name: linear}
clients: {count: 3, batch_size: 2}
server: {name: asgd}
evaluation: {every: 20}
sweep: {server.lr: [0.01, 0.5]}
select: {best: gap, over: server.lr}
"""
    file, folder = tmp_path / "squares.yaml", tmp_path / "out"
    file.write_text(text, encoding="utf-8")
    code, output, messages = command("run", file, "--out", folder)
    assert code == 0
    assert "gap" in output.partition("\n")[0]
    assert "gap" in messages
    assert drawn_y() == ["gap to the optimum, f − f*"]
    with (folder / "runs.csv").open(encoding="utf-8") as one, (folder / "best.csv").open(encoding="utf-8") as other:
        runs, (best,) = list(csv.DictReader(one)), csv.DictReader(other)
    assert list(runs[0])[-1] == "gap"
    other_loss = open_expansion(str(file), ["loss=mse", "select.best=validation_loss"])
    assert "gap" not in SweepTables.of(other_loss).outcomes  # it is that of the halved squares
    assert (best["server.lr"], float(best["mean_gap"])) == ("0.5", min(float(run["gap"]) for run in runs))
    for words in (["verify", folder], ["plan", file], ["show", file]):
        assert command(*words)[0] == 0, words
    if find_spec("plotly"):
        assert command("report", folder, "-o", tmp_path / "page.html")[0] == 0
        assert "gap to the optimum" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert command("compare", *sorted(path for path in folder.iterdir() if path.is_dir()))[0] == 1
    code, output, _ = command("plot", folder, "-o", tmp_path / "plot.png", "--reach", "0.5")
    assert (code, "final gap" in output) == (0, True)
    assert [short(value) for value in (0.0, 2.5e-7, 0.0012, 1234.5, 3.2e31)] == [
        "0", "2.5e-07", "0.0012", "1,234", "3.2e+31"
    ]  # fmt: skip


@pytest.fixture
def drawn_y(drawn: list[Any]) -> Callable[[], list[str]]:
    """What the y axes of the figures so far show."""
    return lambda: [axes.get_ylabel() for figure in drawn for axes in figure.axes]


BASE = "iterations: 9\nclients: {count: 4, batch_size: 2}\nserver: {name: asgd, lr: 0.1}\n"
REFUSED: dict[str, tuple[str, Sequence[str]]] = {
    "mlp": (
        "data: {name: least_squares}",
        ("model.name is mlp; data least_squares has no classes: give model: {name: linear}, or loss: mse\n",),
    ),
    "labels": ("data: {name: digits}\nmodel: {name: linear}", ("model.name is linear; data digits has classes",)),
    "minibatch": (
        "data: {name: quadratic}\nmodel: {name: linear}", ("bad.yaml:2: clients.batch_size is 2; a quadratic has no",)
    ),
    "a key of another": ("data: {name: quadratic, columns: 3}\nmodel: {name: linear}", ("data.columns: unknown key",)),
    "too few variables": ("data: {name: quadratic, size: 1}\nmodel: {name: linear}", ("data.size: is 1",)),
    "noise": ("data: {name: least_squares, noise: -1}\nmodel: {name: linear}", ("data.noise: is -1",)),
    "too large": (
        "data: {name: least_squares, train: 4000000000, columns: 4000000}\nmodel: {name: linear}",
        ("data.train is 4000000000 and data.columns 4000000", "memory; lower one of them"),
    ),
    "loss": ("data: {name: mishchenko}\nmodel: {name: linear, loss: hinge}", ("model.loss: is 'hinge'",)),
    "init": ("data: {name: mishchenko}\nmodel: {name: linear, init: he}", ("model.init: is 'he'",)),
    "path": ("data: {name: mishchenko}\nmodel: {name: linear}\npath: hand", ("path is hand; the engine forms whole",)),
    "partition": (
        "data: {name: least_squares}\nmodel: {name: linear}\nclients.partition: {name: dirichlet, alpha: 1}",
        ("clients.partition is dirichlet", "float32, not classes"),
    ),
    "until": (
        "data: {name: mishchenko}\nmodel: {name: linear}\nuntil: {validation_error: 0.1}",
        ("bad.yaml:6: until is of validation_error; runs of model linear have no error, but a gap",),
    ),
    "until of classifiers": ("data: {name: digits}\nuntil: {gap: 0.1}", ("runs of model mlp have no gap",)),
    "select": (
        "data: {name: least_squares}\nmodel: {name: linear}\nsweep: {seed: [1, 2]}\nselect: {over: seed}",
        ("select.best: is 'validation_error', which runs of a linear model have not; give validation_loss, or gap\n",),
    ),
    "select of classifiers": (
        "data: {name: digits}\nsweep: {seed: [1, 2]}\nselect: {best: gap, over: seed}", ("select.best: is 'gap'",)
    ),
    "select of what some runs lack": (
        "cases: [{data: {name: digits}}, {data: {name: mishchenko}, model: {name: linear}}]\n"
        "sweep: {seed: [1, 2]}\nselect: {best: gap, over: seed}",
        ("select.best: is 'gap', which runs of a classifier have not; give validation_loss\n",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(refused: Refused, small_yaml: Path, name: str) -> None:
    text, says = REFUSED[name]
    path = small_yaml.with_name("bad.yaml")
    clients = BASE
    if "clients.partition" in text:
        text, partition = text.split("clients.partition: ")
        clients = BASE.replace("batch_size: 2", f"batch_size: 2, partition: {partition}")
    path.write_text(clients + text, encoding="utf-8")
    refused("run", path, says=says)
    assert not Path("results").exists()
