"""A run that is stopped or killed, at any moment, goes on and leaves the bytes of one that was never stopped."""

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fredsim.config.document import dump_yaml, read_document
from fredsim.config.experiment import irrelevant_to
from fredsim.config.resolution import resolve
from fredsim.config.sections import Affects
from fredsim.errors import OutputError
from fredsim.runs.checkpoint.checkpoints import Checkpoint, CheckpointPolicy, Checkpoints
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute
from tests.conftest import checkpoints_every
from tests.random_experiments import experiment
from tests.test_random_experiments import FILES, beside, left_behind

Command = Callable[..., tuple[int, str, str]]
FEW = 24
DATA: dict[str, Any] = {
    "data": {"name": "digits"}, "model": {"hidden": [8]}, "clients": {"count": 5, "batch_size": 2}, "iterations": 60,
    "server": {"name": "fasgd", "lr": 0.01}, "path": "snapshots", "evaluation": {"every": 7, "per_client": True},
    "events": True,
}  # fmt: skip


class Notes(Observer):
    """Keeps what is worth a line."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Looks:
    """Says to stop at the n-th time that it is asked."""

    def __init__(self, stops: int) -> None:
        self.left = stops

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def stopped(data: dict[str, Any], folder: Path, stops: int) -> tuple[str, list[str]]:
    """Run until it is asked so often whether to stop; return how it ended, and what it said."""
    notes = Notes()
    with np.errstate(all="ignore"):
        execute(resolve(data), folder, stop=Looks(stops), policy=CheckpointPolicy(1e9), observer=notes)
    return Result(folder).summary["status"], notes.notes


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name in FILES if (path := folder / name).is_file()}


@pytest.mark.parametrize("number", range(FEW))
def test_random_experiments(number: int, tmp_path: Path) -> None:
    """It is stopped again and again."""
    data, rng = experiment(number), random.Random(number)
    whole, ended, usual = left_behind(data, {"backend": "numba"})
    if not usual:  # it fails
        return
    way = {"backend": "numba", "path": rng.choice([usual, *beside(data, usual)]), "window": rng.choice([1, 2, 3])}
    status = "interrupted"
    while status == "interrupted":
        status, _ = stopped(data | way, tmp_path / "run", rng.randint(1, 40))
        assert (tmp_path / "run" / "checkpoint").is_dir() == (status == "interrupted")
    assert ended.startswith(status)
    assert files_of(tmp_path / "run") == whole


def test_what_was_spent_is_added_up(tmp_path: Path) -> None:
    stopped(DATA, tmp_path, 10)
    (written,) = (tmp_path / "checkpoint").glob("*.json")
    first = json.loads(written.read_text(encoding="utf-8"))
    assert first["iteration"] == Result(tmp_path).summary["iterations"] < 60
    _, notes = stopped(DATA, tmp_path, 10**9)
    assert notes == [f"continues from the checkpoint at iteration {first['iteration']}"]
    second = Result(tmp_path).summary
    for name in ("seconds", "seconds_evaluation", "seconds_kernels"):
        assert second[name] > first["spent"][name] > 0


@pytest.mark.parametrize("change", ["backend", "path", "code"])
def test_another_way_begins_anew(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(DATA, tmp_path, 10)
    now = {"backend": {"backend": "numpy"}, "path": {"path": "fused"}, "code": {}}[change]
    if change == "code":
        monkeypatch.setattr("fredsim.runs.single.execution.code_digests", lambda _: {"mine": "0" * 64})
    status, notes = stopped(DATA | now, tmp_path, 10**9)
    assert (status, len(notes)) == ("finished", 1)
    assert f"cannot be used (its {change} is" in notes[0]
    assert files_of(tmp_path) == left_behind(DATA, {})[0]


#: For each key that changes no bit: what it is before a run is stopped, and when the run continues.
MAY_CHANGE: dict[str, tuple[Any, Any]] = {
    "name": ("before", "after"), "backend": ("numba", "numpy"), "threads": (1, 2), "window": (3, 1),
    "path": ("snapshots", "fused"), "memory": (None, 1), "probe": ({"every": 2}, {"every": 7}),
    "events": (True, False), "published": (None, {"source": "here", "series": [{"where": {}, "points": [[10, 0.5]]}]}),
    "figures": (None, [{"name": "loss", "y": "train_loss"}]),
}  # fmt: skip


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("key", sorted(irrelevant_to(Affects.BITS)))
def test_keys_that_may_change_when_a_run_continues(key: str, back: bool, tmp_path: Path, command: Command) -> None:
    """The files are those of a run that had the new value from the beginning; a new key needs a line above."""
    before, after = reversed(MAY_CHANGE[key]) if back else MAY_CHANGE[key]
    data = DATA | {"probe": {"every": 5}, "path": "auto", "server": {"name": "asgd", "lr": 0.1}}
    assert stopped(data | {key: before}, tmp_path / "run", 12)[0] == "interrupted"
    assert stopped(data | {key: after}, tmp_path / "run", 10**9)[0] == "finished"
    whole = left_behind(data | {key: after}, {})[0]
    assert files_of(tmp_path / "run") == whole
    assert read_document(tmp_path / "run" / "config.yaml").data["name"] == resolve(data | {key: after}).name
    assert command("verify", tmp_path / "run")[0] == 0


def test_a_probe_that_is_switched_on_or_off(tmp_path: Path) -> None:
    for number, (before, after) in enumerate(((None, {"every": 3}), ({"every": 3}, None))):
        folder = tmp_path / str(number)
        stopped(DATA | {"probe": before}, folder, 12)
        _, notes = stopped(DATA | {"probe": after}, folder, 10**9)
        assert "cannot be used (its probe is" in notes[0]
        assert files_of(folder) == left_behind(DATA | {"probe": after}, {})[0]


def test_another_experiment_does_not_take_the_folder(tmp_path: Path) -> None:
    stopped(DATA, tmp_path, 1)
    with pytest.raises(OutputError, match="holds another experiment"):
        execute(resolve(DATA | {"seed": 1}), tmp_path)
    assert (tmp_path / "checkpoint").is_dir()


@pytest.mark.parametrize("name", ["metrics.csv", "events.parquet"])
def test_a_file_that_was_changed_is_not_gone_on_with(name: str, tmp_path: Path) -> None:
    stopped(DATA, tmp_path, 10)
    content = bytearray((tmp_path / name).read_bytes())
    content[20] ^= 1
    (tmp_path / name).write_bytes(content)
    status, notes = stopped(DATA, tmp_path, 10**9)
    assert status == "finished"
    assert f"{name}: is not as it was at iteration" in notes[0]
    assert files_of(tmp_path) == left_behind(DATA, {})[0]


def test_where_no_checkpoint_can_be_written_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    checkpoints_every(1e-9, monkeypatch)
    monkeypatch.setattr(Checkpoints, "write", full)
    notes = Notes()
    execute(resolve(DATA), tmp_path, observer=notes)
    assert "no checkpoint at iteration" in notes.notes[0]
    assert "No space left" in notes.notes[0]
    assert len(notes.notes) == 1  # not at every checkpoint
    assert files_of(tmp_path) == left_behind(DATA, {})[0]


def test_a_second_failure_is_told_if_a_checkpoint_was_written_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = Checkpoints.write, itertools.count()

    def full(self: Checkpoints, checkpoint: Checkpoint) -> None:
        if next(calls) != 2:
            raise OSError(28, "No space left on device")
        write(self, checkpoint)

    checkpoints_every(1e-9, monkeypatch)
    monkeypatch.setattr(Checkpoints, "write", full)
    notes = Notes()
    execute(resolve(DATA), tmp_path, observer=notes)
    assert next(calls) > 5
    assert len(notes.notes) == 2


def test_slow_checkpoints_take_a_fiftieth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 1 s, and the next one begins 50 s after its end."""
    now, began = [0.0], list[float]()

    class Ticking(Observer):
        def advance(self, *_: object) -> None:
            now[0] += 1.0

    def slow(self: Checkpoints, checkpoint: Checkpoint) -> None:
        del self, checkpoint
        began.append(now[0])
        now[0] += 1.0

    monkeypatch.setattr("fredsim.runs.single.run.time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Checkpoints, "write", slow)
    data = DATA | {"iterations": 160, "window": 1, "evaluation": {"every": 1}, "events": False}
    execute(resolve(data), tmp_path, observer=Ticking(), policy=CheckpointPolicy(1e-9))
    assert len(began) > 2
    assert {after - before for before, after in itertools.pairwise(began)} == {51.0}


KILLED = """
import sys
from pathlib import Path
from fredsim.config.yaml.plain_yaml import parse_yaml
from fredsim.config.document import dump_yaml
from fredsim.config.resolution import resolve
from fredsim.runs.single import run
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.single.execution import execute
run.MOST_CHECKPOINT_SHARE = 1e9
execute(resolve(parse_yaml(Path("killed.yaml").read_text(), "killed.yaml")), Path("run"), policy=CheckpointPolicy(0.05))
"""


def test_killed_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slow = {
        "name": "clock",
        "link": {"latency": 0.1},
        "push": {"every": 2},
        "compute": {"noise": {"name": "exponential"}},
    }
    data = DATA | {"iterations": 6000, "dispatcher": slow, "evaluation": {"every": 50, "per_client": True}}
    Path("killed.yaml").write_text(dump_yaml(data), encoding="utf-8")
    Path("killed.py").write_text(KILLED, encoding="utf-8")
    rng, killed = random.Random(3), 0
    for kill in [True] * 4 + [False]:
        process = subprocess.Popen([sys.executable, "killed.py"])
        if kill:
            while process.poll() is None and not list(Path("run/checkpoint").glob("*.json")):
                time.sleep(0.01)
            time.sleep(rng.random() * 0.4)
            killed += process.poll() is None
            process.kill()
        process.wait(300)
    assert process.returncode == 0
    assert killed > 0
    assert files_of(Path("run")) == left_behind(data, {})[0]


def test_a_run_that_is_done_again_goes_on_too(tmp_path: Path) -> None:
    """What it leaves when it is stopped is of the same code as that of a run of an empty folder."""
    stopped(DATA, tmp_path, 10**9)
    assert stopped(DATA, tmp_path, 20) == ("interrupted", [])
    status, notes = stopped(DATA, tmp_path, 10**9)
    assert (status, len(notes)) == ("finished", 1)
    assert "continues from the checkpoint at iteration" in notes[0]


@pytest.mark.parametrize("path", ["snapshots", "fused", "hand"])
def test_killed_after_the_row_that_ends_it(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its summary was written: nothing follows that row."""
    data = DATA | {"until": {"validation_loss": 2.0}, "iterations": 300, "path": path}
    execute(resolve(data), tmp_path / "whole")
    assert Result(tmp_path / "whole").summary["iterations"] < 300
    checkpoints_every(1e-9, monkeypatch)
    with monkeypatch.context() as killed:
        killed.setattr("fredsim.runs.single.execution.evaluate", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            execute(resolve(data), tmp_path / "run")
    notes = Notes()
    execute(resolve(data), tmp_path / "run", observer=notes)
    assert "continues from the checkpoint at iteration" in notes.notes[0]
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")


DRIFTS = """
import numpy as np
from fredsim.servers import Reply

class Drifts:
    holds = True

    def __init__(self, lr):
        self.lr, self.timestamp, self.waiting = lr, 0, []

    def init(self, params, clients):
        self.params, self.v = params.copy(), np.full_like(params, 1)

    def apply_update(self, grad, client_id, timestamp):
        self.waiting.append(client_id)
        self.v[...] = 100 if len(self.waiting) == 1 else 0.01
        if len(self.waiting) < 2:
            return Reply((client_id,))
        self.params -= np.float32(self.lr) * grad
        self.timestamp, self.waiting = self.timestamp + 1, []
        return Reply((client_id,))
"""


def test_a_statistic_that_changes_between_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate sees the v that the server has, before a stop and after it."""
    (tmp_path / "own_drifts.py").write_text(DRIFTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    gate = {"name": "uniform", "fetch": {"bandwidth_aware": {"c": 1.0}}}
    data = DATA | {"server": {"name": "own_drifts:Drifts", "lr": 0.05}, "dispatcher": gate}
    whole, ended, _ = left_behind(data, {})
    assert ended.startswith("finished")
    status = "interrupted"
    while status == "interrupted":
        status, _ = stopped(data, tmp_path / "run", 2)
    assert files_of(tmp_path / "run") == whole


OWN = """
import random

class Turns:
    def init(self, clients, streams):
        self.clients, self.turn = clients, 0

    def choose(self, step):
        assert step < 60, "the run has no more iterations"
        self.turn = (self.turn * 5 + 3) % 101
        return self.turn % self.clients

    def hold(self, client):
        pass
    release = hold

class Slow:
    def seconds(self, client, task):
        return 1 + client / 3 + task % 2

class Unseeded(Turns):
    def choose(self, step):
        return random.SystemRandom().randrange(self.clients)
"""


@pytest.mark.parametrize("name", ["Turns", "Slow"])
def test_stopped_while_a_users_class_is_asked_who_comes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the whole order is drawn before the first event it is drawn in pieces, and whole where a run goes on."""
    (tmp_path / "own_slow_orders.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = DATA | {"path": "hand", "dispatcher": {"name": f"own_slow_orders:{name}"}}
    whole, _, _ = left_behind(data, {})
    monkeypatch.setattr("fredsim.simulation.plugins.guarded_plugins.OWN_CHOICES", 7)
    monkeypatch.setattr("fredsim.simulation.schedule.guarded_clock.OWN_CHOICES", 7)
    for module in ("pace", "scheduled"):
        monkeypatch.setattr(f"fredsim.simulation.paths.{module}.SLICE", -1)
    reached = []
    for stops in (4, 12, 10**9):
        stopped(data, tmp_path / "run", stops)
        reached.append(Result(tmp_path / "run").summary["iterations"])
    assert reached == [0, reached[1], 60]
    assert 0 < reached[1] < 60
    assert files_of(tmp_path / "run") == whole


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("path", ["hand", "queued"])
def test_an_order_that_is_another_when_it_is_drawn_again(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run begins anew: what its events say is one order, whose replay has the same bits."""
    (tmp_path / "own_slow_orders.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = DATA | {"path": path, "dispatcher": {"name": "own_slow_orders:Unseeded"}, "threads": 1}
    data |= {"clients": {"count": 5, "batch_size": 2, "sampling": "iid"}, "server": {"name": "asgd", "lr": 0.1}}
    if path == "queued":
        pytest.importorskip("torch")
        data |= {"model": {"name": "torch:own_modules:dense", "numerics": "native"}}
    stopped(data, tmp_path / "run", 5)
    assert 0 < Result(tmp_path / "run").summary["iterations"] < 60
    status, notes = stopped(data, tmp_path / "run", 10**9)
    assert (status, len(notes)) == ("finished", 1)
    assert "cannot be used (its state does not fit: ValueError its order of arrivals is another" in notes[0]
    trace = {"name": "trace", "file": str(tmp_path / "run" / "events.parquet")}
    execute(resolve(data | {"dispatcher": trace}), tmp_path / "replay")
    digests = [Result(tmp_path / name).summary["digest"] for name in ("run", "replay")]
    assert digests[0] == digests[1]


MADE = """
import os
import torch

def net():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.Tanh(), torch.nn.Linear(6, 10))
    with torch.no_grad():
        module[1].weight.mul_(float(os.environ["OWN_SCALE"]))
    return module
"""


@pytest.mark.parametrize("numerics", ["portable", "native"])
def test_a_module_that_is_made_otherwise(numerics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another version of PyTorch, or where a factory looks at the machine: the run begins anew with that one."""
    pytest.importorskip("torch")
    (tmp_path / "own_made.py").write_text(MADE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model = {"name": "torch:own_made:net", "numerics": numerics, "trainable": "3.*"}
    data, ended = DATA | {"model": model, "threads": 1, "server": {"name": "asgd", "lr": 0.1}}, []
    for scale, folder, stops in (("1", "run", 10), ("2", "run", 10**9), ("2", "whole", 10**9)):
        monkeypatch.setenv("OWN_SCALE", scale)
        sys.modules.pop("own_made", None)
        ended.append(stopped(data, tmp_path / folder, stops))
    assert [status for status, _ in ended] == ["interrupted", "finished", "finished"]
    assert "cannot be used (its module is" in ended[1][1][0]
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")
