"""A run that is stopped at any event, and goes on from its state in a fresh simulation, leaves the same bytes."""

import os
import random
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fredsim.config.resolution import resolve
from fredsim.errors import SimulationError
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.prepared import prepare
from fredsim.runs.single.run import Run
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.paths.loop import Diverged
from fredsim.simulation.record.recorder import Row
from fredsim.simulation.schedule.length import Length
from tests.conftest import needs_cuda
from tests.random_experiments import experiment
from tests.test_random_experiments import beside, left_behind

FEW = int(os.environ.get("FREDSIM_EXPERIMENTS", "40"))
DIGITS = {"name": "digits"}
State = dict[str, Any]


class Rows(Observer):
    """Keeps the rows."""

    def __init__(self) -> None:
        self.text = ""

    def row(self, row: Row) -> None:
        self.text += f"{row.values()}\n"


class Stopped(NamedTuple):
    """What a run has left, and its state: there is none where it diverged, at that event."""

    rows: str
    probe: str
    events: bytes
    state: State
    diverged: int
    path: str


def run_to(data: Mapping[str, Any], end: int, before: Stopped | None = None) -> Stopped:
    """Let a fresh run go on, from where another one stopped, to an event."""
    prepared, rows = prepare(resolve(data), None), Rows()
    wanted = prepared.experiment
    model, dataset, size = prepared.model, prepared.dataset, prepared.experiment.clients.batch_size
    engine = make_engine(wanted.backend, model, dataset, size, wanted.threads)
    state, diverged = State(), -1
    with ExitStack() as opened, np.errstate(all="ignore"):
        opened.callback(engine.close)
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        run = Run(prepared, wanted.backend, engine, folder, rows, lambda: False, prepared.length)
        if before is not None:
            run.simulation.put_state(before.state)
            same(run.simulation.take_state(), before.state)
            (folder / "events.parquet").write_bytes(before.events + b"what was written later")
            run._events.size = len(before.events)
        for file in run._files:
            opened.enter_context(file)
        try:
            run.simulation.process_until(Length(end, None))
            state = run.simulation.take_state()
        except Diverged as error:
            diverged = error.iteration
        probe = (folder / "probe.csv").read_text(encoding="utf-8") if "probe" in data else ""
        events = (folder / "events.parquet").read_bytes() if "events" in data else b""
        path = run.simulation.choice.path
    if before is not None:
        return Stopped(before.rows + rows.text, before.probe + probe, events, state, diverged, path)
    return Stopped(rows.text, probe, events, state, diverged, path)


def same(one: State, two: State) -> None:
    """Compare the bytes."""
    assert one.keys() == two.keys()
    for name in one:
        ours, theirs = one[name], two[name]
        assert type(ours) is type(theirs), name
        if isinstance(ours, np.ndarray):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
            assert ours.tobytes() == theirs.tobytes(), name
        else:
            assert repr(ours) == repr(theirs), name


def no_choices(state: State) -> State:
    """Leave out what tells how far choices are drawn ahead."""
    ahead = ("dispatcher.own.", *(f"arrivals.{name}" for name in ("_ahead", "_columns", "_drawn", "_works", "_ended")))
    return {name: value for name, value in state.items() if not name.startswith(ahead)}


def stop_and_go_on(data: dict[str, Any], stops: list[int]) -> str:
    """Compare a run that is stopped at some events with one that is not; return its path."""
    whole, end = run_to(data, data["iterations"]), data["iterations"]
    found: Stopped | None = None
    for stop in stops:
        if whole.diverged < 0 or stop <= whole.diverged:
            found = run_to(data, stop, found)
            assert found.diverged == -1
    found = run_to(data, end, found)
    assert (found.rows, found.probe, found.diverged) == (whole.rows, whole.probe, whole.diverged)
    assert found.events == whole.events
    same(*(no_choices(stopped.state) for stopped in (found, whole)))
    return whole.path


@pytest.mark.parametrize("number", range(FEW))
def test_random_experiments(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fredsim.runs.folder.event_file.FIRST_GROUP_ROWS", 8
    )  # rows a group: there are some whole ones then
    data, rng = experiment(number), random.Random(number)
    usual = left_behind(data, {"backend": "numba"})[2]
    stops = sorted(rng.sample(range(data["iterations"] + 1), 2))
    for path in sorted({usual, *beside(data, usual)} if usual else set()):
        way = {"path": path, "threads": rng.choice([1, 2]), "window": rng.choice([None, 1, 3])}
        assert stop_and_go_on(data | way, stops) == path
    if usual and number % 10 == 0:
        assert stop_and_go_on(data | {"backend": "numpy"}, stops) == "snapshots"


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
def test_what_each_client_did_is_state(path: str) -> None:
    clients = {"count": 3, "batch_size": 2, "partition": {"name": "shards", "per_client": 1}}
    data = {"iterations": 20, "data": DIGITS, "model": {"hidden": [5]}, "clients": clients, "path": path}
    data |= {"server": {"name": "asgd", "lr": 0.1}, "evaluation": {"per_client": True}}
    assert stop_and_go_on(data, [7, 12]) == path
    assert run_to(data, 20, run_to(data, 7)).state["recorder.by_client.pushes"].sum() == 20


def test_what_clients_hold_of_several_timestamps() -> None:
    """Where a fetch passes tensor by tensor, a client's timestamp is the oldest of its tensors'."""
    gate = {"bandwidth_aware": {"c": 0.2, "per": "tensor"}}
    data = {
        "iterations": 60,
        "data": DIGITS,
        "model": {"hidden": [5]},
        "clients": {"count": 4, "batch_size": 2},
        "dispatcher": {"name": "uniform", "fetch": gate},
        "server": {"name": "fasgd", "lr": 0.01},
    }
    assert stop_and_go_on(data, [11, 30]) == "fused"


@needs_cuda
@pytest.mark.parametrize(("server", "path"), [("fasgd", "queued"), ("asgd", "snapshots")])
@pytest.mark.parametrize("wait", [True, False])
def test_on_a_device(server: str, path: str, wait: bool) -> None:
    data = {"iterations": 12, "clients": {"count": 3, "batch_size": 2}, "server": {"name": server, "lr": 0.01}}
    gate = {"push": "always", "fetch": {"every": 2}, "dropped_push": "accumulate"} if path == "snapshots" else {}
    changes = {"backend": "cuda", "data": DIGITS, "model": {"hidden": [5]}, "dispatcher": {"wait": wait, **gate}}
    assert stop_and_go_on({**data, **changes}, [3, 8]) == path


OWN = """
from collections import OrderedDict, deque

import numpy as np

from fredsim.servers import ASGD, ElementwiseServer, Momentum
from fredsim.servers.base import Rated

class Kept:
    __slots__ = ("count",)

class Server:
    def __init__(self, lr, keeps=None):
        self.lr, self.keeps = lr, keeps

    def init(self, params, clients):
        self.params = params.copy()
        self.view = self.params[:3]
        self.last = deque(maxlen=4)
        self.by_client = {}
        self.rng = np.random.default_rng(7)
        self.seen = OrderedDict()
        self.loss = None
        self.scale = np.float32(1)
        if self.keeps:
            self.kept = Kept()

    def apply_update(self, grad, client_id, timestamp):
        if self.keeps:
            self.kept.count = timestamp
        self.last.append((client_id, timestamp))
        mean = self.by_client.get(client_id, np.zeros_like(grad))
        self.by_client[client_id] = np.float32(0.5) * (mean + grad)
        self.seen[client_id] = self.by_client[client_id]
        self.scale *= np.float32(0.99)
        self.loss = float(grad[0])
        noise = np.float32(1 + 0.1 * self.rng.random() + 0.01 * sum(c for c, _ in self.last))
        self.params -= np.float32(self.lr) * noise * self.scale * self.by_client[client_id]
        self.view += np.float32(0.001 * len(self.seen))

class Lookahead(Momentum):
    pass

class Counts(ElementwiseServer):
    Hyper = Rated
    rule = ASGD.rule
    calls = 0

    def coefficients(self, t, staleness):
        self.calls += 1
        return (np.float32(self.rate(t) / self.calls),)

class Previous:
    def __init__(self, lr):
        self.lr = np.float32(lr)

    def init(self, params, clients):
        self.params = params.copy()
        self.before = self.params  # one array now, two later on
        self.seen = {np.int64(client): self.params for client in range(clients)}

    def apply_update(self, grad, client_id, timestamp):
        moved = self.params - self.before + np.float32(0.01) * self.seen[client_id]
        self.before = self.seen[client_id] = self.params
        self.params = self.params - self.lr * grad + np.float32(0.5) * moved

class Dispatcher:
    def __init__(self):
        pass

    def init(self, clients, streams):
        self.free, self.turn = list(range(clients)), 0

    def choose(self, step):
        self.turn = (self.turn * 5 + 3) % 101
        return self.free[self.turn % len(self.free)]

    def hold(self, client):
        self.free.remove(client)

    def release(self, client):
        self.free.append(client)
"""


def test_classes_of_a_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need say nothing of their state: it stands in their attributes."""
    (tmp_path / "own_states.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = {
        "iterations": 30,
        "data": DIGITS,
        "model": {"hidden": [5]},
        "clients": {"count": 4, "batch_size": 2},
        "dispatcher": {"name": "own_states:Dispatcher"},
        "server": {"name": "own_states:Server", "lr": 0.1},
    }
    averaged = {**data, "average": {"name": "window", "min_window": 2, "max_window": 4}}
    rebinding = {**data, "server": {"name": "own_states:Previous", "lr": 0.1}}
    for path in ("hand", "snapshots"):
        for one in (data, averaged, rebinding):
            assert stop_and_go_on({**one, "path": path}, [5, 17]) == path
    refusing = {**data, "dispatcher": {"fetch": {"every": 2}}, "server": {"name": "own_states:Lookahead", "lr": 0.1}}
    assert stop_and_go_on(refusing, [5, 17]) == "fused"
    for path in ("hand", "fused", "snapshots"):  # the second object, which forms coefficients, has a state, too
        counts = {**data, "path": path, "server": {"name": "own_states:Counts", "lr": 0.1}}
        assert stop_and_go_on(counts, [5, 17]) == path
    held = {**data, "server": {"name": "sync", "lr": 0.1}}
    assert stop_and_go_on(held, [4, 5, 6]) == "snapshots"
    with pytest.raises(SimulationError, match=r"Server: self\.kept is a Kept, .*give Server take_state\(\)"):
        run_to({**data, "server": {"name": "own_states:Server", "lr": 0.1, "keeps": True}}, 3)
