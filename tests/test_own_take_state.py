"""What a user's `take_state` returns reaches `put_state` as it was, by way of a file, or is refused by its name."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fredsim.config.resolution import resolve
from fredsim.dispatchers.uniform import Uniform
from fredsim.errors import SimulationError
from fredsim.numerics.streams import Streams
from fredsim.plugins.guarded import Guarded
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy, Checkpoints
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from fredsim.servers import Momentum
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher
from tests.test_checkpoints import at
from tests.test_going_on import DATA, Notes, files_of, stopped
from tests.test_random_experiments import left_behind


class Own:
    """A class with a state of its own."""

    def __init__(self, kept: Any = None) -> None:
        self.kept = kept

    def take_state(self) -> Any:
        return self.kept

    def put_state(self, state: Any) -> None:
        self.kept = state


def again(kept: Any, folder: Path) -> Any:
    """Return what `put_state` gets of a mapping, from a checkpoint's files."""
    fresh = Own()
    Checkpoints(folder).write(at(1, Guarded(Own(kept)).take_state()))
    Guarded(fresh).put_state(dict(Checkpoints(folder).read(1, {"experiment": "e"}).state))
    return fresh.kept


def test_values_keep_their_types(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("abc")
    table = np.arange(6, dtype=np.complex64).reshape(2, 3)
    kept = {
        "power": np.float32(0.99), "count": np.uint32(4294967290), "flag": np.bool_(1), "half": np.float16(0.1),
        3: "three", "seen": [0, 2, None, {"a": (1, -0.0)}], (1, "x.y"): deque([1, 2], 2), "a.b": "text",
        "mean": table[:, 1], "table": table, "row": table[1], "set": {3, 1},
    }  # fmt: skip
    found = again(kept, tmp_path)
    assert repr(found) == repr(kept)
    assert [type(value) for value in found.values()] == [type(value) for value in kept.values()]
    assert found["row"].base is found["table"]
    assert found["row"].flags.writeable
    assert (found["power"] * 0.3).dtype == np.float32
    with np.errstate(over="ignore"):
        assert found["count"] + np.uint32(7) == 1
    assert again({}, tmp_path) == {}


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"a": 1, "seen": np.array([{}])}, r"take_state\(\)\['seen'\] holds an array of object; return numbers, texts"),
        ({"seen": np.array(["a"])}, r"take_state\(\)\['seen'\] holds an array of <U1; return"),
        ({"a": 1, 7: [SimpleNamespace()]}, r"take_state\(\)\[7\] holds a SimpleNamespace, which cannot be put back as"),
        ({Path("x"): 1}, r"take_state\(\)\[PosixPath\('x'\)\] holds a PosixPath, which cannot be put back as it was"),
        ({"seen": np.ma.masked_array([1.0])}, r"take_state\(\)\['seen'\] holds a MaskedArray, which cannot be put"),
        ({"n": 1 << 3000}, r"take_state\(\)\['n'\] holds an int of 3001 bits, which cannot be put back"),
        ([1, 2], "TypeError"),
    ],
)
def test_what_cannot_be_put_back_is_refused(kept: Any, says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        Guarded(Own(kept)).take_state()


class TakesOnly(Momentum):  # type: ignore[misc]
    """A class whose `put_state` is that of fredsim's class, which knows nothing of what it adds."""

    def take_state(self) -> Any:
        return super().take_state() | {"seen": 3}


def test_a_state_that_nobody_would_put_back() -> None:
    with pytest.raises(SimulationError, match=r"TakesOnly: has a take_state and no put_state\(state\), which restores"):
        Guarded(TakesOnly(lr=0.1, momentum=0.9)).take_state()


class Turns:
    """A dispatcher that says nothing of its state, and may not hold a client twice."""

    def init(self, clients: int, streams: Streams) -> None:
        self.free, self.last, self.calls = list(range(clients)), -1, 0

    def choose(self, step: int) -> int:
        return self.free[(step * 5 + self.last + self.calls) % len(self.free)]

    def hold(self, client: int) -> None:
        self.free.remove(client)
        self.last, self.calls = client, self.calls + 1

    def release(self, client: int, *_: int) -> None:
        self.free.append(client)
        self.last = -1


class Logs(Uniform):
    """One over a dispatcher of fredsim's, which has no state for who is held."""

    def init(self, clients: int, streams: Streams) -> None:
        super().init(clients, streams)
        self.log = list[int]()

    def hold(self, client: int) -> None:
        super().hold(client)
        self.log.append(client)

    def take_state(self) -> Any:
        return super().take_state() | {"log": self.log}

    def put_state(self, state: Any) -> None:
        super().put_state(state)
        self.log = state["log"]


@pytest.mark.parametrize("kind", [Turns, Logs])
def test_a_dispatcher_holds_nobody_a_second_time(kind: Callable[[], Any]) -> None:
    """Not even if what `hold` changes is as in the beginning by then."""

    def started() -> GuardedDispatcher:
        made = GuardedDispatcher(kind(), 4)
        made.inner.init(4, Streams(1))
        made.note_start()
        return made

    whole, again = started(), started()
    for one in (whole, again):
        one.choose(0)
        for client in (1, 2):
            one.hold(client)
        one.release(2)
    fresh = started()
    fresh.put_state(again.take_state())
    for step in range(1, 8):
        chosen = [one.choose(step) for one in (whole, fresh)]
        assert chosen[0] == chosen[1] != 1
    assert getattr(fresh.inner, "log", [1, 2]) == [1, 2]
    assert getattr(fresh.inner, "last", -1) == -1


OWN = """
import numpy as np
from fredsim.servers import ASGD, Momentum
from fredsim.simulation.plugins.guarded_plugins import GuardedDispatcher

class Corrected(Momentum):
    def init(self, params, clients, layout):
        super().init(params, clients, layout)
        self.power, self.seen = np.float32(1), []

    def apply_update(self, grad, client_id, timestamp):
        self.power *= 0.99
        self.seen.append(client_id)
        super().apply_update(grad * (1 - self.power) / np.float32(len(set(self.seen[-3:]))), client_id, timestamp)

    def take_state(self):
        return super().take_state() | {"power": self.power, "seen": self.seen}

    def put_state(self, state):
        super().put_state(state)
        self.power, self.seen = state["power"], state["seen"]

class Counts(ASGD):
    def init(self, params, clients, layout):
        super().init(params, clients, layout)
        self.calls = 0

    def coefficients(self, t, staleness):
        self.calls += 1
        return (np.float32(self.rate(t) / (1 + self.calls / 7)),)

    def take_state(self):
        return super().take_state() | {"calls": self.calls}

    def put_state(self, state):
        super().put_state(state)
        self.calls = state["calls"]

class Odd(Corrected):
    def take_state(self):
        return super().take_state() | {"odd": np.array([None])}

    def put_state(self, state):
        super().put_state(state)
"""


@pytest.mark.parametrize("name", ["Corrected", "Counts"])
def test_a_run_goes_on_with_its_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a second object of the class computes the coefficients."""
    (tmp_path / "own_takes.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = DATA | {"server": {"name": f"own_takes:{name}", "lr": 0.05}, "backend": "numpy", "events": False}
    whole, ended, _ = left_behind(data, {})
    assert ended.startswith("finished")
    execute(resolve(data), tmp_path / "run", policy=CheckpointPolicy(1e9), stop_at=35)
    assert stopped(data, tmp_path / "run", 10**9) == ("finished", ["continues from the checkpoint at iteration 35"])
    assert files_of(tmp_path / "run") == whole


def test_a_run_without_checkpoints_ends_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_takes.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data, observer = DATA | {"backend": "numpy", "events": False}, Notes()
    odd = data | {"server": {"name": "own_takes:Odd", "lr": 0.05}}
    execute(resolve(odd), tmp_path / "odd", policy=CheckpointPolicy(1e-9), observer=observer)
    assert Result(tmp_path / "odd").summary["status"] == "finished"
    assert "Odd: take_state()['odd'] holds an array of object; return" in observer.notes[0]
