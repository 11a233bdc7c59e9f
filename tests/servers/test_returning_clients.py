"""The path `fused`: a client whose fetch is expected to be refused may arrive again in the same window of events."""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.fused import Fused
from fredsim.simulation.schedule.schedule import Arrivals
from tests.servers.paths import check_same

Simulate = Callable[..., Result]
BASE: dict[str, Any] = {
    "iterations": 300,
    "clients": {"count": 5, "batch_size": 3, "sampling": "shuffled"},
    "evaluation": {"every": 70},
    "server": {"name": "fasgd", "lr": 0.01},
    "events": True,
}
GATES: dict[str, dict[str, Any]] = {
    "few pass": {"bandwidth_aware": {"c": 0.3}},
    "most pass": {"bandwidth_aware": {"c": 0.003}},
    "every third": {"every": 3},
}
KINDS: dict[str, dict[str, Any]] = {
    "order": {"name": "weighted", "weights": [1.0, 4.0]},
    "clock": {"name": "clock", "compute": {"noise": {"name": "exponential"}}},
    "not waiting": {"name": "uniform", "wait": False},
    "restamped": {"name": "uniform", "fred_timestamps": True},
}


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The clients of each window of events as it was planned."""
    found: list[list[int]] = []
    drawn = Arrivals.next

    def next_(self: Arrivals, *given: Any, **named: Any) -> Any:
        schedule = drawn(self, *given, **named)
        found.append(schedule.client.tolist())
        return schedule

    monkeypatch.setattr(Arrivals, "next", next_)
    return found


def returning(windows: Sequence[Sequence[int]]) -> int:
    """Return in how many windows a client arrives more than once."""
    return sum(len(set(clients)) < len(clients) for clients in windows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", GATES)
def test_who_returns_moves_no_bit(
    gate: str, kind: str, simulate: Simulate, windows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is expected rightly, never, of every fetch, or by a v̄ that is wrong now and then."""
    changes = BASE | {"dispatcher": KINDS[kind] | {"fetch": GATES[gate]}}
    reference = simulate(changes | {"path": "snapshots"})
    assert not returning(windows)
    usual = simulate(changes | {"path": "fused"})
    check_same(reference, usual)
    assert (returning(windows) > 10) == (kind in {"order", "clock"} and gate == "few pass")
    knobs = cycle([{}, {"window": 9, "threads": 3}])
    if [*GATES].index(gate) % 2 == 1:  # of each mean and kind, another gate has the other knobs
        next(knobs)
    for means in ([np.nan], [0.0], [1e30], np.random.default_rng(0).exponential(0.1, 1000)):
        mean = cycle(means)
        expected = property(lambda self, mean=mean: next(mean), lambda self, value: None)  # type: ignore[misc]
        monkeypatch.setattr(Fused, "_mean", expected, raising=False)
        check_same(reference, simulate(changes | {"path": "fused"} | next(knobs)))


def test_what_was_recorded_is_compared_with_what_clients_fetched(simulate: Simulate, windows: list[list[int]]) -> None:
    """So that a replay expects nothing of a fetch."""
    changes = BASE | {"dispatcher": {"name": "uniform", "fetch": GATES["few pass"]}}
    recorded = simulate(changes | {"path": "fused"})
    assert returning(windows) > 10
    windows.clear()
    trace = {"name": "trace", "file": str(recorded.folder / "events.parquet"), "fetch": GATES["few pass"]}
    assert simulate(changes | {"path": "fused", "dispatcher": trace}).summary["digest"] == recorded.summary["digest"]
    assert not returning(windows)


def test_windows_of_a_large_model_are_shorter(
    simulate: Simulate, windows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What their clients may fetch takes memory."""
    changes = BASE | {"dispatcher": {"name": "uniform", "fetch": GATES["few pass"]}, "path": "fused"}
    usual = simulate(changes)
    assert max(map(len, windows)) > 9
    windows.clear()
    monkeypatch.setattr("fredsim.simulation.paths.fused.MOST_BYTES", 4 * 1210 * 3 + 1)
    check_same(usual, simulate(changes))
    assert max(map(len, windows)) == 3
