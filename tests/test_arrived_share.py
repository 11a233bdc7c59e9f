"""Which share of the clients a run's beginning has, from who arrives in it."""

from typing import Any

import pytest

from fredsim.config.sweep.expansion import expand, open_source
from fredsim.runs.plan.forecast import arrived_share
from fredsim.runs.single.prepared import prepare


def share(dispatcher: dict[str, Any], iterations: int, clients: int = 40, **more: Any) -> float:
    experiment = {
        "iterations": 1000, "data": {"name": "digits"}, "model": {"hidden": [4]},
        "clients": {"count": clients, "batch_size": 2}, "server": {"name": "asgd", "lr": 0.1},
        "dispatcher": dispatcher, **more,
    }  # fmt: skip
    (run,) = expand(open_source(experiment)).runs
    return arrived_share(prepare(run.experiment, None), iterations, clients)


def test_it_is_counted() -> None:
    assert [share({"name": "round_robin"}, count) for count in (10, 40, 64)] == [0.25, 1, 1]
    assert share({"name": "uniform"}, 64) == pytest.approx(1 - (1 - 1 / 40) ** 64, abs=0.15)
    assert share({"name": "scripted", "order": [0, 1, 0, 1]}, 4) == 2 / 40
    assert share({"name": "weighted", "weights": [1.0e-9] * 39 + [1.0]}, 20) <= 2 / 40


class First:
    """Only client 0 ever arrives."""

    def init(self, clients: int, streams: Any) -> None:
        del clients, streams

    def choose(self, step: int) -> int:
        del step
        return 0

    def hold(self, client: int) -> None: ...

    def release(self, client: int) -> None: ...


def test_a_dispatcher_of_ones_own_is_not_asked() -> None:
    """Of 40 equally likely clients, each of 2 events misses a client in 39 of 40 cases."""
    assert share({"name": f"{__name__}:First"}, 2) == pytest.approx(1 - (39 / 40) ** 2)


def test_a_clock_is_run_ahead() -> None:
    clock = {"name": "clock", "compute": {"seconds": 1.0}}
    assert [share(clock, count) for count in (1, 30, 50)] == [1 / 40, 30 / 40, 1]
    slow = {"name": "clock", "compute": {"seconds": [1.0, 100.0] * 20}}  # every second client is slow
    assert share(slow, 64) == 0.5
