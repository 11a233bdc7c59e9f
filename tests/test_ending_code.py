"""A user's code that ends its process, in whatever way and place: one line says so, and other runs are not lost."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fredsim.plugins.exits import exits_raise
from fredsim.runs.processes.process import ended_early
from tests.scripts import ROOT

Command = Callable[..., tuple[int, str, str]]
OwnServer = Callable[..., str]

MODULE = """
import os
import sys
import numpy as np


class Disc:
    shape, dtype = (2,), np.float32

    def len(self, part):
        return 20

    def rows(self, part, numbers):
        {data}
        return np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers % 2


class Bowl:
    def initial(self, rng):
        return np.ones(2, np.float32)

    def gradient(self, params, draw):
        {problem}
        return params

    def evaluate(self, params):
        return {{"height": float(params @ params)}}


class Ring:
    def init(self, clients, streams):
        self.clients, self.at = clients, 0

    def choose(self, step):
        {dispatcher}
        self.at += 1
        return self.at % self.clients

    def hold(self, client):
        pass

    def release(self, client):
        pass


def squares(output, y):
    {loss}
    gradient = output.copy()
    gradient[np.arange(len(y)), y] -= 1
    return (gradient * gradient).sum(axis=1) / 2, gradient


def worst(output, y):
    {metric}
    return 0.5
"""
#: The overrides that use the code of a place.
USES = {
    "data": ("data={name: 'python:ending_data:Disc'}",),
    "problem": ("problem={name: 'ending_problem:Bowl'}", "data=null", "model=null", "clients={count: 4}"),
    "dispatcher": ("dispatcher={name: 'ending_dispatcher:Ring'}",),
    "loss": ("loss={name: 'ending_loss:squares'}",),
    "metric": ("evaluation.metrics=['ending_metric:worst']",),
}


def write(place: str, line: str) -> None:
    lines = dict.fromkeys(USES, "pass") | {place: line}
    Path(f"ending_{place}.py").write_text(MODULE.format(**lines), encoding="utf-8")


@pytest.mark.parametrize("place", USES)
@pytest.mark.parametrize("line", ["os._exit(0)", "sys.exit(0)"])
def test_code_that_exits_is_named(place: str, line: str, small_yaml: Path, command: Command) -> None:
    write(place, line)
    code, _, messages = command("run", small_yaml, "backend=numpy", *USES[place], "--quiet", "--out", "out")
    lines = [text for text in messages.splitlines() if text.startswith("error: ")]
    assert (code, len(lines)) == (2, 1)
    assert "SystemExit" in lines[0]
    assert f"(ending_{place}.py:" in lines[0]
    assert ("os._exit(0)" in lines[0]) == ("os._exit" in line)


def test_code_that_exits_when_it_is_imported(small_yaml: Path, command: Command) -> None:
    Path("ending_import.py").write_text("import os\nos._exit(0)\n", encoding="utf-8")
    code, _, messages = command("show", small_yaml, "server={name: 'ending_import:Any'}")
    assert code == 2
    assert "cannot import 'ending_import' (SystemExit: os._exit(0)" in messages
    assert "ending_import.py:2" in messages


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_only_this_process_is_kept() -> None:
    with exits_raise():
        if (process := os.fork()) == 0:
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 5
        with pytest.raises(SystemExit, match=r"os\._exit\(4\)"):
            os._exit(4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_run_that_crashes_is_one_line(number: int, small_yaml: Path, own_server: OwnServer) -> None:
    lines = f"if timestamp == 5:\n    os.kill(os.getpid(), {number})\n"
    small_yaml.with_name("ending_crash.py").write_text(own_server(lines), encoding="utf-8")
    words = ("server.name=ending_crash:Plain", "backend=numpy", "--quiet", "--out", "out")
    done = subprocess.run(
        [sys.executable, "-m", "fredsim", "run", small_yaml, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert done.returncode == -number
    assert line.startswith("error: the process has crashed or was killed")
    assert f"; it was running code of yours, ending_crash ({small_yaml.with_name('ending_crash.py')});" in line


def test_a_sweep_goes_on_and_can_be_resumed(small_yaml: Path, own_server: OwnServer, command: Command) -> None:
    lines = (
        "if os.path.exists('crash'):\n    how = {0.2: 11, 0.3: 9}.get(self.lr)\n    how and os.kill(os.getpid(), how)\n"
    )
    Path("ending_some.py").write_text(own_server(lines), encoding="utf-8")
    Path("crash").touch()
    changes = ("server.name=ending_some:Plain", "backend=numpy", "sweep={server.lr: [0.1, 0.2, 0.3, 0.4]}")
    words = (*changes, "--quiet", "--jobs", "2", "--out", "out")
    code, _, messages = command("run", small_yaml, *words)
    table = Path("out/runs.csv")

    def statuses() -> list[str]:
        return [row["status"] for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines())]

    assert code == 2
    assert [name in messages for name in ("SIGSEGV: ", "SIGKILL: ", "code of yours: ending_some (")] == [True] * 3
    assert statuses() == ["finished", "failed", "failed", "finished"]
    Path("crash").unlink()
    assert command("run", small_yaml, *words, "--resume")[0] == 0
    assert statuses() == ["finished"] * 4


def test_how_a_process_ended() -> None:
    assert str(ended_early(3)) == "the process of the run ended with exit code 3"
    assert str(ended_early(-15)).endswith(" -15 (SIGTERM: somebody has killed it)")
    assert str(ended_early(-40)).endswith(" -40 (signal 40: somebody has killed it)")
    assert str(ended_early(3, {"no.such"})).endswith(" 3; it was running code of yours: no.such")
