"""A server that waits for what never comes: a run that only updates end is given up; a note says so of any other."""

from collections.abc import Callable
from typing import Any

import pytest

from fredsim.errors import FredsimWarning, SimulationError
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths import loop

Simulate = Callable[..., Result]
CLIENTS = {"clients": {"count": 3, "batch_size": 2}}
TWO_OF_THREE = CLIENTS | {"dispatcher": {"name": "scripted", "order": [0, 1] * 30}}


@pytest.fixture
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs be given up after 40 events without an update."""
    monkeypatch.setattr(loop, "LONGEST_WAIT", 40)
    monkeypatch.setattr(loop, "LONGEST_WAIT_BY_CLIENT", 10)


@pytest.mark.usefixtures("sooner")
@pytest.mark.parametrize("name", ["ia2sgd", "ringleader", "malenia"])
def test_a_run_without_updates_is_given_up(simulate: Simulate, name: str) -> None:
    says = f"(?i)iteration 41: {name} has made no update for 41 iterations, after 0; what it waits for does not come"
    with pytest.raises(SimulationError, match=says):
        simulate(TWO_OF_THREE | {"updates": 5, "server": {"name": name, "lr": 0.1}, "window": 1})


@pytest.mark.usefixtures("sooner")
def test_a_run_that_waits_less_is_not(simulate: Simulate) -> None:
    """Each update takes 40 pushes, the bound itself; with more clients the bound is higher."""
    buffered = {"updates": 3, "server": {"name": "fedbuff", "lr": 0.1, "buffer": 40}, "window": 1}
    assert simulate(CLIENTS | buffered).summary["iterations"] == 120
    many = {"clients": {"count": 50, "batch_size": 1}, "server": {"name": "sync", "lr": 0.1}}
    assert simulate(many | {"updates": 2}).summary["iterations"] == 100


def test_a_run_that_ends_without_an_update_says_why(simulate: Simulate) -> None:
    changes: dict[str, Any] = {"iterations": 40, "server": {"name": "ia2sgd", "lr": 0.1}}
    with pytest.warns(FredsimWarning, match="the server made no update: what it waits for did not come"):
        assert simulate(TWO_OF_THREE | changes | {"model": {"hidden": [8], "init": "zeros"}}).summary["updates"] == 0
