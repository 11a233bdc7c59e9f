"""A run that diverges is run again to the event before: from the last state kept, where that is sure, else anew."""

from pathlib import Path
from typing import Any

import pytest

from fredsim.plugins.state.states import State
from fredsim.simulation.paths.loop import Simulation
from tests.conftest import checkpoints_every
from tests.test_random_experiments import left_behind
from tests.test_state import stop_and_go_on

DIGITS = {"name": "digits"}
GROWING = {"name": "exponential", "base": 1e-3, "factor": 3.0, "every": 1}


def noted_states(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the iterations of the states that simulations go on from, as they do."""
    taken: list[int] = []
    usual = Simulation.put_state

    def put_state(simulation: Simulation, state: State) -> None:
        taken.append(state["iteration"])
        usual(simulation, state)

    monkeypatch.setattr(Simulation, "put_state", put_state)
    return taken


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
def test_a_run_that_diverges_goes_on_from_what_was_kept(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the last state was kept, the run leaves the same files as one that begins anew."""
    base = {"data": DIGITS, "clients": {"count": 4, "batch_size": 2}, "path": path, "probe": {"every": 3}}
    if path == "hand":
        del base["probe"]
    data = base | {"iterations": 200, "evaluation": {"every": 7}, "model": {"hidden": [5], "init": "normal"}}
    data["server"] = {"name": "asgd", "lr": GROWING}
    anew = left_behind(data, {})
    assert anew[1].startswith("diverged")
    taken = noted_states(monkeypatch)
    for seconds in (1e-9, 1e-3):
        checkpoints_every(seconds, monkeypatch)
        assert left_behind(data, {}) == anew
    assert taken[0] > 0


@pytest.mark.parametrize("path", ["hand", "snapshots"])
def test_what_is_left_is_that_of_the_event_before(path: str) -> None:
    data = {"data": DIGITS, "clients": {"count": 4, "batch_size": 2}, "path": path, "model": {"hidden": [5]}}
    data |= {"iterations": 200, "server": {"name": "asgd", "lr": GROWING}}
    files, ended, _ = left_behind(data, {})
    status, events, _ = ended.split()
    assert (status, int(events) > 0) == ("diverged", True)
    shorter, finished, _ = left_behind(data, {"iterations": int(events)})
    assert finished.startswith(f"finished {events} ")
    assert shorter == files
    assert left_behind(data, {"iterations": int(events) + 1})[:2] == (files, ended)


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ({"name": "vgg", "widths": [2], "buffers": "averaged"}, GROWING),
        ({"name": "vgg", "widths": [2], "buffers": "last"}, 1e30),
        ({"name": "torch:own_modules:normalized", "numerics": "portable", "buffers": "averaged"}, GROWING),
        ({"name": "torch:own_modules:normalized", "numerics": "native", "buffers": "averaged"}, GROWING),
        ({"name": "torch:own_modules:Tires", "numerics": "native"}, GROWING),
    ],
    ids=["vgg", "at once", "portable", "native", "attributes"],
)
def test_what_a_model_keeps_is_that_of_the_event_before(
    model: dict[str, Any], rate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running statistics, and attributes of a user's module, begin anew the second time, as the simulation does."""
    if model["name"].startswith("torch:"):
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    monkeypatch.syspath_prepend(Path(__file__).parent)
    data = {"data": DIGITS, "clients": {"count": 4, "batch_size": 4}, "model": model, "threads": 1}
    data |= {"iterations": 200, "server": {"name": "asgd", "lr": rate}, "evaluation": {"every": 3}}
    files, ended, _ = left_behind(data, {})
    status, events, _ = ended.split()
    assert status == "diverged"
    shorter, finished, _ = left_behind(data, {"iterations": int(events) or 1})
    if int(events):
        assert finished.startswith(f"finished {events} ")
        assert shorter == files
    else:  # there is nothing shorter, but the row before the first event
        rows = [found["metrics.csv"].splitlines()[:2] for found in (files, shorter)]
        assert rows[0] == rows[1]


@pytest.mark.parametrize("kind", ["Sharing", "Bounded", "Counting"])
def test_a_users_class_that_diverges_is_run_again_from_the_beginning(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may keep what no attribute tells; what its attributes do tell is enough to go on from."""
    (tmp_path / "own_diverging.py").write_text(DIVERGING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    server = {"name": f"own_diverging:{kind}", "lr": 1e-3}
    clients = {"count": 4, "batch_size": 2}
    data = {"data": DIGITS, "clients": clients, "iterations": 300, "model": {"hidden": [5]}, "server": server}
    anew = left_behind(data, {})
    assert anew[1].startswith("diverged")
    averaged = data | {"average": {"name": "window", "min_window": 2, "max_window": 4}}
    averaged_anew = left_behind(averaged, {})
    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "put_state", None)
        for found, expected in ((data, anew), (averaged, averaged_anew)):
            checkpoints_every(1e-9, patch)
            assert left_behind(found, {}) == expected
    for path in ("hand", "snapshots"):
        assert stop_and_go_on(data | {"iterations": 12, "path": path}, [3, 7]) == path


def test_a_users_class_that_names_its_state_goes_on_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column has a name of more bytes than letters."""
    (tmp_path / "own_naming.py").write_text(DIVERGING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    server, clients = {"name": "own_naming:Names", "lr": 1e-3}, {"count": 4, "batch_size": 2}
    data = {"data": DIGITS, "clients": clients, "iterations": 300, "model": {"hidden": [5]}, "server": server}
    data["evaluation"] = {"every": 2}
    anew = left_behind(data, {})
    assert anew[1].startswith("diverged")
    taken = noted_states(monkeypatch)
    checkpoints_every(1e-9, monkeypatch)
    assert left_behind(data, {}) == anew
    assert len(taken) == 1
    assert taken[0] > 2


DIVERGING = """
from collections import Counter, deque

import numpy as np

class Growing:
    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params, self.rate, self.by_client, self.last = params.copy(), self.lr, {}, None

    def apply_update(self, grad, client_id, timestamp):
        self.rate *= 1.5
        self.params -= np.float32(self.rate) * self.step(grad, client_id)

class Sharing(Growing):
    def step(self, grad, client):
        if self.last is not None:
            self.last *= np.float32(0.5)
        self.last = self.by_client.setdefault(client, np.zeros_like(grad))
        self.last += grad
        return sum(self.by_client.values())

class Bounded(Growing):
    def step(self, grad, client):
        recent = self.by_client.setdefault(client, deque(maxlen=2))
        recent.append(float(grad[0]))
        return grad * np.float32(1 + abs(sum(recent)))

class Names(Growing):
    state_names = ("params", "rate", "by_client")
    metrics = {"größe": "sum"}

    def step(self, grad, client):
        self.last = grad.size  # not named, and kept all the same
        self.by_client[client] = self.by_client.get(client, 0) + self.last
        self.record("größe", self.by_client[client])
        return grad * np.float32(self.by_client[client])

class Counting(Growing):
    def step(self, grad, client):
        seen = self.by_client.setdefault("seen", Counter())
        seen[client] += 1
        return grad * np.float32(1 + seen[client] + seen["nobody"])
"""
