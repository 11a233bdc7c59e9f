"""Averages of the iterates: evaluated and saved, while training goes on with the raw parameters."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fredsim.runs.folder.results import Result
from fredsim.servers.window_average import WindowAverage

Simulate = Callable[..., Result]
Refused = Callable[..., None]
Array = NDArray[np.float32]
WINDOW = {"name": "window", "rate": 0.5, "min_window": 10, "max_window": 20}


def flat(path: Path) -> Array:
    tensors = load_file(path)
    return np.concatenate([tensors[name].reshape(-1) for name in ("W1", "b1", "W2", "b2")])


def iterates(plain: ModuleType, count: int, lr: float = 0.1) -> list[Array]:
    """ASGD's parameters after each update."""
    world, found = plain.World(), []

    class Noting(plain.PlainServer):  # type: ignore[name-defined, misc]
        def apply(self, g: Array, client: int, tau: int) -> Any:
            released = super().apply(g, client, tau)
            found.append(self.theta.copy())
            return released

    world.run(count, Noting(world.start, lr))
    return found


def window_average(params: list[Array], rate: float, least: int, most: int) -> Array:
    """Paddle's: the window under way and the one before it."""
    first: list[Array] = []
    second: list[Array] = []
    for updates, p in enumerate(params, start=1):
        first = [*first, p]
        if len(first) >= least and len(first) >= int(min(most, updates * rate)):
            first, second = [], first
    average: Array = np.mean([x.astype(np.float64) for x in (*first, *second)], axis=0).astype(np.float32)
    return average


@pytest.mark.parametrize("count", [1, 9, 10, 11, 35, 80])
def test_a_window(simulate: Simulate, plain: ModuleType, count: int) -> None:
    result = simulate({"iterations": count, "average": WINDOW})
    expected = iterates(plain, count)
    average = flat(result.folder / "params.safetensors")
    raw = flat(result.folder / "params_raw.safetensors")
    np.testing.assert_array_equal(raw, expected[-1])
    np.testing.assert_allclose(average, window_average(expected, 0.5, 10, 20), atol=1e-6)
    assert (count == 1) == bool(np.allclose(average, raw, atol=1e-5))
    assert result.summary["digest"] == plain.World().digest(raw)


class Follows:
    """A server whose parameters are what was pushed last."""

    def init(self, params: Array, clients: int) -> None:
        self.params = params

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        self.params = grad


def test_a_sum_of_many_is_one_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Paddle adds them: 2²⁴ + 1 is 2²⁴ in float32, but the sum of the next three ones is not lost."""
    monkeypatch.setattr("fredsim.servers.window_average.SPILL", 3)
    averaged = WindowAverage(Follows(), rate=1.0, min_window=10, max_window=10)
    averaged.init(np.zeros(1, np.float32), 1)
    for number, value in enumerate([2.0**24, 1, 1, 1, 1, 1]):
        averaged.apply_update(np.array([value], np.float32), 0, number)
    assert averaged.averaged_params == np.float32(2**24 + 4) / np.float32(6)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize(
    "server",
    [
        {"name": "asgd", "lr": 0.1},
        {"name": "bfasgd", "lr": 0.005, "c_push": 0.1, "c_fetch": 0.1},
        {"name": "soft_sync", "lr": 0.3, "n": 4},
        {"name": "downpour", "lr": 0.05, "n_push": 2, "n_fetch": 2},
        {"name": "easgd", "lr": 0.05, "period": 2},
        {"name": "ringmaster", "lr": 0.05, "threshold": 4, "stop": True},
    ],
    ids=lambda server: server["name"],
)
def test_training_does_not_notice(simulate: Simulate, server: dict[str, Any], backend: str) -> None:
    """Same digests, copies and staleness in every row; other validation columns only."""
    base = {"iterations": 60, "server": server, "evaluation": {"every": 5}, "backend": backend}
    without, averaged = simulate(base), simulate({**base, "average": WINDOW})
    validation = ["validation_loss", "validation_error"]
    assert averaged.metrics.drop(columns=validation).equals(without.metrics.drop(columns=validation))
    assert (averaged.metrics["validation_loss"].iloc[1:] != without.metrics["validation_loss"].iloc[1:]).any()
    assert (averaged.folder / "staleness.csv").read_bytes() == (without.folder / "staleness.csv").read_bytes()
    raw = (averaged.folder / "params_raw.safetensors").read_bytes()
    assert raw == (without.folder / "params.safetensors").read_bytes()
    assert not (without.folder / "params_raw.safetensors").exists()


def test_metrics_are_of_the_average(simulate: Simulate, plain: ModuleType) -> None:
    world = plain.World()
    for change in ({"average": WINDOW}, {"server": {"name": "averaged", "lr": 0.1}}):
        result = simulate({"iterations": 43, **change})
        last, average = result.metrics.iloc[-1], flat(result.folder / "params.safetensors")
        assert (last["validation_loss"], last["validation_error"]) == world.engine.evaluate(average, "validation")
        assert result.summary["test_error"] == world.engine.evaluate(average, "test")[1]
        assert result.metrics["validation_loss"].iloc[0] == world.engine.evaluate(world.start, "validation")[0]
        raw = flat(result.folder / "params_raw.safetensors")
        assert last["digest"] == world.digest(raw)
        assert last["validation_loss"] != world.engine.evaluate(raw, "validation")[0]


@pytest.mark.parametrize("t0", [0, 0.9, 2.5, 20, 57.01])
def test_averaged_sgd(simulate: Simulate, plain: ModuleType, t0: float) -> None:
    """The mean of the iterates after t₀, which count from 1; the iterates are ASGD's."""
    base = {"iterations": 60, "evaluation": {"every": 5}}
    result = simulate({**base, "server": {"name": "averaged", "lr": 0.1, "t0": t0}})
    asgd = simulate({**base, "server": {"name": "asgd", "lr": 0.1}})
    assert result.metrics["digest"].equals(asgd.metrics["digest"])
    expected = iterates(plain, 60)
    np.testing.assert_array_equal(flat(result.folder / "params_raw.safetensors"), expected[-1])
    mean = np.mean([x.astype(np.float64) for t, x in enumerate(expected, 1) if t > t0], axis=0)
    np.testing.assert_allclose(flat(result.folder / "params.safetensors"), mean, atol=2e-6)


def test_the_average_of_a_run_that_diverges(simulate: Simulate) -> None:
    """It stops where the raw parameters do, and both files are of the last finite ones."""
    server = {"server": {"name": "asgd", "lr": 1e13}, "iterations": 200}
    without, averaged = simulate(server), simulate({**server, "average": WINDOW})
    for key in ("status", "digest", "iterations"):
        assert averaged.summary[key] == without.summary[key]
    assert averaged.summary["status"] == "diverged"
    raw = (averaged.folder / "params_raw.safetensors").read_bytes()
    assert raw == (without.folder / "params.safetensors").read_bytes()


def test_the_configuration_names_the_average(simulate: Simulate) -> None:
    """So that the run can be repeated from it."""
    result = simulate({"average": {"name": "window"}})
    expected = {"name": "window", "rate": 0.15, "min_window": 10000, "max_window": 10000, "device": None}
    assert result.config["average"] == expected
    assert "average" not in simulate({}).config


@pytest.mark.parametrize(
    ("choice", "says"),
    {
        "{name: windw}": ("average.name: unknown average 'windw'; did you mean 'window'?",),
        "window": ("average: is 'window'; it must be a mapping",),
        "{name: window, min_window: 20, max_window: 10}": ("min_window is 20; it must not exceed max_window, 10",),
        "{name: window, rate: -1}": ("average.rate: is -1",),
        "{name: window, widow: 1}": ("average.widow: unknown key",),
    }.items(),
)
def test_bad_choices(choice: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, f"average={choice}", says=says)
