"""`--jobs device`: runs of a sweep side by side on a device have the bits and files that each has by itself."""

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.cuda import engine, together
from fredsim.cuda.array import empty
from fredsim.cuda.engine import CudaEngine
from fredsim.cuda.launches import Launches
from fredsim.cuda.machines import machine
from fredsim.errors import SimulationError
from fredsim.runs.folder.results import Result, Results
from fredsim.system.turns import Turns
from tests.conftest import DeviceBytes, needs_cuda

Command = Callable[..., tuple[int, str, str]]
Sweep = Callable[..., Results]

FILES = ("config.yaml", "metrics.csv", "staleness.csv", "params.safetensors")
#: Few rows, of which most are trained on: to evaluate many on an emulated device takes longer than the training.
DATA = {"name": "digits", "train": 200, "validation": 20}
SERVERS = [{"name": "asgd", "lr": 0.1}, {"name": "fasgd", "lr": 0.01}, {"name": "sasgd", "lr": 0.2}]


@pytest.fixture
def sweep(tmp_path: Path, digits_experiment: dict[str, Any]) -> Sweep:
    """Do the runs of a sweep, by default one after the other, each time in a new folder."""
    folders = iter(range(100))

    def do(changes: Mapping[str, Any], jobs: Any = 1, **how: Any) -> Results:
        experiment = {**digits_experiment, "backend": "cuda", "data": DATA, "evaluation": {"every": 20}, **changes}
        folder = how.pop("out", None) or tmp_path / str(next(folders))
        return fredsim.sweep(experiment, out=folder, jobs=jobs, **how)

    return do


def assert_same(one: Results, other: Results) -> None:
    assert [run.folder.name for run in one] == [run.folder.name for run in other]
    for run, same in zip(one, other, strict=True):
        assert run.summary["status"] == same.summary["status"]
        assert run.summary["digest"] == same.summary["digest"]
        for name in FILES:
            assert (run.folder / name).read_bytes() == (same.folder / name).read_bytes(), (run.folder.name, name)


CASES: dict[str, dict[str, Any]] = {
    "seeds": {"sweep": {"seed": [0, 1, 2, 3]}},
    "rates": {"sweep": {"server.lr": [0.1, 0.03, 0.01]}},
    "servers": {"sweep": {"server": SERVERS, "seed": [0, 1]}},
    "servers that get whole gradients": {"sweep": {"server": SERVERS}, "clients": {"count": 5, "batch_size": 11}},
    "large minibatches": {"sweep": {"seed": [0, 1]}, "clients": {"count": 3, "batch_size": 150}, "iterations": 12},
    "clients": {"sweep": {"clients.count": [1, 3, 40]}},
    "minibatches": {"sweep": {"clients.batch_size": [1, 2, 8, 9], "seed": [0, 1]}},
    "networks": {"sweep": {"model.hidden": [[], [7], [20], [9, 5]]}},
    "data": {"sweep": {"data.train": [100, 1000]}},
    "schedules": {
        "sweep": {"dispatcher": [{"name": "uniform"}, {"name": "uniform", "wait": False}, {"name": "clock"}]}
    },
    "lengths": {"cases": [{"iterations": 3}, {"iterations": 70, "evaluation.every": 7}, {"iterations": 40}]},
    "windows": {"sweep": {"window": [1, 2, 9]}},
    "one diverges": {"sweep": {"server.lr": [0.1, 1e20, 0.2, 1e30]}},
    "all diverge": {"sweep": {"server.lr": [1e20, 1e30]}, "data": {"name": "digits"}},  # with all its rows
    "an average": {"sweep": {"seed": [0, 1]}, "average": {"name": "window", "min_window": 3, "max_window": 8}},
}


@needs_cuda
@pytest.mark.parametrize("name", CASES)
def test_each_run_is_what_it_is_by_itself(name: str, sweep: Sweep) -> None:
    one, other = sweep(CASES[name]), sweep(CASES[name], "device")
    assert_same(one, other)
    assert list(one.runs["digest"]) == list(other.runs["digest"])


@needs_cuda
def test_networks_of_operators_also_with_draws(sweep: Sweep, tmp_path: Path) -> None:
    """Runs that draw have launches in common if they have the same seed."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 60)
    np.savez(tmp_path / "images.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    changes = {
        "iterations": 8,
        "data": {"name": f"npz:{tmp_path / 'images.npz'}", "validation": 9},
        "model": {"name": "vgg", "widths": [4], "dropout": 0.5},
        "clients": {"count": 3, "batch_size": 2},
        "evaluation": {"every": 3},
        "sweep": {"seed": [0, 1], "server.lr": [0.1, 0.05]},
    }
    assert_same(sweep(changes), sweep(changes, "device"))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[Any]]]:
    """The kernels that are added to launches of windows, each with its grid."""
    found: list[tuple[str, Sequence[Any]]] = []
    add = Launches.add

    def noted(self: Launches, kernel: Any, grid: Any, *where: Any, **fields: Any) -> None:
        found.append((kernel.name, grid))
        add(self, kernel, grid, *where, **fields)

    monkeypatch.setattr(Launches, "add", noted)
    return found


@needs_cuda
@pytest.mark.parametrize(("mu", "wide", "kernel"), [
    (2, 512, "apply_thin_runs"), (2, 1, "apply_wide_runs"), (12, 512, "apply_runs"),
])  # fmt: skip
def test_runs_have_launches_in_common(
    mu: int, wide: int, kernel: str, sweep: Sweep, launched: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fredsim.cuda.queue.WIDE", wide)
    changes = {
        "iterations": 20,
        "clients": {"count": 4, "batch_size": mu},
        "sweep": {"seed": [0, 1, 2], "server": SERVERS[:2]},
    }
    changes["evaluation"] = {"every": 30}
    together = sweep(changes, "device")
    assert [grid[1] for name, grid in launched if name == kernel] == [3, 3]  # three seeds of each rule
    assert not [name for name, _ in launched if name in ("apply", "apply_thin", "apply_wide")]
    assert_same(together, sweep(changes))


@needs_cuda
def test_runs_process_the_same_number_of_events_at_once(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that begins when others have come far, and whatever a run itself takes."""
    process, last = together.process_together, dict[Any, int]()  # the last round of each run
    rounds: list[dict[Any, int]] = []

    def noted(stretches: Any) -> Any:
        last.update({stretch.executor: len(rounds) for stretch in stretches})
        rounds.append({stretch.executor: len(stretch.held) for stretch in stretches})
        return process(stretches)

    monkeypatch.setattr(together, "process_together", noted)
    monkeypatch.setattr("fredsim.runs.many.side_by_side.MOST_RUNS", 2)
    changes = {"iterations": 2000, "evaluation": {"every": 2000}, "cases": [{}, {"iterations": 500}, {"seed": 1}]}
    sweep(changes, "device")
    assert len(last) == 3
    for number, sizes in enumerate(rounds):
        assert len({size for run, size in sizes.items() if last[run] > number}) <= 1
    assert list(rounds[0].values()) == [64, 64]
    assert next(sizes[list(last)[2]] for sizes in rounds if list(last)[2] in sizes) > 64


@needs_cuda
def test_windows_that_are_too_large_for_one_launch(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"sweep": {"seed": [0, 1, 2]}, "clients": {"count": 4, "batch_size": 12}}
    one = sweep(changes)
    monkeypatch.setattr("fredsim.cuda.engine.MOST_GRADIENTS", 4 * 1216 * 5)
    assert_same(one, sweep(changes, "device"))


@needs_cuda
def test_samples_are_on_the_device_once(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[CudaEngine] = []
    found: list[set[int]] = []
    process = together.process_together

    def noted(stretches: Any) -> Any:
        found.append({engine._uploaded(engine._dataset.train)[0].address for engine in engines})
        return process(stretches)

    make = CudaEngine.__init__

    def made(self: CudaEngine, *given: Any) -> None:
        make(self, *given)
        engines.append(self)

    monkeypatch.setattr(CudaEngine, "__init__", made)
    monkeypatch.setattr(together, "process_together", noted)
    sweep({"sweep": {"seed": [0, 1, 2]}}, "device")
    assert len(engines) == 3
    assert all(len(addresses) == 1 for addresses in found)


@needs_cuda
def test_more_runs_than_are_side_by_side(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"sweep": {"seed": [0, 1, 2, 3, 4]}, "iterations": 30}
    one, process, found = sweep(changes), together.process_together, set()

    def noted(stretches: Any) -> Any:
        found.add(len(stretches))
        return process(stretches)

    monkeypatch.setattr(together, "process_together", noted)
    monkeypatch.setattr("fredsim.runs.many.side_by_side.MOST_RUNS", 2)
    assert_same(one, sweep(changes, "device"))
    assert found == {1, 2}


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let the device have room for so many bytes, one number each time it is asked, and for any number after that."""

    def give(*bytes_: int) -> list[int]:
        left = list(bytes_)
        monkeypatch.setattr(type(machine()), "room", lambda _: left.pop(0) if left else 2**40)
        return left

    return give


@needs_cuda
def test_a_run_for_which_the_device_has_no_room_waits_for_others(sweep: Sweep, rooms: Callable[..., list[int]]) -> None:
    changes = {"sweep": {"seed": [0, 1, 2]}, "iterations": 30}
    one, enough = sweep(changes), 2**40
    left = rooms(enough, enough, enough, 10_000, 10_000)  # of the second run, the places of its clients
    other = sweep(changes, "device")
    assert_same(one, other)
    assert not left


@needs_cuda
def test_a_run_for_which_the_device_has_no_room_at_all(
    small_yaml: Path, command: Command, rooms: Callable[..., list[int]]
) -> None:
    """It is done by itself, and what its clients hold is in the host's memory."""
    path, enough = yaml(small_yaml, "cases: [{seed: 1}]"), 2**40
    assert command("run", path, "--out", "alone")[0] == 0
    left = rooms(enough, 10_000, 10_000, enough, 10_000, 10_000)
    code, _, messages = command("run", path, "--jobs", "device", "--out", "out")
    assert code == 0
    assert not left
    assert "seed=1: not side by side with other runs; the device has no room for all that its clients hold" in messages
    assert "of 8 versions of the parameters that clients hold, 7 are in the host's memory" in messages
    assert_same(Results(Path("alone")), Results(Path("out")))


def yaml(path: Path, more: str) -> Path:
    found = path.with_name("sweep.yaml")
    text = path.read_text(encoding="utf-8").replace("{name: digits}", "{name: digits, validation: 20}")
    found.write_text(f"{text}evaluation: {{every: 10}}\nbackend: cuda\n{more}\n", encoding="utf-8")
    return found


@needs_cuda
def test_what_cannot_be_side_by_side(small_yaml: Path, command: Command) -> None:
    gated = "{server: {name: bfasgd, lr: 0.01, c_fetch: 0.1, c_push: 0.0}}"
    path = yaml(small_yaml, f"cases: [{{}}, {{backend: numba}}, {{path: snapshots}}, {gated}, {{seed: 1}}]")
    code, _, messages = command("run", path, "--jobs", "device", "--out", "out")
    assert code == 0
    assert "backend=numba: not side by side with other runs; the backend is numba" in messages
    assert "path=snapshots: not side by side with other runs; path is snapshots" in messages
    assert "bfasgd" in messages
    assert command("run", path, "--out", "alone")[0] == 0
    assert_same(Results(Path("alone")), Results(Path("out")))
    assert command("verify", "out")[0] == 0


@needs_cuda
def test_interrupted_and_resumed(small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from fredsim.show.progress import LineObserver

    path, usual = yaml(small_yaml, "sweep: {seed: [0, 1, 2]}"), LineObserver.row
    seen = []

    def row(self: LineObserver, row: Any) -> None:
        usual(self, row)
        seen.append(row.iteration)
        if seen.count(20) == 2 and row.iteration == 20:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LineObserver, "row", row)
    words = ("run", path, "iterations=100", "--jobs", "device", "--out", "out")
    threads = threading.active_count()
    assert command(*words)[0] == 130
    assert threading.active_count() == threads
    found = [Result(path.parent) for path in Path("out").glob("*/summary.json")]
    assert len(found) == 3
    assert {run.summary["status"] for run in found} == {"interrupted"}
    assert {20, 30} >= {run.summary["iterations"] for run in found}
    monkeypatch.setattr(LineObserver, "row", usual)
    assert command("verify", found[0].folder)[0] == 0
    damaged = max((found[1].folder / "checkpoint").glob("*.json"))
    for checkpoint in damaged.parent.glob("*.json"):
        checkpoint.write_text("{", encoding="utf-8")
    code, _, messages = command(*words, "--resume")
    assert code == 0
    assert messages.count("continues from the checkpoint at iteration") == 2
    assert messages.count(str(damaged)) == 1  # it is said once
    assert command("run", path, "iterations=100", "--out", "alone")[0] == 0
    assert_same(Results(Path("alone")), Results(Path("out")))
    code, _, messages = command(*words, "--resume")
    assert (code, messages.count("finished after")) == (0, 0)


@needs_cuda
def test_an_interrupt_that_does_not_wait(sweep: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No thread of a run goes on, and its folder is free again."""
    threads, process, calls = threading.active_count(), together.process_together, 0

    def interrupted(stretches: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return process(stretches)

    monkeypatch.setattr(together, "process_together", interrupted)
    changes = {"sweep": {"seed": [0, 1, 2]}}
    with pytest.raises(KeyboardInterrupt):
        sweep(changes, "device", out=tmp_path / "out")
    assert threading.active_count() == threads
    assert_same(sweep(changes), sweep(changes, "device", out=tmp_path / "out"))


#: Runs whose windows take most of what they have on the device.
LARGE: dict[str, dict[str, Any]] = {
    "alike": {"sweep": {"seed": [0, 1]}},
    "of four kinds": {"sweep": {"seed": [0, 1], "clients.batch_size": [3, 40]}},
    "a network of operators": {
        "model": {"name": "vgg", "widths": [2]}, "clients": {"count": 20, "batch_size": 4}, "sweep": {"seed": [0, 1]},
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "shares"), [
    *((name, (0.0, 0.6)) for name in LARGE),
    *(pytest.param(name, (0.3, 0.99), marks=pytest.mark.slow) for name in LARGE),
])  # fmt: skip
def test_with_as_little_memory_as_each_run_needs_by_itself(
    name: str, shares: Sequence[float], sweep: Sweep, device_bytes: DeviceBytes
) -> None:
    """All memory of the device is counted, so that whatever runs have beside each other may be too much.

    They have what one needs by itself, and a share of what they take beyond that.
    """
    changes = {"iterations": 24, **LARGE[name]}
    one = sweep(changes)
    most, refused = device_bytes.most, 0
    device_bytes.most = 0
    assert_same(one, sweep(changes, "device"))
    together = device_bytes.most
    assert together > most
    for share in shares:
        device_bytes.limit = most + share * (together - most)
        assert_same(one, sweep(changes, "device"))
        assert device_bytes.refused > refused
        refused = device_bytes.refused


def test_runs_that_no_memory_is_enough_for(small_yaml: Path, command: Command, device_bytes: DeviceBytes) -> None:
    """Each fails by itself, with the error that it has by itself."""
    path = yaml(small_yaml, "sweep: {seed: [0, 1, 2]}")
    device_bytes.limit = 10_000
    code, _, messages = command("run", path, "--jobs", "device", "--out", "out")
    assert code == 2
    errors = [line for line in messages.splitlines() if line.startswith("[") and "failed" in line]
    assert len(errors) == 3
    assert all("out of memory on the device (the device has no room for " in error for error in errors)
    assert all("choose backend numba, or end other programs" in error for error in errors)


@needs_cuda
def test_allocations_that_fail(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it fails: then the run itself goes on with its own."""
    changes = {"sweep": {"seed": [0, 1]}, "iterations": 30}
    one, allocate, failed = sweep(changes), CudaEngine.allocate, set[int]()
    for last in range(7):

        def limited(self: CudaEngine, batches: int, last: int = last) -> None:
            if batches <= 8:
                allocate(self, batches)
                return
            numbers = iter(range(last))

            def some(*given: Any) -> Any:
                if next(numbers, None) is None:
                    failed.add(last)
                    raise MemoryError
                return empty(*given)

            with monkeypatch.context() as patch:
                patch.setattr(engine, "empty", some)
                allocate(self, batches)

        with monkeypatch.context() as patch:
            patch.setattr(CudaEngine, "allocate", limited)
            assert_same(one, sweep(changes, "device"))
    assert failed == set(range(7))


@needs_cuda
def test_a_launch_that_the_device_refuses(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise SimulationError("the device refuses")

    monkeypatch.setattr(together, "run_all", refused)
    results = sweep({"sweep": {"seed": [0, 1]}}, "device")
    assert list(results.runs["error"]) == ["the device refuses"] * 2


@needs_cuda
def test_jobs_that_are_none(small_yaml: Path, command: Command) -> None:
    path = yaml(small_yaml, "sweep: {seed: [0, 1]}")
    code, _, messages = command("run", path, "--jobs", "devices")
    assert (code, "'devices' is neither a whole number nor `device`" in messages) == (2, True)
    code, _, messages = command("run", path, "--jobs", "device", "--dask", "localhost:1")
    assert (code, messages) == (2, "error: jobs is device, and dask is given, whose workers do the runs; keep one\n")


# ---- threads that take turns


def squares(ask: Callable[[int], int]) -> str:
    return f"{ask(2)} {ask(3)}"


def test_turns() -> None:
    turns = Turns(squares)
    question, answers = turns.go_on(), []
    while not turns.ended:
        answers.append(question)
        question = turns.go_on(question**2)
    assert (answers, turns.result) == ([2, 3], "4 9")


def test_what_a_call_raises_is_raised_where_its_turn_is_waited_for() -> None:
    def fails(ask: Callable[[int], int]) -> None:
        ask(1)
        raise SimulationError("it fails")

    turns = Turns(fails)
    assert turns.go_on() == 1
    with pytest.raises(SimulationError, match="it fails"):
        turns.go_on()
    assert turns.ended


@pytest.mark.parametrize("begun", [False, True])
def test_a_call_that_is_given_up(begun: bool) -> None:
    done: list[str] = []

    def call(ask: Callable[[int], int]) -> None:
        try:
            ask(1)
            done.append("answered")
        except Exception:
            done.append("an exception")
        finally:
            done.append("finally")

    threads, turns = threading.active_count(), Turns(call)
    if begun:
        turns.go_on()
    turns.give_up()
    turns.give_up()
    assert done == (["finally"] if begun else [])
    assert threading.active_count() == threads


def test_a_call_that_is_given_up_while_it_has_its_turn() -> None:
    """As an interrupt does that comes while the leader waits for it."""
    goes_on, done = threading.Event(), []

    def call(ask: Callable[[int], int]) -> None:
        goes_on.wait(10)
        try:
            ask(1)
            done.append("answered")
        finally:
            done.append("finally")

    class Interrupted(SimpleQueue[Any]):
        def get(self, *_: Any) -> Any:
            goes_on.set()
            raise KeyboardInterrupt

    turns = Turns(call)
    turns._questions = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        turns.go_on()
    turns.give_up()
    assert done == ["finally"]
