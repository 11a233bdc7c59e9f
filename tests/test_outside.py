"""What functions and problems of a user's keep from call to call: no checkpoint has it, so none is written."""

import hashlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fredsim.config.document import dump_yaml, read_document
from fredsim.config.resolution import resolve
from fredsim.runs.folder.result import Result
from fredsim.runs.single.execution import execute_here
from tests.conftest import checkpoints_every
from tests.test_going_on import Notes

MODULE = """
import numpy as np

RNG = np.random.default_rng(0)
SEEN = {}
CALLS = [0]

def constant(t, base):
    return base

def noisy(t, base):
    return base * SEEN.setdefault(t, RNG.uniform(0.5, 1))

def same(x, generator):
    return x

def counted(x, generator):
    CALLS[0] += 1
    return x

def counted_outputs(outputs, targets):
    CALLS[0] += 1
    return 1.0

class Plain:
    def __init__(self):
        self.room, self.level = np.zeros(3, np.float32), 0

    def initial(self, rng):
        return np.ones(3, np.float32)

    def gradient(self, params, draw):
        self.room[...] = params  # it depends on what it is given alone
        return self.room

    def evaluate(self, params):
        return {"loss": float(np.abs(params).sum())}

class Level(Plain):
    def gradient(self, params, draw):
        return params * np.float32(1 + self.level // 2)

    def evaluate(self, params):
        self.level += 1
        return super().evaluate(params)

class Shared(Level):
    levels = [0]

    def gradient(self, params, draw):
        return params * np.float32(1 + self.levels[0] // 2)

    def evaluate(self, params):
        self.levels[0] += 1
        return Plain.evaluate(self, params)
"""
NUMBERS = itertools.count()


def notes_of(keys: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, base: dict[str, Any]) -> list[str]:
    """Run with a checkpoint after each stretch and a module, `M`, of its own; return what is told of checkpoints."""
    module = f"outside_{next(NUMBERS)}"
    (folder / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    checkpoints_every(1e-9, monkeypatch)
    text = dump_yaml({key: value for key, value in (base | keys).items() if value is not None})
    (folder / "x.yaml").write_text(text.replace("M:", f"{module}:"))
    observer = Notes()
    execute_here(resolve(read_document(folder / "x.yaml").data), folder / "out", observer=observer)
    return [note.replace(module, "M") for note in observer.notes if "no checkpoint" in note]


PROBLEM: dict[str, Any] = {"data": None, "model": None, "clients": {"count": 4}}
OF_OPTIMIZER = {"count": 4, "batch_size": 3, "local_steps": 2, "optimizer": {"name": "momentum"}}


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"server": {"name": "asgd", "lr": {"name": "M:noisy", "base": 0.1}}}, "M.RNG"),
        ({"server": {"name": "asgd", "lr": {"name": "M:constant", "base": 0.1}}}, ""),
        ({"server": {"name": "sync", "inner": {"name": "momentum", "lr": {"name": "M:noisy", "base": 0.1}}}}, "M.RNG"),
        (
            {
                "clients": OF_OPTIMIZER | {"optimizer": {"name": "momentum", "lr": {"name": "M:noisy", "base": 0.1}}},
                "server": {"name": "fedbuff", "lr": 0.1},
            },
            "M.RNG",
        ),
        ({"data": {"name": "digits", "augment": {"function": "M:counted"}}}, "M.CALLS"),
        ({"data": {"name": "digits", "augment": {"function": "M:same"}}}, ""),
        ({"evaluation": {"every": 10, "metrics": [{"name": "M:counted_outputs"}]}}, "M.CALLS"),
        (PROBLEM | {"problem": {"name": "M:Plain"}}, ""),
        (PROBLEM | {"problem": {"name": "M:Level"}}, "the attribute level of problem.name: M:Level"),
        (PROBLEM | {"problem": {"name": "M:Shared"}}, "M.Shared"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_be_lost_is_named(
    keys: dict[str, Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits_experiment: dict[str, Any]
) -> None:
    base = digits_experiment | {"evaluation": {"every": 10}}
    notes = notes_of(keys, tmp_path, monkeypatch, base)
    assert len(notes) == bool(what), notes
    if what:
        assert f": {what} has changed, which no checkpoint has, and would be lost" in notes[0]


SCRIPT = """
import sys
import numpy as np
import fredsim

N = 0
RESULTS = []

class Helper:
    seen = 0

    def look(self):
        Helper.seen += 1

def factor():
    global N
    N += 1
    return np.float32(0.1 / (1 + N / 100))

class Counting:
    def __init__(self): pass
    def init(self, params, clients): self.params = params.copy(); self.timestamp = 0
    def apply_update(self, grad, client_id, timestamp):
        self.params -= factor() * grad
        self.timestamp += 1

class Helped(Counting):
    def init(self, params, clients): super().init(params, clients); self.helper = Helper()
    def apply_update(self, grad, client_id, timestamp):
        self.helper.look()
        self.params -= np.float32(0.1) * grad
        self.timestamp += 1

class Plain(Counting):
    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(0.1) * grad
        self.timestamp += 1

def on_row(row):
    RESULTS.append(row)  # the script's own, which the class does not use
    if row["iteration"] == 30: raise KeyboardInterrupt

name = sys.argv[1]
experiment = {
    "name": "small", "iterations": 60, "data": {"name": "digits"}, "model": {"hidden": [8]},
    "evaluation": {"every": 10}, "clients": {"count": 4, "batch_size": 3}, "server": {"name": f"__main__:{name}"},
}
try:
    fredsim.run(experiment, out="out", progress=True, on_row=on_row)
except KeyboardInterrupt:
    print("stopped")
if name == "Plain":
    with open(__file__, "a") as file:
        file.write("# what this process does not know")
    fredsim.run(experiment, ["iterations=5"], out="again")
"""


@pytest.mark.parametrize(("name", "says"), [("Counting", "__main__.N"), ("Helped", "__main__.Helper"), ("Plain", "")])
def test_the_globals_of_a_script(name: str, says: str, tmp_path: Path) -> None:
    """What a class of a script changes there is told; what the script does itself while it waits is none of it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    call = [sys.executable, "script.py", name]
    found = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == "stopped\n", found.stderr
    assert (summary := Result(tmp_path / "out").summary)["status"] == "interrupted"
    if name == "Plain":  # of the code that runs, although the file has been edited since
        code = hashlib.sha256(SCRIPT.encode()).hexdigest()
        assert summary["code"] == Result(tmp_path / "again").summary["code"] == {"__main__": code}
    lost = [line for line in found.stderr.splitlines() if "no checkpoint" in line]
    assert len(lost) == bool(says), found.stderr
    if says:
        assert f"{says} has changed" in lost[0] or f"changes {says}" in lost[0], lost


def test_a_script_that_diverges(tmp_path: Path) -> None:
    """What was before a divergence is found by a second run, which would begin with what the first one has left."""
    text = SCRIPT.replace("np.float32(0.1 / (1 + N / 100))", "np.float32(1e30 * N)")
    (tmp_path / "script.py").write_text(text)
    found = subprocess.run([sys.executable, "script.py", "Counting"], cwd=tmp_path, capture_output=True, text=True)
    assert "cannot be run again to save what was before: Counting: changes __main__.N" in found.stderr
    (tmp_path / "script.py").write_text(text.replace("global N", "N = 1"))
    found = subprocess.run([sys.executable, "script.py", "Counting"], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert Result(tmp_path / "out").summary["status"] == "diverged"
