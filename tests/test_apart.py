"""Runs with a user's own code are as if each were alone, in whatever odd place its class keeps something.

A few dozen cases here; `--slow` tries a thousand of each kind.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fredsim
from fredsim.runs.processes.isolation import must_be_apart
from fredsim.runs.single import execution
from tests.alone import Alone
from tests.odd_places import OF_OBJECTS, PLACES, UNSEEN, case, of_function
from tests.scripts import ROOT

SMALL = {
    "iterations": 30,
    "data": {"name": "digits", "train": 60, "validation": 20},
    "model": {"hidden": [6]},
    "clients": {"count": 4, "batch_size": 2},
    "backend": "numpy",
}
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    process = Alone()
    yield process
    process.close()


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def together(number: int, alone: Alone) -> str:
    """Do three runs of a case in one process, and a sweep; each must be what it is alone. Return the place."""
    rng = random.Random(-number)
    files, changes, place = case(number, PLACES | OF_OBJECTS)
    seeds = [0, rng.choice([0, 1])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, files)

        def run(seed: Any, out: str) -> dict[str, Any]:
            varied = {"sweep": {"seed": seed}} if isinstance(seed, list) else {"seed": seed}
            return {"experiment": {**SMALL, **changes, "name": "odd", **varied}, "out": str(folder / out)}

        known = {seed: alone(folder, [run(seed, f"alone{seed}")])[0] for seed in dict.fromkeys(seeds)}
        expected = [known[seed] for seed in seeds]
        assert all(len(digest) == 64 for digest in expected), expected
        found = alone(folder, [run(seed, f"one{i}") for i, seed in enumerate([*seeds, seeds[0]])])
        assert found == [*expected, expected[0]], (number, place, changes)
        if number % 4 == 0 and seeds[0] != seeds[1]:
            assert alone(folder, [run(seeds, "sweep")]) == [expected], (number, place, changes)
    return place


def continued(number: int, alone: Alone) -> str:
    """Stop a run of a case and continue it in another process; it must end as if it had never stopped."""
    rng = random.Random(-number)
    seen = {place: text for place, text in PLACES.items() if place not in UNSEEN}
    files, changes, place = case(number, seen | OF_OBJECTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, files)
        experiment = {**SMALL, **changes, "name": "odd", "path": rng.choice(["auto", "snapshots"])}
        (expected,) = alone(folder, [{"experiment": experiment, "out": str(folder / "whole")}])
        assert len(expected) == 64, expected
        for stop_at in sorted(rng.sample(range(1, 30), 2)):
            alone(folder, [{"experiment": experiment, "out": str(folder / "parts"), "stop_at": stop_at}])
        kept = any((folder / "parts" / "checkpoint").glob("*")) if (folder / "parts" / "checkpoint").is_dir() else False
        assert alone(folder, [{"experiment": experiment, "out": str(folder / "parts")}]) == [expected], (number, place)
    return "continues" if kept else "begins anew"


def function(kind: str, place: str, alone: Alone) -> None:
    """A function that keeps a count is refused; a metric may, but then the run is not continued from a checkpoint."""
    files, changes = of_function(kind, place)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, files)
        experiment = {**SMALL, **changes, "name": "odd"}
        whole, again = alone(folder, [{"experiment": experiment, "out": str(folder / out)} for out in ("a", "b")])
        if kind != "metric":
            assert "the second time" in whole or "gave another sample" in whole, (kind, place, whole)
            return
        alone(folder, [{"experiment": experiment, "out": str(folder / "parts"), "stop_at": 17}])
        assert alone(folder, [{"experiment": experiment, "out": str(folder / "parts")}]) == [whole]
        tables = {(folder / out / "metrics.csv").read_text(encoding="utf-8") for out in ("a", "b", "parts")}
        assert (whole == again, len(tables)) == (True, 1), place


@pytest.mark.parametrize("kind", ["metric", "augment", "schedule"])
def test_a_few_functions(kind: str, alone: Alone) -> None:
    seen = {place: text for place, text in PLACES.items() if place not in UNSEEN or kind != "metric"} | OF_OBJECTS
    for place in random.Random(kind).sample([*seen], 6):
        function(kind, place, alone)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["metric", "augment", "schedule"])
def test_all_functions(kind: str, alone: Alone) -> None:
    for place in PLACES | OF_OBJECTS:
        if kind != "metric" or place not in UNSEEN:
            function(kind, place, alone)


@pytest.mark.parametrize("number", range(10))
def test_a_few_together(number: int, alone: Alone) -> None:
    together(number, alone)


@pytest.mark.parametrize("number", range(100, 116))
def test_a_few_continued(number: int, alone: Alone) -> None:
    continued(number, alone)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("check", [together, continued])
def test_a_thousand(check: Any, alone: Alone, capsys: pytest.CaptureFixture[str]) -> None:
    begin, _, end = os.environ.get("FREDSIM_CASES", "0:1000").rpartition(":")
    ended = Counter(check(number, alone) for number in range(int(begin or 0), int(end)))
    with capsys.disabled():
        print(f"\n{ended.total()} cases {check.__name__}: {dict(ended)}")  # noqa: T201
    assert check is together or min(ended["continues"], ended["begins anew"]) > ended.total() / 5


LATE = """
from torch import nn

CALLS = [0]


class Module(nn.Module):
    def __init__(self, classes, shape, late=True):
        super().__init__()
        self.inner, self.shrink, self._calls, self.late = nn.Linear(64, classes), nn.Softshrink(), 0, late

    def forward(self, x):
        self._calls += self.late
        return self.shrink(self.inner(x.flatten(1))) * (1.0 if self._calls < 40 else 0.5)


def loss(output, y):
    CALLS[0] += 1
    return nn.functional.cross_entropy(output, y, reduction="none") * (1.0 if CALLS[0] < 40 else 2.0)
"""


@pytest.mark.parametrize("what", ["module", "loss"])
def test_what_a_native_module_keeps(what: str, alone: Alone, tmp_path: Path) -> None:
    """It shows only after a while, so that it cannot be refused before the run."""
    pytest.importorskip("torch", reason="needs PyTorch")
    write(tmp_path, {"late.py": LATE})
    own = {"late": what == "module", "name": "torch:late:Module"}
    experiment = {**SMALL, "name": "late", "model": own, "server": {"name": "asgd", "lr": 0.05}}
    experiment |= {"loss": "late:loss"} if what == "loss" else {}
    (whole,) = alone(tmp_path, [{"experiment": experiment, "out": str(tmp_path / "whole")}])
    assert len(whole) == 64, whole
    alone(tmp_path, [{"experiment": experiment, "out": str(tmp_path / "parts"), "stop_at": 20}])
    assert alone(tmp_path, [{"experiment": experiment, "out": str(tmp_path / "parts")}]) == [whole]


SLOW = """
import time
from pathlib import Path
import numpy as np


class Slow:
    def __init__(self, lr):
        self.lr = np.float32(lr)

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        time.sleep(0.02 if Path("slow").exists() else 0.0)
        self.params -= self.lr * grad
"""


def begin_second_run(folder: Path) -> subprocess.Popen[str]:
    """Start a sweep of two runs, and return when the second, in a forked process, has written its first row."""
    write(folder, {"slow_server.py": SLOW, "slow": "until it is interrupted"})
    sweep = ["iterations=80", "evaluation.every=10", "sweep={seed: [0, 1]}", "select=null"]
    server = ["server={name: 'slow_server:Slow', lr: 0.1}", "backend=numpy"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fredsim", "run", "quickstart", *sweep, *server, "--out", "parts", "--resume"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "FREDSIM_MARK": str(folder)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: any(len(path.read_text().splitlines()) > 2 for path in folder.glob("parts/seed=1*/metrics.csv")))
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it has not come true in five minutes")


def test_interrupted_and_continued(tmp_path: Path, alone: Alone) -> None:
    process = begin_second_run(tmp_path)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate()
    (tmp_path / "slow").unlink()
    assert "interrupted" in messages
    assert len([*tmp_path.glob("parts/seed=1*/checkpoint/*")]) > 0
    (expected,) = alone(tmp_path, [{"experiment": str(tmp_path / "parts"), "out": str(tmp_path / "whole")}])
    assert alone(
        tmp_path, [{"experiment": str(tmp_path / "parts"), "out": str(tmp_path / "parts"), "resume": True}]
    ) == [expected]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_outlives_the_one_that_was_killed(tmp_path: Path) -> None:
    def marked() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                found += [path.parent.name] if f"FREDSIM_MARK={tmp_path}".encode() in path.read_bytes() else []
        return found

    process = begin_second_run(tmp_path)
    # The command, the process that tells if the command dies, the one that forks, and the one that does the run.
    assert len(marked()) == 4
    process.kill()
    process.communicate()
    wait_for(lambda: not marked())


MADE = """
import numpy as np


class Counted:
    made = 0

    def __init__(self, lr):
        Counted.made += 1
        self.lr = np.float32(lr * Counted.made)

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        self.params -= self.lr * grad
"""


def test_a_run_of_a_sweep_is_made_as_often_as_a_single_one(alone: Alone, tmp_path: Path) -> None:
    """Though all are made before the first begins, to see whether they can be; with epochs, once more for the data."""
    write(tmp_path, {"counted.py": MADE})
    experiment: dict[str, Any] = {**SMALL, "name": "counted", "iterations": None, "epochs": 1}
    own, other = {"name": "counted:Counted", "lr": 0.01}, {"name": "asgd", "lr": 0.01}
    ways: list[dict[str, Any]] = [{"server": own}, *({"sweep": {"server": some}} for some in ([own], [other, own]))]
    runs = [{"experiment": experiment | way, "out": f"o{i}"} for i, way in enumerate(ways)]
    single, one, two = (alone(tmp_path, [run])[0] for run in runs)
    assert len(single) == 64
    assert [single] == one == two[1:]


MEDDLES = """
import os
import sys
from pathlib import Path

import numpy as np

from fredsim.servers import ASGD

os.chdir(Path(__file__).parent / "elsewhere")
square_root = np.sqrt


class Meddles:
    def __init__(self, lr):
        self.lr = np.float32(lr)
        np.sqrt = lambda x, *a, **k: square_root(x) / 2
        os.chdir("/")

    def init(self, params, clients):
        self.params = params.copy()
        os.chdir("/")
        os.umask(0o777)
        sys.path.append("/nowhere")

    def apply_update(self, grad, client_id, timestamp):
        ASGD.rate = lambda self, t=0: 0.5
        np.seterr(all="raise")
        os.chdir("/")
        self.params -= self.lr * grad
"""


def test_what_a_class_does_to_others(alone: Alone, tmp_path: Path) -> None:
    """It changes a class of fredsim's, NumPy and the current folder; no other run is another one for that."""
    write(tmp_path, {"meddles.py": MEDDLES})
    (tmp_path / "elsewhere").mkdir()
    own = {"name": "meddles:Meddles", "lr": 0.05}
    usual = [{"name": "fasgd", "lr": 0.01}, {"name": "asgd", "lr": 0.05}]
    small = {**SMALL, "name": "meddled"}
    known = [
        alone(tmp_path, [{"experiment": small | {"server": server}, "out": f"known{i}"}])[0]
        for i, server in enumerate(usual)
    ]
    for at in range(3):
        servers = [*usual[:at], own, *usual[at:]]
        (found,) = alone(tmp_path, [{"experiment": small | {"sweep": {"server": servers}}, "out": f"sweep{at}"}])
        assert [*found[:at], *found[at + 1 :]] == known
    runs = [{"experiment": small | {"server": server}, "out": f"o{i}"} for i, server in enumerate([own, *usual, own])]
    assert alone(tmp_path, runs) == [found[2], *known, found[2]]
    assert [*(tmp_path / "elsewhere").iterdir()] == []
    alone(tmp_path, [runs[0] | {"out": "parts", "stop_at": 17}])
    assert any((tmp_path / "parts" / "checkpoint").glob("*")) is False  # it changes what is not its own
    assert alone(tmp_path, [runs[0] | {"out": "parts"}]) == [found[2]]


STEPS = """
class Steps:
    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        self.params -= {rate} * grad
"""


def test_a_run_within_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of another folder, which has a module of the same name; the next runs of the sweep are of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execution, "must_be_apart", must_be_apart)
    experiment = {**SMALL, "server": {"name": "steps_within:Steps"}}
    for number, folder in enumerate((Path("one"), Path("other")), 1):
        folder.mkdir()
        write(folder, {"steps_within.py": STEPS.format(rate=number), "run.yaml": json.dumps(experiment)})
    done = list[int]()

    def on_row(row: dict[str, Any]) -> None:
        if not done:
            done.append(row["iteration"])
            with pytest.raises(fredsim.ConfigError, match=r"steps_within\.py was imported before under this name"):
                fredsim.run("other/run.yaml")

    seeds = ["sweep={seed: [0, 1, 2]}"]
    found = fredsim.sweep("one/run.yaml", seeds, out="own", on_row=on_row)
    usual = fredsim.sweep({**SMALL, "server": {"name": "asgd", "lr": 1.0}}, seeds, out="usual")
    assert [run.summary["digest"] for run in found] == [run.summary["digest"] for run in usual]


SCRIPT = """
import sys
import warnings

import numpy as np

import fredsim
from kept import Kept

SMALL, SERVER = {small}, {{"name": "__main__:Counts", "lr": 0.1}}
COUNT, SEEN = 0, []


class Counts:
    count, own = 0, {own}

    def __init__(self, lr):
        self.lr, self.count = np.float32(lr), 0

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        global COUNT
        {place}
        self.params -= self.lr / np.float32(n) * grad


def found(i, experiment):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fredsim.run({{**SMALL, "server": SERVER, **experiment}}, out=f"o{{i}}")
    told = [str(one.message) for one in caught if "by an earlier run" in str(one.message)]
    digests = [one.summary["digest"] for one in result] if "sweep" in experiment else result.summary["digest"]
    return digests, told


one, two, three = (found(i, {{}}) for i in range(3))
if not {own}:
    assert one[0] != two[0], "the place keeps nothing"
    assert [one[1], len(two[1]), len(three[1])] == [[], 1, 1], (one, two, three)
    assert two[1][0].startswith("{name} was changed by an earlier run in this process"), two
    assert len(found(3, {{"sweep": {{"seed": [0, 1]}}}})[1]) == 2
    Counts.count = Kept.count = COUNT = 0  # by the user
    SEEN.clear()
    assert found(4, {{}}) == one
else:
    assert one == two == three and not one[1], (one, two, three)
"""


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("Counts.count = n = Counts.count + 1", "Counts"),
        ("COUNT = n = COUNT + 1", "COUNT"),
        ("Kept.count = n = Kept.count + 1", "Kept"),
        ("SEEN.append(0); n = len(SEEN)", "SEEN"),
        ("self.count = n = self.count + 1", ""),
    ],
)
def test_a_class_of_a_script_is_no_new_one_for_each_run(place: str, name: str, tmp_path: Path) -> None:
    """It cannot be imported anew, so what an earlier run has left in it, or in a class that it uses, is told."""
    text = SCRIPT.format(small={**SMALL, "name": "script"}, place=place, name=name, own=not name)
    write(tmp_path, {"script.py": text, "kept.py": "class Kept:\n    count = 0\n"})
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
