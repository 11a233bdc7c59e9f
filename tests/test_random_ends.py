"""However a run ended, and as often as it went on: its record is true, its files are the same, and forgeries are told.

Two dozen here; `--slow` tries hundreds, or as many as FREDSIM_EXPERIMENTS says (BEGIN:END for some of them).
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.config.document import dump_yaml
from fredsim.config.resolution import resolve
from fredsim.errors import FredsimError
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.execution import execute
from fredsim.runs.verify.differences import difference
from fredsim.runs.verify.verify import pieces_of, verify
from tests.killing import files_in
from tests.random_ends import FAILS, OWN, SLOW, Way, bounded_by_goal, ending, forgeries, ways
from tests.test_random_experiments import asked_often

FEW, FEW_FORGERIES = 24, 2
#: How some of the few end, among others: so there is each way among them.
ENDS = {0: {"killed", "finished"}, 1: {"interrupted"}, 4: {"diverged"}}


class Killed(BaseException):
    """Ends a run at once, and lets it write nothing more."""


class Killing(Observer):
    """Kills a run from an iteration on; None: never."""

    def __init__(self, iteration: int | None) -> None:
        self._iteration = iteration

    def advance(self, iteration: int, timestamp: int, time: float) -> None:
        del timestamp, time
        if self._iteration is not None and iteration >= self._iteration:
            raise Killed


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the user's module, whose runs are done in this process; checkpoints may take all of their time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("fredsim.runs.single.run.MOST_CHECKPOINT_SHARE", 1e9)
    monkeypatch.setattr("fredsim.runs.single.execution.must_be_apart", lambda _: False)
    Path("own_ending.py").write_text(OWN, encoding="utf-8")


def end(data: dict[str, Any], folder: Path, way: Way) -> str:
    """Let a run begin, or go on, and end in this way; return how it ended."""
    stop = (lambda: False) if way.asks is None else partial(asked_often, count(), way.asks)
    FAILS.touch() if way.fails else FAILS.unlink(missing_ok=True)
    try:
        execute(
            resolve(data), folder, observer=Killing(way.killed_at), stop=stop, stop_at=way.stop_at, policy=way.policy
        )
    except Killed:
        return "killed"
    except FredsimError as error:
        return f"{type(error).__name__}: {error}"
    return str(Result(folder).summary["status"])


def repeated(folder: Path) -> list[str | None]:
    """Return what is found when a record is verified, as a whole and in pieces."""
    found = [verify(Result(folder))]
    for piece in pieces_of(Result(folder), None, None, Monitor().note):
        error = piece.do(Observer(), lambda: False)
        found.append(None if error is None else str(error))
    return found


def is_refused(folder: Path) -> bool:
    """Return whether verify refuses a record."""
    try:
        return verify(Result(folder)) is not None
    except FredsimError:
        return True


def check(number: int, *, large: bool, most: int | None) -> list[str]:
    """Check an experiment's record each time that it ends, and so many forgeries of it; return how it ended."""
    data, rng = ending(number, large=large), random.Random(f"ways {number}")
    whole, folder = Path("whole"), Path("run")
    ended = [end(data, whole, Way())]
    if not (whole / "summary.json").exists():  # it has no result
        ended += [end(data, folder, Way(stop_at=2, policy=CheckpointPolicy(1e9))), end(data, folder, Way())]
        assert ended[-1] == ended[0], (number, ended)
        return ended
    if rng.random() < 0.25 and (bounded := bounded_by_goal(data, Result(whole), rng)) is not None:
        data, whole = bounded, Path("bounded")
        ended = [end(data, whole, Way())]
    if rng.random() < 0.2:  # what is there of a run with other files
        other = {key: value for key, value in data.items() if key != "probe"} if "probe" in data else probed(data)
        end(other, folder, Way(stop_at=1, policy=CheckpointPolicy(1e9)))
    some = [*ways(rng, Result(whole)), Way(policy=rng.choice([CheckpointPolicy(), CheckpointPolicy(1e-9, keep=True)]))]
    told = rng.randrange(len(some))  # after which of them forgeries are tried
    for place, way in enumerate(some):
        if way.stop_at is not None and way.stop_at < reached(folder):
            continue  # it would go on behind the event to stop at
        ended.append(end(data, folder, way))
        what = f"{number}: {data}, {some}, {ended}"
        if not (folder / "summary.json").exists():
            assert is_refused(folder), what
            continue
        assert (different := repeated(folder)).count(None) == len(different), (different, what)
        finished = Result(folder).has_finished
        before = [(path / "metrics.csv").read_bytes().splitlines() for path in (whole, folder)]
        assert before[0][: len(before[1]) - 1] == before[1][:-1], what  # an interrupted run has a row more at its end
        if place == told or finished or most is None:
            assert (false := accepted(folder, whole, rng, most)) == [], (false, what)
        if finished:
            break
    assert ended[-1] == ended[0], what
    expected, found = files_in(whole), files_in(folder)
    names = [name for name in {**expected, **found} if not name.startswith("checkpoint")]
    assert [name for name in names if expected.get(name) != found.get(name)] == [], what
    assert difference(Result(whole), Result(folder)) is None
    return ended


def reached(folder: Path) -> int:
    """Return the iteration of the newest checkpoint, 0 if there is none."""
    found = (json.loads(path.read_bytes())["iteration"] for path in folder.glob("checkpoint/*.json"))
    return max(found, default=0)


def probed(data: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment with a probe."""
    return data | {"probe": {"every": 1}}


def accepted(folder: Path, whole: Path, rng: random.Random, most: int | None) -> list[str]:
    """Forge copies of a record, at most so many; return those that verify accepts."""
    found, known = [], list(forgeries(folder, whole))
    for what, forge in known if most is None else rng.sample(known, most):
        shutil.rmtree("forged", ignore_errors=True)
        shutil.copytree(folder, "forged")
        forge(Path("forged"))
        found += [] if is_refused(Path("forged")) else [what]
    return found


@pytest.mark.parametrize("number", range(FEW))
def test_a_few(number: int) -> None:
    with np.errstate(all="ignore"):
        ended = check(number, large=False, most=FEW_FORGERIES)
    assert ENDS.get(number, set()) <= {*ended}


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_real_signals() -> None:
    """Each comes once rows were added since the process began."""
    data: dict[str, Any] = {
        "data": {"name": "digits", "train": 50},
        "model": {"hidden": [3]},
        "clients": {"count": 3, "batch_size": 2},
    }
    data |= {"server": {"name": "own_ending:Growing", "lr": 0.01}, "iterations": 600, "threads": 1}
    data |= {"evaluation": {"every": 10}, "events": True}
    Path("data.yaml").write_text(dump_yaml(data), encoding="utf-8")
    assert end(data, Path("whole"), Way()) == "finished"
    SLOW.touch()
    rows = Path("run/metrics.csv")
    for number in random.Random(5).sample([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], 3):
        before = rows.read_bytes().count(b"\n") if rows.exists() else 0
        words = ("run", "data.yaml", "--checkpoint", "0.01", "--out", "run", "--quiet")
        with subprocess.Popen([sys.executable, "-m", "fredsim", *words]) as process:
            try:
                while not (rows.exists() and rows.read_bytes().count(b"\n") > before + 2):
                    assert process.poll() is None
                    time.sleep(0.005)
                process.send_signal(number)
                process.wait(300)
            finally:
                process.kill()
        killed = number == signal.SIGKILL
        assert process.returncode == (-number if killed else 130)
        assert Path("run/summary.json").exists() != killed
        assert killed or verify(Result(Path("run"))) is None
    SLOW.unlink()
    assert end(data, Path("run"), Way()) == "finished"
    expected, found = files_in(Path("whole")), files_in(Path("run"))
    assert [name for name in {**expected, **found} if expected.get(name) != found.get(name)] == []


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_hundreds(capsys: pytest.CaptureFixture[str]) -> None:
    """With every forgery, each time that a run ended."""
    begin, _, last = os.environ.get("FREDSIM_EXPERIMENTS", "0:400").rpartition(":")
    ended: Counter[str] = Counter()
    for number in range(int(begin or 0), int(last)):
        for folder in ("whole", "bounded", "run"):
            shutil.rmtree(folder, ignore_errors=True)
        with np.errstate(all="ignore"):
            ended += Counter(check(number, large=number % 4 == 0, most=None))
    with capsys.disabled():
        print(f"\n{dict(ended)}")  # noqa: T201
    assert {"finished", "diverged", "interrupted", "killed"} <= set(ended)
