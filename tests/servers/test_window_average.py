"""The windowed average over any server: against a direct float64 mean of the iterates that it spans."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fredsim.errors import ConfigError
from fredsim.servers import ASGD, AveragedSGD, RMSProp, Server, Sync, WindowAverage, window_average

Wide = NDArray[np.float64]
MAKE: dict[str, Callable[[], Server]] = {
    "asgd": lambda: ASGD(lr=0.01),
    "rmsprop": lambda: RMSProp(lr=0.01),
    "sync": lambda: Sync(lr=0.05),
}
WINDOWS: dict[str, dict[str, Any]] = {
    "fixed": {"min_window": 50, "max_window": 50, "rate": 1.0},
    "growing": {"min_window": 3, "max_window": 200, "rate": 0.3},
    "always one": {"min_window": 1, "max_window": 1, "rate": 0.0},
    "never full": {},
}


def spans(updates: int, min_window: int = 10000, max_window: int = 10000, rate: float = 0.15) -> tuple[int, int]:
    """Return the first update in the average, from 0, and how many windows have closed."""
    first, opened, closed = 0, 0, 0
    for done in range(1, updates + 1):
        length = done - opened
        if length >= min_window and length >= int(min(max_window, done * rate)):
            first, opened, closed = opened, done, closed + 1
    return first, closed


def pushed(window: WindowAverage, count: int, clients: int, size: int = 30) -> list[Wide]:
    """Push at random; return the iterates, one an update."""
    rng = np.random.default_rng(0)
    iterates: list[Wide] = []
    for number in range(count):
        stamp = window.timestamp
        window.apply_update(rng.standard_normal(size).astype(np.float32), number % clients, stamp)
        if window.timestamp != stamp:
            iterates.append(window.server.params.astype(np.float64))
    return iterates


@pytest.mark.parametrize("server", MAKE)
@pytest.mark.parametrize("hyper", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("spill", [7, 64, 16384])
def test_it_is_the_mean_of_the_iterates_it_spans(
    server: str, hyper: dict[str, Any], spill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert window_average.SPILL == 16384
    monkeypatch.setattr(window_average, "SPILL", spill)
    window = WindowAverage(MAKE[server](), **hyper)
    start = np.random.default_rng(1).standard_normal(30).astype(np.float32)
    window.init(start, 2)
    np.testing.assert_array_equal(window.averaged_params, start)
    iterates: list[Wide] = []
    rng = np.random.default_rng(0)
    for number in range(1200):
        stamp = window.timestamp
        window.apply_update(rng.standard_normal(30).astype(np.float32), number % 2, stamp)
        if window.timestamp == stamp:
            continue
        iterates.append(window.server.params.astype(np.float64))
        if len(iterates) % 10 < 2:
            first, _ = spans(len(iterates), **hyper)
            expected = np.mean(iterates[first:], axis=0)
            assert np.abs(window.averaged_params - expected).max() <= 1e-5 * np.abs(expected).max(), number
    assert spans(len(iterates), **hyper)[1] >= (3 if hyper else 0)


def test_the_spill_keeps_twenty_thousand_updates_exact_enough() -> None:
    """20,000 parameters of about 1: a single float32 sum would lose digits; over 16,384 it is spilt."""
    window = WindowAverage(ASGD(lr=0.01), min_window=100_000, max_window=100_000)
    window.init(np.ones(4, np.float32), 1)
    total = np.zeros(4)
    rng = np.random.default_rng(0)
    for step in range(20_000):
        window.apply_update(rng.standard_normal(4).astype(np.float32), 0, step)
        total += window.server.params
    mean = total / 20_000
    assert np.abs(window.averaged_params - mean).max() <= 1e-5 * np.abs(mean).max()
    assert (window.take_state()["_sums.1"] != 0).all()


@pytest.mark.parametrize("server", MAKE)
def test_averaged_swaps_in_and_restores_exactly(server: str) -> None:
    window = WindowAverage(MAKE[server](), min_window=5, max_window=20)
    window.init(np.ones(30, np.float32), 2)
    pushed(window, 40, 2)
    raw, state = window.server.params.copy(), window.take_state()
    with window.averaged() as params:
        assert params.tobytes() == window.averaged_params.tobytes()
        assert window.server.params.tobytes() == params.tobytes()
        assert params.tobytes() != raw.tobytes()
    assert window.server.params.tobytes() == raw.tobytes()
    with pytest.raises(RuntimeError, match="evaluation failed"), window.averaged():
        raise RuntimeError("evaluation failed")
    assert window.server.params.tobytes() == raw.tobytes()
    after = window.take_state()
    assert all(np.array_equal(after[name], value) for name, value in state.items())


def test_it_leaves_training_as_it_is(simulate: Callable[..., Any]) -> None:
    """The same raw parameters with and without it, the average beside them, evaluated and saved."""
    for name in ("asgd", "rmsprop"):
        server = {"name": name, "lr": 0.01}
        plain = simulate({"server": server})
        averaged = simulate({"server": server, "average": {"name": "window", "min_window": 5, "max_window": 30}})
        assert plain.summary["digest"] == averaged.summary["digest"]
        raw = load_file(averaged.folder / "params_raw.safetensors")
        for tensor, value in plain.params.items():
            assert raw[tensor].tobytes() == value.tobytes()
            assert averaged.params[tensor].tobytes() != value.tobytes()
        assert plain.summary["validation_loss"] != averaged.summary["validation_loss"]


def test_a_server_that_does_not_step_adds_nothing() -> None:
    window = WindowAverage(Sync(lr=0.1), min_window=1, max_window=1)
    window.init(np.ones(3, np.float32), 2)
    window.apply_update(np.ones(3, np.float32), 0, 0)
    np.testing.assert_array_equal(window.averaged_params, np.ones(3, np.float32))
    window.apply_update(np.ones(3, np.float32), 1, 0)
    np.testing.assert_array_equal(window.averaged_params, window.server.params)
    assert (window.server.params != 1).all()


class Plain:
    """A server without a base class, and without a timestamp."""

    def init(self, params: NDArray[np.float32], clients: int) -> None:
        del clients
        self.params = params.copy()

    def apply_update(self, grad: NDArray[np.float32], client_id: int, timestamp: int) -> None:
        del client_id, timestamp
        self.params = self.params - np.float32(0.5) * grad


def test_it_wraps_a_server_without_a_base_class() -> None:
    window = WindowAverage(Plain(), min_window=10, max_window=10)
    window.init(np.zeros(2, np.float32), 1)
    for step in range(4):
        window.apply_update(np.ones(2, np.float32), 0, step)
    np.testing.assert_array_equal(window.params, np.full(2, -2, np.float32))
    np.testing.assert_array_equal(window.averaged_params, np.full(2, -1.25, np.float32))


def test_a_task_that_is_given_up_moves_nothing_where_there_is_no_timestamp() -> None:
    class Told(Plain):
        def given_up(self, client_id: int, timestamp: int) -> None:
            del client_id, timestamp

    window = WindowAverage(Told(), min_window=10, max_window=10)
    window.init(np.zeros(2, np.float32), 1)
    window.apply_update(np.full(2, 6, np.float32), 0, 0)
    window.given_up(0, 1)
    window.apply_update(np.full(2, 6, np.float32), 0, 1)
    np.testing.assert_array_equal(window.averaged_params, np.full(2, -4.5, np.float32))


def test_over_averaged_sgd_it_averages_the_iterates() -> None:
    window = WindowAverage(AveragedSGD(lr=0.1), min_window=10, max_window=10)
    window.init(np.zeros(30, np.float32), 1)
    iterates = pushed(window, 8, 1)
    np.testing.assert_allclose(window.averaged_params, np.mean(iterates, axis=0), atol=1e-6)


def test_the_definition_of_this_file_spans_one_to_two_windows() -> None:
    assert [spans(n, 3, 3, 1.0) for n in (2, 3, 5, 6, 8, 9)] == [(0, 0), (0, 1), (0, 1), (3, 2), (3, 2), (6, 3)]


@pytest.mark.parametrize(
    ("hyper", "words"),
    [
        ({"min_window": 11, "max_window": 10}, ["min_window is 11", "max_window, 10"]),
        ({"max_window": 10}, ["min_window is 10000", "max_window, 10"]),
        ({"min_window": 0}, ["min_window", "0"]),
        ({"rate": -0.1}, ["rate", "-0.1"]),
        ({"windows": 3}, ["windows", "max_window"]),
    ],
)
def test_a_bad_window_is_refused(hyper: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        WindowAverage(ASGD(lr=0.1), **hyper)
    for word in words:
        assert word in str(caught.value)
