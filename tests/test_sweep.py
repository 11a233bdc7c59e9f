"""Sweeps side by side: `--jobs` changes no bit; a kill, a failure or a dead process costs the run at hand alone."""

import csv
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.document import read_document
from fredsim.runs.folder.folders import locked
from fredsim.runs.folder.results import Result, Results
from fredsim.system.files import write_atomic

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
OwnServer = Callable[..., str]

FAILING = """\
print("a server may print")
if self.lr == 0.3:
    raise ValueError("too much")
if self.lr == 0.4:
    os.kill(os.getpid(), 9)
"""


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def sweep_yaml(small_yaml: Path) -> Path:
    path = small_yaml.with_name("sweep.yaml")
    text = small_yaml.read_text(encoding="utf-8") + "sweep: {server.lr: [0.1, 1.0e+30, 0.05], seed: [0, 1]}\n"
    path.write_text(f"{text}select: {{over: server.lr}}\n", encoding="utf-8")
    return path


def test_an_axis_adds_to_the_mappings_of_one_before(small_yaml: Path, command: Command) -> None:
    sweep = "sweep={server: [{name: asgd}, {name: sasgd, divisor: plus1}], server.lr: [0.1, 0.2]}"
    code, out, _ = command("show", small_yaml, sweep)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("# ")] == [
        f"# server={name},lr={lr}" for name in ("asgd", "sasgd-divisorplus1") for lr in (0.1, 0.2)
    ]
    assert out.count("divisor: plus1") == 2


def test_jobs_change_no_bit(sweep_yaml: Path, command: Command) -> None:
    assert command("run", sweep_yaml, "--quiet", "--out", "one") == (0, "", "")
    code, output, messages = command("run", sweep_yaml, "--jobs", 2, "--out", "two")
    assert code == 0
    assert [row["status"] for row in rows(Path("two"))] == ["finished"] * 2 + ["diverged"] * 2 + ["finished"] * 2
    assert messages.startswith("6 runs\n[1/6] ")
    assert "best server.lr by the mean of validation_error" in output
    for name in ("runs.csv", "best.csv", "sweep.yaml"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    assert command("compare", "one", "two")[0] == 0
    for run in fredsim.load("two"):  # type: ignore[union-attr]
        assert run.config["threads"] is None


def test_a_sweep_grows_in_place(sweep_yaml: Path, command: Command) -> None:
    """With --resume, what has ended is kept as it is, and the tables become those of the larger sweep."""
    assert command("run", sweep_yaml, "--quiet", "--out", "grown") == (0, "", "")
    ended = {path: path.stat().st_mtime_ns for path in Path("grown").glob("*/*") if path.is_file()}
    larger = ("run", sweep_yaml, "sweep={server.lr: [0.2, 0.1, 1.0e+30, 0.05], seed: [0, 2, 1]}", "--quiet")
    assert command(*larger, "--resume", "--out", "grown") == (0, "", "")
    assert command(*larger, "--out", "new") == (0, "", "")
    for name in ("runs.csv", "best.csv", "sweep.yaml"):
        assert Path("grown", name).read_bytes() == Path("new", name).read_bytes()
    assert len(ended) == 30
    assert {path: path.stat().st_mtime_ns for path in ended} == ended
    assert len(rows(Path("grown"))) == 12


def test_a_sweep_grows_beside_a_folder_of_another_program(small_yaml: Path, command: Command) -> None:
    words = ("run", small_yaml, "iterations=1", "backend=numpy", "--quiet", "--resume", "--out", "out")
    assert command(*words, "sweep={seed: [0]}") == (0, "", "")
    Path("out/.ipynb_checkpoints").mkdir()
    assert command(*words, "sweep={seed: [0, 1]}") == (0, "", "")
    assert [row["seed"] for row in rows(Path("out"))] == ["0", "1"]
    assert Path("out/.ipynb_checkpoints").is_dir()


def test_threads_are_shared_unless_they_are_given(small_yaml: Path) -> None:
    results = fredsim.sweep(small_yaml, ["sweep={threads: [null, 3]}"], out="out", jobs=2)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert [run.summary["threads"] for run in results] == [max(1, available // 2), 3]
    assert [run.folder.name.rpartition("-")[0] for run in results] == ["threads=null", "threads=3"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_goes_on_where_it_was_ended(signum: signal.Signals, small_yaml: Path, command: Command) -> None:
    words = [
        "run",
        str(small_yaml),
        "sweep={seed: [0, 1, 2, 3, 4, 5]}",
        "iterations=60000",
        "threads=1",
        "--jobs",
        "2",
        "--quiet",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "fredsim", *words, "--out", "ended"], stderr=subprocess.PIPE
    ) as process:
        try:
            limit = time.monotonic() + 300
            while not Path("ended/runs.csv").exists() or not rows(Path("ended")):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < limit
                time.sleep(0.01)
            time.sleep(0.1)  # two runs are under way now
            process.send_signal(signum)
            _, messages = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == (130 if signum == signal.SIGINT else -signal.SIGKILL)
    assert messages.count(b"\n") == (1 if signum == signal.SIGINT else 0)
    kept = {row["run"]: Path("ended", row["run"], "summary.json").stat().st_mtime_ns for row in rows(Path("ended"))}
    assert 1 <= len(kept) < 6
    time.sleep(0.3)
    left = [path.stat().st_mtime_ns for path in Path().rglob("*")]
    assert max(left) < time.time_ns() - 2e8  # nobody goes on with what nobody waits for
    assert command(*words, "--out", "ended", "--resume") == (0, "", "")
    assert {name: Path("ended", name, "summary.json").stat().st_mtime_ns for name in kept} == kept
    assert command(*words, "--jobs", 1, "--out", "whole") == (0, "", "")
    assert Path("ended/runs.csv").read_bytes() == Path("whole/runs.csv").read_bytes()
    assert len(rows(Path("whole"))) == 6


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_does_not_stop_the_rest(
    jobs: int, small_yaml: Path, own_server: OwnServer, command: Command
) -> None:
    module = f"own_failing_{jobs}"  # a process imports a name once
    Path(f"{module}.py").write_text(own_server(FAILING), encoding="utf-8")
    words = ("run", small_yaml, f"server.name={module}:Plain", "sweep={server.lr: [0.1, 0.3, 0.2]}", "--out", "out")
    code, output, messages = command(*words, "--jobs", jobs)
    assert code == 2
    assert output.count("finished") == 2
    assert messages.splitlines()[-1].startswith("error: lr=0.3-")
    assert f"ValueError: too much ({module}.py:16)" in messages.splitlines()[-1]
    assert [row["status"] for row in rows(Path("out"))] == ["finished", "failed", "finished"]
    assert "too much" in rows(Path("out"))[1]["error"]
    results = fredsim.load("out")
    assert isinstance(results, Results)
    assert [result.config["server"]["lr"] for result in results] == [0.1, 0.2]
    Path(f"{module}.py").write_text(own_server(FAILING).replace("== 0.3", "== 0.35"), encoding="utf-8")
    del sys.modules[module]
    assert command(*words, "--jobs", jobs, "--resume")[0] == 0
    assert [row["status"] for row in rows(Path("out"))] == ["finished"] * 3


def test_what_only_a_run_finds_wrong_has_its_place(small_yaml: Path, command: Command) -> None:
    sweep = "sweep={path: [fused]}"
    code, _, messages = command("run", small_yaml, "backend=numpy", sweep, "--out", "out")
    says = f"override '{sweep}': path is fused; the backend numpy has no such path: leave path out"
    assert (code, f"[1/1] path=fused: failed ({says})\n" in messages) == (2, True)
    assert [row["error"] for row in rows(Path("out"))] == [says]


def test_a_folder_that_cannot_be_written_fails_its_run_alone(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor can the record that an earlier run left there be removed."""
    words = ("run", small_yaml, "sweep={seed: [0, 1, 2]}", "iterations=5", "backend=numpy", "--quiet", "--out", "out")
    assert command(*words)[0] == 0
    shut, *others = (Path("out", row["run"]) for row in rows(Path("out")))
    before = {path: path.read_bytes() for path in shut.iterdir()}
    for path in others:
        (path / "params.safetensors").unlink()
    write, unlink = write_atomic, Path.unlink

    def written(path: Path, content: str) -> None:
        if path.parent == shut:
            raise PermissionError(errno.EACCES, "Permission denied")
        write(path, content)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path.parent == shut:
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr("fredsim.runs.folder.folders.write_atomic", written)
    monkeypatch.setattr(Path, "unlink", unlinked)
    code, _, messages = command(*words)
    assert (code, messages.count("Permission denied")) == (2, 1)
    assert [row["status"] for row in rows(Path("out"))] == ["failed", "finished", "finished"]
    assert all((path / "params.safetensors").exists() for path in others)
    assert {path: path.read_bytes() for path in shut.iterdir()} == before


def test_another_process_that_waits_for_the_folder(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does all runs anew, and begins with an empty runs.csv: what the first has done was called interrupted."""

    @contextmanager
    def followed(folder: Path) -> Iterator[None]:
        with locked(folder):
            yield
        write_atomic(folder / "runs.csv", (folder / "runs.csv").read_text(encoding="utf-8").partition("\n")[0] + "\n")

    monkeypatch.setattr("fredsim.runs.many.sweep.locked", followed)
    code, output, messages = command("run", small_yaml, "sweep={seed: [0, 1]}", "figures=[]", "--out", "out")
    assert (code, "interrupted" in messages, output.count("finished")) == (0, False, 2)
    assert rows(Path("out")) == []


def test_rows_of_runs_whose_folders_have_the_same_label(small_yaml: Path) -> None:
    """Labels are cut where they are long; the values of the axes tell whose a row is, and those of null are empty."""
    axes = {
        "dispatcher": {"name": "uniform", "wait": True, "push": "always", "fetch": "always", "dropped_push": "reapply"},
        "evaluation": {"every": 2, "unit": "iterations", "test": False, "per_client": False, "gradient_norm": False},
        "clients": {"count": 2, "batch_size": 1, "sampling": "sequential", "local_steps": 1},
        "compress": None,
        "iterations": 4,
    }
    sweep = {key: [value] for key, value in axes.items()} | {"server.lr": [0.1, 0.2], "seed": [0, 1]}
    made = {"until": {"validation_error": 0.99}, "backend": "numpy", "sweep": sweep}  # so that it ends before the 4th
    names = fredsim.sweep(read_document(small_yaml).data | made, out="out").runs["run"].tolist()
    assert len({name.rpartition("-")[0] for name in names}) == 1
    path = Path("out/runs.csv")
    header, first, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for left in ([first, *others], others, others[1:], [others[2]]):  # as where another run ends first
        path.write_text("".join([header, *left]), encoding="utf-8")
        found = fredsim.load("out")
        assert isinstance(found, Results)
        wanted = [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)][-len(left) :]
        assert [(one.config["server"]["lr"], one.config["seed"]) for one in found] == wanted
        assert found.runs["server.lr"].tolist() == [lr for lr, _ in wanted]


def test_nothing_but_failures(small_yaml: Path, own_server: OwnServer, command: Command, refused: Refused) -> None:
    Path("own_hopeless.py").write_text(own_server(FAILING), encoding="utf-8")
    words = ("server.name=own_hopeless:Plain", "sweep={server.lr: [0.3]}")
    assert command("run", small_yaml, *words, "--out", "out")[0] == 2
    refused("plot", "out", says=("out: all its runs failed; out/runs.csv says why",))
    results = fredsim.load("out")
    assert isinstance(results, Results)
    assert (len(results), results.failures[0][1].count("ValueError: too much")) == (0, 1)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_has_ended_yet(
    fails: bool, small_yaml: Path, own_server: OwnServer, command: Command, refused: Refused
) -> None:
    """A sweep that was stopped in the first run that does not fail: what there is of it is verified and compared."""
    Path("own_stopped.py").write_text(
        own_server("import time\ntime.sleep(0.02)\n" + FAILING.partition("\n")[2]), encoding="utf-8"
    )
    rates = [0.3, 0.1, 0.2] if fails else [0.1, 0.2]

    def stopped(out: str, iteration: int) -> str:
        """Return the folder of the run that was stopped soon after the row at this iteration."""

        def stop(row: dict[str, Any]) -> None:
            if row["iteration"] == iteration and "0.1" in row["run"]:
                raise ValueError("enough")

        keys = ["evaluation.every=20", "server.name=own_stopped:Plain", f"sweep={{server.lr: {rates}}}"]
        with pytest.raises(ValueError, match="enough"):
            fredsim.sweep(small_yaml, keys, out=out, on_row=stop)
        return str(next(Path(out).glob("lr=0.1-*")))

    one, other = stopped("out", 20), stopped("other", 0)
    shutil.copytree("out", "same")
    same = one.replace("out", "same", 1)
    says = ("out: has no results yet: 1 of its runs failed, as out/runs.csv says, and 2 did not end; --resume does",)
    if not fails:
        says = ("out/runs.csv: names no run: none has ended yet; let one end",)
    refused("plot", "out", says=says)
    for package, words in (("plotly", ("report", "out")), ("tensorboard", ("export", "out", "--to", "tensorboard"))):
        if find_spec(package) is not None:
            refused(*words, says=says)
    code, output, messages = command("verify", "out")
    assert (code, output) == (0, f"{one}: same bits\n")
    assert ("runs that failed by runs.csv (1, such as lr=0.3" in messages) == fails
    assert "note: out: runs.csv lacks runs of the sweep (1, such as lr=0.2" in messages
    code, output, messages = command("compare", "out", "same")
    assert (code, output) == (0, f"{one} and {same}: same bits\n")
    assert ("runs that failed by runs.csv (1, such as lr=0.3" in messages) == fails
    for folder in ("out", "same"):
        assert f"note: {folder}: runs of the sweep that did not end (1) are not compared; --resume does" in messages
    code, output, _ = command("compare", "out", "other", "--no-replay")
    assert (code, output.startswith(f"{one} and {other}: different: ")) == (1, True)


def test_what_a_sweep_lacks_is_said(
    small_yaml: Path, own_server: OwnServer, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a sweep of which one run failed and one was stopped, and of the latter, which is shown as far as it came."""
    Path("own_partly.py").write_text(own_server(FAILING), encoding="utf-8")

    def stop(row: dict[str, Any]) -> None:
        if row["iteration"] == 20 and "0.2" in row["run"]:
            raise ValueError("enough")

    keys = ["evaluation.every=20", "server.name=own_partly:Plain", "sweep={server.lr: [0.3, 0.1, 0.2]}"]
    with pytest.raises(ValueError, match="enough"):
        fredsim.sweep(small_yaml, keys, out="out", on_row=stop)
    stopped = next(Path("out").glob("lr=0.2-*"))
    (failed,) = (row["run"] for row in rows(Path("out")) if row["status"] == "failed")
    ways = [("plot", "-o", "x.svg", "shown")]
    ways += [("export", "--to", "tensorboard", "exported")] if find_spec("tensorboard") is not None else []
    for name, option, value, done in ways:
        code, _, messages = command(name, "out", option, value)
        assert code == 0
        assert f"note: out: runs that failed (1, such as {failed}) are not {done}; runs.csv says why\n" in messages
        assert f"note: out: runs of the sweep that did not end (1) are not {done}; --resume does them\n" in messages
        code, _, messages = command(name, stopped, option, value)
        assert code == 0
        assert re.fullmatch(f"note: {stopped}: was interrupted, and is {done} up to iteration [234].\n", messages)
    capsys.readouterr()
    fredsim.load("out").plot()
    says = f"note: {Path('out').absolute()}: runs of the sweep that did not end (1) are not shown"
    assert says in capsys.readouterr().err
    assert command("plot", next(Path("out").glob("lr=0.1-*")), "-o", "x.svg")[2] == ""
    Path("out/sweep.yaml").unlink()  # which alone tells how many runs there are to be
    fredsim.load("out", as_found=True).plot()
    assert "did not end" not in capsys.readouterr().err


def test_runs_are_compared_with_those_of_their_name(
    small_yaml: Path, own_server: OwnServer, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each sweep lacks another one."""
    text = own_server(FAILING.replace("0.3", 'float(os.environ["FAILS"])'))
    Path("own_picky.py").write_text(text, encoding="utf-8")
    for rate, sweep in ((0.2, "one"), (0.3, "two")):
        monkeypatch.setenv("FAILS", str(rate))
        words = ("server.name=own_picky:Plain", "sweep={server.lr: [0.1, 0.2, 0.3, 0.5]}", "--quiet", "--out", sweep)
        assert command("run", small_yaml, *words)[0] == 2
    code, output, messages = command("compare", "one", "two", "--no-replay")
    lines = [line for line in output.splitlines() if not line.startswith("  ")]
    pairs = [[Path(name).name.split("-")[0] for name in line.split(": ")[0].split(" and ")] for line in lines]
    assert (code, pairs) == (1, [["lr=0.1"] * 2, ["lr=0.3", "lr=0.2"], ["lr=0.5"] * 2])
    assert messages.count("runs that failed by runs.csv (1, such as ") == 2


def test_a_process_that_dies_costs_its_run_alone(small_yaml: Path, own_server: OwnServer, command: Command) -> None:
    Path("own_dying.py").write_text(own_server(FAILING), encoding="utf-8")
    words = ("server.name=own_dying:Plain", "sweep={server.lr: [0.4, 0.1, 0.2, 0.05]}")
    code, _, messages = command("run", small_yaml, *words, "--quiet", "--jobs", 2, "--out", "out")
    assert code == 2
    assert [row["status"] for row in rows(Path("out"))] == ["failed", "finished", "finished", "finished"]
    (line,) = messages.splitlines()
    assert " failed: the process of the run ended with exit code -9 (SIGKILL: " in line


def test_processes_hear_no_signal_of_the_terminal(small_yaml: Path, own_server: OwnServer, command: Command) -> None:
    """Which goes to a whole group of processes: it is for the one that started them to say when they stop."""
    note = "with open(f'{os.getpid()}.group', 'w') as file:\n    file.write(str(os.getpgrp()))\n"
    Path("own_group.py").write_text(own_server(note), encoding="utf-8")
    words = ("server.name=own_group:Plain", "sweep={seed: [0, 1]}", "--jobs", 2, "--quiet", "--out", "out")
    assert command("run", small_yaml, *words) == (0, "", "")
    groups = {int(path.stem): int(path.read_text()) for path in Path().glob("*.group")}
    assert groups
    assert all(process == group for process, group in groups.items())


def test_a_process_ends_with_the_one_that_started_it() -> None:
    program = [sys.executable, "-c", "from fredsim.runs.processes.worker import main; main()"]
    assert subprocess.run(program, stdin=subprocess.DEVNULL, timeout=300, check=False).returncode == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot be bound to a processor")
def test_a_run_takes_the_processors_that_its_process_may_use(small_yaml: Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        result = fredsim.run(small_yaml, out="out")
    finally:
        os.sched_setaffinity(0, allowed)
    assert isinstance(result, Result)
    assert result.summary["threads"] == 1


def test_what_the_data_refuses_is_refused_before_the_first_run(small_yaml: Path, refused: Refused) -> None:
    sweep = "sweep={clients.batch_size: [3, 5000], data.train: [null, 1200]}"
    refused("run", small_yaml, sweep, "--out", "out", says=("clients.batch_size is 5000; it must not exceed the 1200",))
    sweep = "sweep={data.train: [100, 5000]}"
    refused(
        "run", small_yaml, sweep, "--out", "out", says=(f"override '{sweep}'", "5000 and data.validation 297 overlap")
    )
    assert not Path("out").exists()


def test_a_run_that_stands_there_twice(small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, "sweep={seed: [1, 1]}", "--out", "out", says=("holds the run seed=1-", "twice"))
    for sweep in (
        "server.lr: [1, 2, 1.0]", "name: [a, b]", "clients.optimizer: [null, {name: sgd}]",
    ):  # fmt: skip
        refused("show", small_yaml, f"sweep={{{sweep}}}", says=("the sweep holds the run", "twice, also as", "leave"))
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write("cases:\n  - {seed: 1}\n  - {seed: 1, compress: null}\n")
    refused("show", small_yaml, says=(" cases: the sweep holds the run", "also as"))
    assert len(fredsim.sweep(small_yaml, ["cases=null", "sweep={backend: [numpy, numba]}", "iterations=1"])) == 2


def test_keys_of_all_runs_are_no_axes(small_yaml: Path, refused: Refused) -> None:
    for key in ("figures", "select", "select.over", "sweep", "sweep.seed", "cases"):
        what = f"varies '{key}', and {key.partition('.')[0]} is of all runs together; give it beside "
        refused("show", small_yaml, f"sweep={{seed: [0, 1], {key}: [[], [{{name: a}}]]}}", says=("sweep: ", what))
        refused("show", small_yaml, f"cases=[{{seed: 0}}, {{{key}: []}}]", says=("cases: ", what))


def test_a_sweep_without_axes_is_none(small_yaml: Path, command: Command) -> None:
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write("sweep: {seed: [0, 1]}\n")
    words = ("run", small_yaml, "server.lr=0.2", "sweep={}", "backend=numpy", "iterations=1", "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")
    assert command("run", "out", "--resume", "--quiet") == (0, "", "")
    result = fredsim.load("out")
    assert isinstance(result, Result)
    assert (result.config["server"]["lr"], result.verify()) == (0.2, [])


def test_jobs_that_are_none(small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, "--jobs", 0, "--out", "out", says=("jobs is 0; it must be 1 at least",))


def test_a_live_table(sweep_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    code, _, messages = command("run", sweep_yaml, "--jobs", 2, "--out", "out")
    assert code == 0
    messages = re.sub(r"\x1b\[[\d;]*m", "", messages)
    assert "all runs" in messages
    assert messages.count(": finished after 50 iterations") == 4
    assert "2 diverged" in messages


def test_folders_have_names_that_every_system_takes(small_yaml: Path, command: Command) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6)), np.arange(40) % 4
    np.savez("own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    sweep = (
        "sweep={data: [{name: 'npz:./own.npz', train: 30}, {name: digits}], "
        "server: [{name: 'fredsim.servers.asgd:ASGD', lr: 0.1}]}"
    )
    words = (sweep, "iterations=5", "model.hidden=[]", "--quiet", "--out", "out")
    assert command("run", small_yaml, *words) == (0, "", "")
    names = sorted(path.parent.name.rpartition("-")[0] for path in Path("out").rglob("summary.json"))
    server = "server=fredsim.servers.asgd_ASGD-lr0.1"
    assert names == [f"data=digits,{server}", f"data=npz_._own.npz-train30,{server}"]
    assert {path.parent.parent for path in Path("out").rglob("summary.json")} == {Path("out")}
    summaries = [json.loads(path.read_bytes()) for path in Path("out").rglob("summary.json")]
    assert [summary["code"] for summary in summaries] == [{}, {}]  # which is that of the user's modules
