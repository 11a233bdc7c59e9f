"""Ctrl-C: a run stops after the events at hand, its files are whole, and `verify` runs it as far as it came."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import Mock

import pytest

import fredsim
from fredsim.errors import SimulationError
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.processes.process import Process, Started
from fredsim.runs.processes.processes import Processes
from fredsim.runs.processes.worker import STOP
from fredsim.show.progress import LineObserver
from fredsim.simulation.record.recorder import Row

Command = Callable[..., tuple[int, str, str]]

COMPILING = "compiling kernels, once on this machine …\n"  # said by the first test that needs them
SHORT = ("iterations=100", "evaluation.every=10", "window=5")


def summary(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return loaded


def statuses(folder: Path) -> list[str]:
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
        return [row["status"] for row in csv.DictReader(file)]


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Interrupts have Python's handler, also where these tests are begun with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Interrupt this process when the n-th row of iteration 20 has been recorded, so many times."""

    def arm(run: int = 1, times: int = 1) -> None:
        seen = 0

        def row(self: LineObserver, row: Row) -> None:
            nonlocal seen
            del self
            seen += row.iteration == 20
            if row.iteration == 20 and seen == run:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(LineObserver, "row", row)

    return arm


@pytest.fixture
def sweep_yaml(small_yaml: Path) -> Path:
    path = small_yaml.with_name("sweep.yaml")
    path.write_text(small_yaml.read_text(encoding="utf-8") + "sweep: {seed: [0, 1, 2]}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("path", ["auto", "snapshots"])
@pytest.mark.parametrize("server", ["{name: asgd, lr: 0.1}", "{name: sync, lr: 0.1}", "{name: fasgd, lr: 0.01}"])
def test_a_run(server: str, path: str, small_yaml: Path, command: Command, interrupt: Callable[..., None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupt()
    words = ("run", small_yaml, *SHORT, f"server={server}", f"path={path}")
    code, output, messages = command(*words, "--out", "out")
    assert code == 130
    assert "interrupted" in output
    assert messages.removeprefix(COMPILING).startswith("small: interrupted after ")
    assert messages.endswith("interrupted: out holds the results so far; the same command continues\n")
    assert signal.getsignal(signal.SIGINT) is before
    found = summary(Path("out"))
    assert found["status"] == "interrupted"
    assert 20 <= found["iterations"] < 30
    assert command("verify", "out")[:2] == (0, "out: same bits\n")
    assert command(*words, "--quiet", "--out", "out") == (0, "", "")
    assert summary(Path("out"))["status"] == "finished"


@pytest.mark.parametrize("sweep", [(), ("sweep={seed: [0]}",)], ids=["run", "sweep"])
def test_an_interrupt_after_the_last_event(
    sweep: tuple[str, ...], small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has ended stays as it is; no figure is drawn."""

    def end(self: LineObserver, label: str, summary: Mapping[str, Any], ending: str) -> None:
        del self, label, summary, ending
        signal.raise_signal(signal.SIGINT)

    words = ("run", small_yaml, *SHORT, *sweep, "--out", "out")
    with monkeypatch.context() as late:
        late.setattr(LineObserver, "end", end)
        code, output, messages = command(*words)
    assert (code, output) == (130, "")
    assert messages.endswith("interrupted; continue with the same command and --resume\n")
    assert [summary(path.parent)["status"] for path in Path("out").rglob("summary.json")] == ["finished"]
    assert not list(Path("out").glob("*.png"))
    assert command(*words, "--resume")[0] == 0
    assert list(Path("out").glob("*.png"))


def test_an_interrupt_while_figures_are_drawn(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a shell has begun the command with interrupts ignored, as it does with what runs beside it."""
    monkeypatch.setattr("fredsim.show.printing.draw_figures", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code, _, messages = command("run", small_yaml, *SHORT, "--out", "out")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, messages.splitlines()[-1]) == (130, "interrupted; continue with the same command and --resume")


def test_a_second_interrupt_ends_at_once(small_yaml: Path, command: Command, interrupt: Callable[..., None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert command("run", small_yaml, *SHORT, "--quiet", "--out", "out") == (0, "", "")
    interrupt(times=2)
    code, output, _ = command("run", small_yaml, *SHORT, "--out", "out")
    assert (code, output) == (130, "")
    assert signal.getsignal(signal.SIGINT) is before
    for name in ("summary.json", "params.safetensors", "staleness.csv"):  # those of the run before would belie the rows
        assert not Path("out", name).exists()


def test_a_second_interrupt_ends_processes_at_once(
    sweep_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are killed, which is no failure of their runs."""

    def row(self: LineObserver, row: Row) -> None:
        del self
        if row.iteration == 20:
            signal.raise_signal(signal.SIGINT)
            while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                time.sleep(0.001)  # the main thread takes it up
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LineObserver, "row", row)
    words = ("iterations=100000000", "evaluation.every=20", "--jobs", 2, "--out", "swept")
    assert command("run", sweep_yaml, *words)[0] == 130
    assert statuses(Path("swept")) == []


def test_a_process_that_is_killed_has_ended() -> None:
    process = Started()
    process.kill()
    assert process.close() == -signal.SIGKILL
    process.kill()  # there is nothing left to kill


@pytest.mark.parametrize("name", ["_ask_to_stop", "_kill"])
def test_the_interrupted_thread_takes_no_lock(name: str) -> None:
    """An interrupt at the moment it has taken one would leave it taken, and all others waiting for ever."""
    processes = Processes([], 1, Monitor(), lambda: False, lambda *_: None)
    with processes._lock:  # by another thread
        thread = threading.Thread(target=getattr(processes, name), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()


class Idle(Process):
    """A process that is done with each task at once; the one that is to wait is so when it is asked to stop."""

    def __init__(self, began: Callable[[], object] = lambda: None, *, waits: bool = False) -> None:
        super().__init__(io.BytesIO(), io.BytesIO())
        self.ends: list[str] = []
        self._asked, self._waits = threading.Event(), waits
        began()

    def send(self, message: object) -> None:
        if message == STOP:
            self._asked.set()

    def receive(self) -> tuple[str, Exception | None]:
        if "killed" in self.ends:
            raise EOFError
        late = self._waits and not self._asked.wait(10)
        return "done", SimulationError("nobody has asked it to stop") if late else None

    def kill(self) -> None:
        self.ends.append("killed")

    def close(self) -> int:
        self.ends.append("closed")
        return 0


@dataclass
class Some:
    """A task for another process, which does nothing."""

    alone: bool = False
    own: frozenset[str] = frozenset()


def ended_by(tasks: list[Any], monkeypatch: pytest.MonkeyPatch, make: Callable[[Processes], Idle], stop: Any) -> Any:
    """Let one process do tasks; return what was made by `make`, how often each was ended, and how the tasks ended."""
    made: list[Idle] = []
    failures: list[Exception | None] = []
    processes = Processes(tasks, 1, Monitor(), lambda: stop(made), lambda _, failure: failures.append(failure))

    def new() -> Idle:
        made.append(make(processes))
        return made[-1]

    monkeypatch.setattr("fredsim.runs.processes.processes.new_process", new)
    processes.run()
    return [process.ends for process in made], failures


def test_a_process_that_starts_while_all_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, too, and no further task is begun."""
    found = ended_by([Some(), Some()], monkeypatch, lambda all_: Idle(all_._kill), lambda _: False)
    assert found == ([["killed", "closed"]], [])


def test_tasks_under_way_are_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ended_by([Some(), Some()], monkeypatch, lambda _: Idle(waits=True), bool)
    assert found == ([["closed"]], [None])


def test_a_task_alone_has_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Some(), Some(), Some(alone=True), Some()]
    found = ended_by(tasks, monkeypatch, lambda _: Idle(), lambda _: False)
    assert found == ([["closed"]] * 3, [None] * 4)


@pytest.mark.parametrize("most", ["as many as there are", "many", "any number"])
def test_few_files_allow_few_processes(most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    few = most == "as many as there are"
    limit = len(os.listdir("/dev/fd")) if few else {"many": 10**6}.get(most, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    monitor, notes = Monitor(), Mock()
    monkeypatch.setattr(monitor, "note", notes)
    tasks: list[Any] = [Some()] * 4
    Processes(tasks, 3, monitor, lambda: False, lambda *_: None)
    says = "1 of 3 jobs are done in parallel: few files may be open (ulimit -n)"
    assert [call.args[0] for call in notes.mock_calls] == [says] * few


def test_a_sweep_goes_on_where_it_was_interrupted(
    sweep_yaml: Path, command: Command, interrupt: Callable[..., None]
) -> None:
    words = ("run", sweep_yaml, *SHORT, "--out")
    assert command(*words, "whole")[0] == 0
    interrupt(run=2)
    code, _, messages = command(*words, "swept")
    assert code == 130
    assert messages.endswith("interrupted: 2 of 3 runs remain; continue with --resume\n")
    assert statuses(Path("swept")) == ["finished"]
    assert len(list(Path("swept").glob("*/config.yaml"))) == 2  # the third was not begun
    assert command(*words, "swept", "--resume")[0] == 0
    assert statuses(Path("swept")) == ["finished"] * 3
    assert Path("swept/runs.csv").read_bytes() == Path("whole/runs.csv").read_bytes()
    assert command("compare", "swept", "whole")[0] == 0


def test_an_interrupt_in_the_last_run_of_a_sweep(
    sweep_yaml: Path, command: Command, interrupt: Callable[..., None]
) -> None:
    words = ("run", sweep_yaml, *SHORT, "sweep={server.lr: [0.1, 0.2, 0.3]}", "select={over: server.lr}")
    assert command(*words, "--quiet", "--out", "swept") == (0, "", "")
    assert Path("swept/best.csv").exists()
    interrupt(run=3)
    assert command(*words, "--out", "swept")[0] == 130
    assert statuses(Path("swept")) == ["finished", "finished"]
    assert not Path("swept/best.csv").exists()  # of all runs or of none


def test_a_process_of_its_own(small_yaml: Path, command: Command) -> None:
    words = ("run", str(small_yaml), "iterations=1000000000", "evaluation.every=1000", "--out", "out")
    metrics = Path("out/metrics.csv")
    with subprocess.Popen(
        [sys.executable, "-m", "fredsim", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            limit = time.monotonic() + 300
            while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 3:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < limit
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            output, messages = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in messages
    assert "results: out" in output
    assert summary(Path("out"))["status"] == "interrupted"
    assert command("verify", "out")[:2] == (0, "out: same bits\n")


LOOP = """
import fredsim, sys

before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
for seed in range(3):
    print("begins", seed, flush=True)
    try:
        fredsim.run("small.yaml", [f"seed={seed}", "iterations=100000000", "evaluation.every=1000"], out=f"out{seed}")
    finally:
        print(all(signal.getsignal(number) is one for number, one in before.items()))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_loop_of_a_script_ends(number: int, code: int, small_yaml: Path, command: Command) -> None:
    """The run writes its checkpoint, and then the exception leaves the call."""
    del small_yaml  # it lies in the current folder
    metrics = Path("out0/metrics.csv")
    with subprocess.Popen(
        [sys.executable, "-c", "import signal\n" + LOOP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 3:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            process.send_signal(number)
            output, messages = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == code
    assert output == "begins 0\nTrue\n"
    assert messages.rstrip().endswith("KeyboardInterrupt") == (number == signal.SIGINT)
    assert summary(Path("out0"))["status"] == "interrupted"
    assert list(Path("out0/checkpoint").iterdir())
    assert command("verify", "out0")[:2] == (0, "out0: same bits\n")


@pytest.mark.parametrize(("number", "leaves"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.parametrize("moment", ["fredsim.runs.processes.observer.Observer.end", "fredsim.api._public"])
def test_a_loop_ends_whenever_the_interrupt_comes(
    moment: str, number: int, leaves: type[BaseException], small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the run has ended, and when its result is being opened."""
    original = resolve_name(moment)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(number)
        return original(*arguments, **options)

    monkeypatch.setattr(moment, interrupted)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(leaves) as caught:
        fredsim.run(str(small_yaml), [*SHORT], out="out")
    assert caught.value.args == ((143,) if number == signal.SIGTERM else ())
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    assert summary(Path("out"))["status"] == "finished"


@pytest.mark.parametrize(("number", "leaves"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_interrupted_run_that_fails(
    number: int, leaves: type[BaseException], small_yaml: Path, own_server: Callable[..., str]
) -> None:
    """A loop that goes on after errors ends, too; the error is shown with it."""
    lines = f"import signal\nsignal.raise_signal({int(number)})\nraise ValueError('late')\n"
    Path("own_late.py").write_text(own_server(lines), encoding="utf-8")
    with pytest.raises(leaves) as caught:
        fredsim.run(str(small_yaml), [*SHORT, "server={name: 'own_late:Plain', lr: 0.1}"], out="out")
    assert isinstance(caught.value.__cause__, fredsim.SimulationError)
    assert "late" in str(caught.value.__cause__)


EARLY = """
import os, signal, sys


class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "fredsim.cli":
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupts())
from fredsim.__main__ import command

command()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_an_interrupt_while_the_command_is_imported() -> None:
    """It ends at once, and shows no traceback."""
    found = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (-signal.SIGINT, "")
