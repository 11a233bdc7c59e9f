"""However a run is computed, it writes the same bytes: every path against `snapshots`, over all that a run can be."""

import zlib
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fredsim.config.choices import PathName
from fredsim.config.resolution import resolve
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from fredsim.servers import ElementwiseServer
from fredsim.servers.checks import why_whole_gradients
from tests.servers.paths import (
    QUICK,
    REFUSING,
    SAMPLINGS,
    SETTINGS,
    Check,
    Simulate,
    check_same,
)


def fits(server: Any) -> bool:
    """A server that says why an update is not known ahead, or brings gates along, takes its own path."""
    if not isinstance(server, ElementwiseServer) or hasattr(server, "gates"):
        return False
    server.init(np.ones(3, np.float32), 6)
    return not why_whole_gradients(server, ElementwiseServer)


def test_every_path_is_compared() -> None:
    """But the one of devices, which tests/test_cuda.py compares."""
    assert {"auto", "queued", "snapshots", *QUICK} == set(get_args(PathName))


@pytest.mark.parametrize("deal", range(3))
def test_every_server(spec: dict[str, Any], variant: str, check: Check, deal: int) -> None:
    """Each on three of the settings, dealt by its name."""
    changes: dict[str, Any] = {"server": {key: value for key, value in spec.items() if key != "average"}}
    if "average" in spec:
        changes["average"] = {"name": "window"} | spec["average"]
    result = check(SETTINGS[(zlib.crc32(variant.encode()) >> 5 * deal) % 32] | changes)
    assert result.summary["status"] == "finished"


SERVERS: list[dict[str, Any]] = [
    {"name": "asgd", "lr": 0.1},
    {"name": "fasgd", "lr": 0.005},
    {"name": "momentum", "lr": 0.02},
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
@pytest.mark.parametrize("deal", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_setting(deal: int, number: int, check: Check) -> None:
    """Each with two of three servers; with --slow with all of them."""
    check(SETTINGS[number] | {"server": SERVERS[(number + deal) % 3]})


SMALL: dict[str, dict[str, Any]] = {
    "softmax regression": {"model": {"hidden": []}, "clients": {"count": 8, "batch_size": 3}},
    "one vector": {"model": {"hidden": [16]}, "clients": {"count": 8, "batch_size": 1}},
    "three vectors": {"model": {"hidden": [40]}, "clients": {"count": 30, "batch_size": 13}},
    "two layers": {
        "model": {"hidden": [20, 12]},
        "clients": {"count": 8, "batch_size": 5, "sampling": "iid"},
        "dispatcher": {"name": "uniform", "wait": False},
    },
    "layers of one": {"model": {"hidden": [1, 1]}, "clients": {"count": 8, "batch_size": 8}},
    "wide": {"model": {"hidden": [200, 70]}, "clients": {"count": 8, "batch_size": 20}},
    "two groups of blocks": {"model": {"hidden": [64, 64]}, "clients": {"count": 4, "batch_size": 65}},
    "three groups of blocks": {"model": {"hidden": [48, 90]}, "clients": {"count": 4, "batch_size": 130}},
    "zeros": {"model": {"hidden": [16], "init": "zeros"}, "clients": {"count": 8, "batch_size": 2}},
}
KNOBS: list[dict[str, Any]] = [
    *({"window": window} for window in (1, 2, 7, 1000)),
    *({"threads": threads} for threads in (1, 2, 3)),
    {"threads": 3, "window": 3},
    {"memory": 1},
    {"memory": 20_000, "window": 2},
]


PATHS = ("snapshots", *QUICK)


@pytest.mark.parametrize("server", ["asgd", "fasgd"])
@pytest.mark.parametrize("name", SMALL)
def test_no_knob_moves_a_bit(name: str, server: str, check: Check, simulate: Simulate) -> None:
    """Each knob on each path; of every three such pairs, a run has one, and the runs beside it have the others."""
    run = {"iterations": 70, "evaluation": {"every": 30}, "server": {"name": server, "lr": 0.01}, **SMALL[name]}
    reference, first = check(run), [*SMALL].index(name) + (server == "fasgd")
    for number, path in enumerate(PATHS):
        for knob in KNOBS[(number + first) % len(PATHS) :: len(PATHS)]:
            check_same(simulate({**run, **knob, "path": path}), reference)


@pytest.mark.parametrize("seed", range(16))
def test_any_run(seed: int, check: Check, simulate: Simulate) -> None:
    """Of whatever sizes."""
    rng = np.random.default_rng(seed)
    server = str(rng.choice(["asgd", "sasgd", "fasgd", "momentum", "rmsprop", "adagrad", "adam", "averaged"]))
    run: dict[str, Any] = {
        "iterations": int(rng.integers(1, 250)),
        "model": {"hidden": rng.integers(1, 100, rng.integers(0, 4)).tolist()},
        "clients": {
            "count": int(rng.integers(1, 100)),
            "batch_size": int(rng.integers(1, 40)),
            "sampling": str(rng.choice(SAMPLINGS)),
        },
        "dispatcher": {"name": "uniform", "wait": bool(rng.integers(2))},
        "evaluation": {"every": int(rng.integers(1, 300))},
        "server": {"name": server, "lr": float(10 ** rng.uniform(-3, -1))},
        "seed": seed,
    }
    reference = check(run)
    for path in QUICK:
        knobs = {"window": int(rng.integers(1, 40)), "threads": int(rng.integers(1, 4))}
        check_same(simulate({**run, **knobs, "path": path}), reference)


@pytest.mark.parametrize(("batch", "server"), [(1, "fasgd"), (4, "asgd"), (32, "fasgd")])
def test_mnist(batch: int, server: str, simulate: Simulate, mnist_root: str) -> None:
    run = {
        "iterations": 300,
        "data": {"name": "mnist", "validation": 500},
        "model": {"hidden": [200]},
        "clients": {"count": 128 // batch, "batch_size": batch},
        "server": {"name": server, "lr": 0.01},
        "evaluation": {"every": 125},
    }
    reference = simulate({**run, "path": "snapshots", "threads": 1}, mnist_root)
    for path in ("snapshots", *QUICK):
        for threads in (2, 3) if path == "snapshots" else (1, 2, 3):
            check_same(simulate({**run, "path": path, "threads": threads}, mnist_root), reference)


@pytest.mark.parametrize("server", ["asgd", "fasgd"])
def test_however_few_rows_stay_in_the_cache(
    server: str, simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of inputs that are mostly not zero: eight rows of weights are multiplied at once, in place of 25."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 256, (60, 100)).astype(np.uint8), np.arange(60) % 10
    x[:, :3] = 0
    np.savez(tmp_path / "dense.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    run = {"data": {"name": f"npz:{tmp_path / 'dense.npz'}", "validation": 10}, "server": {"name": server, "lr": 0.01}}
    monkeypatch.setattr("fredsim.kernels.mlp.sparse_rows.L1_BYTES", 1)
    expected = simulate(run | {"backend": "numpy"})
    assert expected.summary["status"] == "finished"
    for path in ("hand", "fused", "snapshots"):
        for threads in (1, 3):
            check_same(simulate(run | {"path": path, "threads": threads}), expected)


@pytest.mark.parametrize("path", ["snapshots", *QUICK])
@pytest.mark.parametrize("name", SMALL)
def test_how_often_is_evaluated_moves_no_bit(name: str, path: str, simulate: Simulate) -> None:
    run = {"iterations": 60, "path": path, "server": {"name": "fasgd", "lr": 0.01}, **SMALL[name]}
    evaluations: list[dict[str, Any]] = [
        {"every": 1}, {"every": 10}, {"every": 1000}, {"every": 7, "unit": "updates"}, {"every": 1, "unit": "epochs"},
    ]  # fmt: skip
    results = [simulate({**run, "evaluation": evaluation}) for evaluation in evaluations]
    assert len({result.summary["digest"] for result in results}) == 1
    assert len({(result.folder / "staleness.csv").read_bytes() for result in results}) == 1
    assert [len(result.metrics) for result in results[:4]] == [61, 7, 2, 10]


@pytest.mark.parametrize("length", [{"iterations": 37}, {"updates": 37}, {"epochs": 1}], ids=str)
def test_every_kind_of_length(length: dict[str, int], check: Check) -> None:
    clients = {"count": 8, "batch_size": 32}
    assert check({**length, "clients": clients}).summary["iterations"] == 37  # 1,200 training rows


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("clients", [1, 2, 500, 5000])
def test_one_client_and_more_than_arrive(clients: int, sampling: str, wait: bool, check: Check) -> None:
    result = check(
        {
            "iterations": 60,
            "clients": {"count": clients, "batch_size": 3, "sampling": sampling},
            "dispatcher": {"name": "uniform", "wait": wait},
            "server": {"name": "sasgd", "lr": 0.1},
        }
    )
    if clients == 1:
        assert result.metrics["staleness_max"].max() == (0 if wait else 1)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_hardly_any_events(iterations: int, check: Check) -> None:
    for wait in (True, False):
        check({"iterations": iterations, "dispatcher": {"name": "uniform", "wait": wait}})


DIVERGING: list[dict[str, Any]] = [
    {"name": "asgd", "lr": 1e13},
    {"name": "asgd", "lr": 1e30},
    {"name": "asgd", "lr": {"name": "step", "base": 0.05, "every": 67, "factor": 1e14}},
    {"name": "sasgd", "lr": {"name": "step", "base": 0.01, "every": 41, "factor": 1e20}},
    {"name": "momentum", "lr": 1e20},
    {"name": "fasgd", "lr": 1e35},
    {"name": "averaged", "lr": {"name": "step", "base": 0.01, "every": 55, "factor": 3e38}},
]
DEEP = [number for number, setting in enumerate(SETTINGS) if setting["model"]["hidden"]]


@pytest.mark.parametrize("number", DEEP[::5])
@pytest.mark.parametrize("server", DIVERGING, ids=str)
def test_a_diverging_run_ends_at_the_same_event(
    server: dict[str, Any], number: int, check: Check, simulate: Simulate, request: pytest.FixtureRequest
) -> None:
    """On each path with one of two knobs, which the runs beside it have on the other; with --slow with both."""
    run = SETTINGS[number] | {"server": server, "iterations": 150}
    reference = check(run)
    assert reference.summary["status"] == "diverged"
    assert reference.summary["iterations"] < 150
    assert reference.metrics["iteration"].iloc[-1] == reference.summary["iterations"]
    first = DEEP.index(number) // 5 + DIVERGING.index(server)
    knobs: list[dict[str, Any]] = [{"window": 1}, {"threads": 3, "window": 7}]
    for place, path in enumerate(QUICK):
        for knob in knobs if request.config.getoption("--slow") else [knobs[(first + place) % 2]]:
            check_same(simulate({**run, **knob, "path": path}), reference)


def test_what_lies_beyond_the_end_makes_no_noise(check: Check) -> None:
    """The learning rate would overflow at t = 59; the run diverges before."""
    lr = {"name": "exponential", "base": 1e-3, "factor": 100.0, "every": 3}
    result = check({"iterations": 150, "server": {"name": "asgd", "lr": lr}, "evaluation": {"every": 1000}})
    assert result.summary["status"] == "diverged"
    assert 30 < result.summary["iterations"] < 50


@pytest.fixture
def interrupted(tmp_path: Path, digits_experiment: dict[str, Any]) -> Callable[..., Result]:
    """Run an experiment that is stopped on the way."""
    numbers = count()

    def run(changes: Mapping[str, Any], **how: Any) -> Result:
        folder = tmp_path / f"stopped{next(numbers)}"
        execute(resolve({**digits_experiment, **changes}), folder, **how)
        result = Result(folder)
        assert result.summary["status"] == "interrupted"
        return result

    return run


@pytest.mark.parametrize("until", [0, 1, 29, 30, 31])
def test_an_interrupted_run(until: int, interrupted: Callable[..., Result]) -> None:
    changes = {"evaluation": {"every": 10}, "clients": {"count": 8, "batch_size": 3, "sampling": "shuffled"}}
    reference = interrupted(changes | {"path": "snapshots"}, most_iterations=until)
    assert reference.summary["iterations"] == until
    for path in QUICK:
        check_same(interrupted(changes | {"path": path}, most_iterations=until), reference)


@pytest.mark.parametrize("path", ["snapshots", *QUICK])
def test_a_stop_is_heard_between_events(path: str, interrupted: Callable[..., Result]) -> None:
    """What was recorded so far is what the whole run would have, and what is saved is where it stopped."""
    asked = count()
    changes = {"path": path, "window": 3, "evaluation": {"every": 4}}
    result = interrupted(changes, stop=lambda: next(asked) >= 3)
    assert 3 <= result.summary["iterations"] <= 12
    check_same(interrupted(changes, most_iterations=result.summary["iterations"]), result)


FETCH_GATES: dict[str, dict[str, Any]] = {
    "every": {"fetch": {"every": 3}},
    "bandwidth": {"fetch": {"bandwidth_aware": {"c": 0.3}}},
    "bandwidth, per tensor": {"fetch": {"bandwidth_aware": {"c": 0.3, "per": "tensor"}}},
    "budget": {"fetch": {"budget": 1500.0}},
    "FRED's timestamps": {"fetch": {"bandwidth_aware": {"c": 1.0}}, "fred_timestamps": True},
    "without waiting": {"fetch": {"bandwidth_aware": {"c": 0.5}}, "wait": False},
}


@pytest.mark.parametrize("name", FETCH_GATES)
@pytest.mark.parametrize("variant_of_fasgd", ["std", "released"])
def test_a_fetch_that_may_be_refused(name: str, variant_of_fasgd: str, check: Check, simulate: Simulate) -> None:
    run = {
        "iterations": 100,
        "evaluation": {"every": 9},
        "dispatcher": {"name": "uniform"} | FETCH_GATES[name],
        "server": {"name": "fasgd", "lr": 0.01, "variant": variant_of_fasgd},
    }
    reference = check(run, REFUSING)
    assert 0 < reference.summary["bytes_fetched"] < reference.summary["bytes_pushed"]
    first = ([*FETCH_GATES].index(name) + (variant_of_fasgd == "std")) % 2
    for path in REFUSING:
        for knob in KNOBS[first::2]:  # the other variant has the others
            check_same(simulate({**run, **knob, "path": path}), reference)
