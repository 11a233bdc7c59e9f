"""The workers of a live run, with workers made up: what becomes of tasks when one of them goes."""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fredsim.errors import ClusterError, SimulationError
from fredsim.runs.live.live import run_live
from fredsim.runs.live.worker import Basis
from fredsim.runs.live.workers import DaskWorkers, _clock_offset
from fredsim.runs.many.cluster import Cluster
from fredsim.runs.single.opening import open_expansion
from fredsim.simulation.paths.live_pushes import ClientTask, LiveDispatcher

PUSH = np.ones(3, np.float32)
LOSSES = np.zeros(1, np.float32)
BASIS = Basis("d", {}, {}, 3)


class Answer:
    """What Dask gives for a call of an actor."""

    def __init__(self, value: object) -> None:
        self.value = value

    def result(self, timeout: float) -> object:
        """Return it, raise it, or wait in vain."""
        if self.value is None:
            threading.Event().wait(timeout)
            raise TimeoutError
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Actor:
    """A worker; `compute` answers by turns "done", "raises" (at once), an exception (when waited for), None (never)."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.basis = list(answers), BASIS
        self.asked: list[int] = []

    def ready(self) -> Answer:
        """Return that it can compute."""
        return Answer(self.basis)

    def clock(self) -> Answer:
        """Return its time."""
        return Answer(1)

    def compute(self, client: int, number: int, task_id: int, params: object, rate: float) -> Answer:
        """Do a task."""
        self.asked.append(task_id)
        answer = self.answers.pop(0) if self.answers else "done"
        if isinstance(answer, tuple):
            return Answer(answer)
        if answer == "raises":
            raise RuntimeError("Worker holding Actor was lost.")
        return Answer((PUSH, LOSSES, True, 0, 0, 1, 2) if answer == "done" else answer)


class Workers:
    """A cluster whose workers are these actors, by their addresses."""

    def __init__(self, **actors: Actor) -> None:
        self.actors = actors

    silent = ()

    def workers(self) -> list[str]:
        """Return the addresses."""
        return [*self.actors]

    def fits(self, address: str) -> bool:
        """Return that it has fredsim's version."""
        return True


def pool_of(cluster: Cluster, make: Callable[[str], Any], note: Callable[[str], None]) -> DaskWorkers:
    return DaskWorkers(cluster, make, note, lambda: False, BASIS, len(LOSSES), compresses=False)


def test_workers_that_were_starting_when_the_run_ended_are_no_failures() -> None:
    """After an interrupt: Dask cancels what it was asked for."""
    notes, closed, told = list[str](), threading.Event(), threading.Event()

    def make(address: str) -> Any:
        closed.wait(60)
        told.set()
        raise RuntimeError(f"{address} cancelled")

    pool = DaskWorkers(
        cast("Cluster", Workers(a=Actor())), make, notes.append, lambda: True, BASIS, len(LOSSES), compresses=False
    )
    with pool:
        (starting,) = pool._start_threads.values()
    closed.set()
    starting.join(60)
    assert (told.is_set(), starting.is_alive(), notes) == (True, False, [])


@pytest.mark.parametrize(
    "answers",
    [
        ("raises",),
        ("done", "raises"),
        (None, "raises"),
        (OSError("gone"),),
        ("done", OSError("gone")),
        (None, OSError("gone")),
    ],
)
def test_works_of_a_worker_that_is_lost_are_done_by_another(answers: tuple[object, ...]) -> None:
    """Wherever it is lost: when a task is sent to it, or while it has one or two."""
    first, second = Actor(*answers), Actor()
    cluster, notes = Workers(a=first), list[str]()
    make: Callable[[str], Any] = lambda address: cluster.actors[address]  # noqa: E731
    with pool_of(cast("Cluster", cluster), make, notes.append) as pool:
        for client in range(4):
            pool.begin(ClientTask(client, 0, client, PUSH, 0.0))
        lost = time.monotonic_ns()
        cluster.actors = {"b": second}  # it has another address when it comes again
        found = [pool.next(20.0) for _ in range(4)]
        assert pool.next(0.01) is None
    assert sorted(done.task.task_id for done in found if done) == [0, 1, 2, 3]
    assert {done.worker for done in found if done and done.task.assigned > lost} == {"b"}  # assigned anew
    assert {done.worker for done in found if done and done.task.assigned <= lost} <= {"a"}
    assert len(set(second.asked)) == len(second.asked) == pool.redone >= 4 - answers.count("done")
    assert (pool.workers, len(notes)) == (1, 1)  # never two at once
    assert notes[0].startswith("the worker a was lost (")
    assert notes[0].endswith(f"); {pool.redone} tasks are done again elsewhere")


def test_a_workers_clock_is_read_in_the_middle_of_the_fastest_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of trips of 1,000, 400 and 700 ns, in the middle of which the worker's clock is 5,000 behind."""
    here = iter([10_000, 11_000, 20_000, 20_400, 30_000, 30_700])
    there = iter([10_400 - 5_000, 20_200 - 5_000, 30_300 - 5_000])
    monkeypatch.setattr("fredsim.runs.live.workers.CLOCK_READINGS", 3)
    monkeypatch.setattr("fredsim.runs.live.workers.time.monotonic_ns", lambda: next(here))
    assert _clock_offset(SimpleNamespace(clock=lambda: Answer(next(there)))) == 5_000


@pytest.mark.parametrize("lost", [2, 3])
def test_a_task_that_ends_every_worker_ends_the_run(lost: int) -> None:
    """As a user's model may; those that wait behind it, or are done before, are no cause."""
    actor, notes, left = Actor(), list[str](), [lost]
    answers = actor.compute

    def compute(client: int, number: int, task_id: int, params: object, rate: float) -> Answer:
        if task_id == 2 and left[0]:
            left[0] -= 1
            return Answer(OSError("it has gone"))
        return answers(client, number, task_id, params, rate)

    actor.compute = compute  # type: ignore[method-assign]
    make: Callable[[str], Any] = lambda address: actor  # noqa: E731
    found: list[int] = []

    def do_all(pool: DaskWorkers) -> None:
        while len(found) < 6:
            found.append(pool.next(20.0).task.task_id)  # type: ignore[union-attr]

    says = r"client 2, its task 7: 3 workers were lost while they computed it; the last, a \(OSError: it has gone"
    with pool_of(cast("Cluster", Workers(a=actor)), make, notes.append) as pool:
        for client in range(6):
            pool.begin(ClientTask(client, 7, client, PUSH, 0.0))
        with pytest.raises(ClusterError, match=says) if lost == 3 else nullcontext():
            do_all(pool)
    assert len(notes) == lost
    assert (2 in found) == (lost < 3)


def test_a_task_that_fails_ends_the_run_as_a_lost_cluster_does() -> None:
    """So that there is a checkpoint to go on from."""
    actor, answer = Actor(), Answer(0)
    answer.result = lambda timeout: SimulationError("client 0, its task 0: MemoryError")  # type: ignore[method-assign]
    actor.compute = lambda *arguments: answer  # type: ignore[method-assign]
    make: Callable[[str], Any] = lambda address: actor  # noqa: E731
    with pool_of(cast("Cluster", Workers(a=actor)), make, lambda note: None) as pool:
        pool.begin(ClientTask(0, 0, 0, PUSH, 0.0))
        with pytest.raises(ClusterError, match="client 0, its task 0: MemoryError; it was at the worker a"):
            pool.next(20.0)


def test_a_task_that_was_given_up_is_not_begun() -> None:
    """Neither while it waits for a worker, nor behind another task."""
    actor, cluster = Actor(), Workers()
    make: Callable[[str], Any] = lambda address: actor  # noqa: E731
    before = {*threading.enumerate()}
    with pool_of(cast("Cluster", cluster), make, lambda note: None) as pool:
        for task_id in range(40):
            pool.begin(ClientTask(task_id % 2, task_id // 2, task_id, PUSH, 0.0))
        cluster.actors = {"a": actor}
        found = {pool.next(20.0).task.task_id for _ in range(2)}  # type: ignore[union-attr]
    assert found == {38, 39} == {*actor.asked}
    for thread in {*threading.enumerate()} - before:  # those of the connections end with the run
        thread.join(20)
        assert not thread.is_alive()


class Passing(Workers):
    """One worker for a while, then none for a moment, then another."""

    asked = -(10**9)  # how often it was asked for them since the first had its task

    def workers(self) -> list[str]:
        """Return the addresses."""
        self.asked += 1
        return ["a"] if self.asked < 20 else ["b"] if self.asked > 20 else []


def test_a_worker_is_waited_for_as_long_after_any_length_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute from when the last one was there; nothing is waited for while one is."""
    seconds = itertools.count(step=5)  # each time that this thread looks at the clock
    here = threading.current_thread()
    passing = SimpleNamespace(
        monotonic=lambda: float(next(seconds)) if threading.current_thread() is here else 0.0,
        monotonic_ns=time.monotonic_ns,
        sleep=time.sleep,
    )
    monkeypatch.setattr("fredsim.runs.live.workers.time", passing)
    monkeypatch.setattr("fredsim.runs.live.workers.CHECK_SECONDS", 0.01)
    actors, cluster = {"a": Actor(None), "b": Actor()}, Passing()
    with pool_of(cast("Cluster", cluster), lambda address: actors[address], lambda note: None) as pool:
        pool.begin(ClientTask(0, 0, 0, PUSH, 0.0))
        cluster.asked = 0
        assert pool.next(None) is not None
    assert (pool.redone, actors["b"].asked) == (1, [0])


def test_a_worker_that_hangs_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its task takes much longer than those before."""
    monkeypatch.setattr("fredsim.runs.live.workers.CHECK_SECONDS", 0.02)
    monkeypatch.setattr("fredsim.runs.live.workers.SLOW_SECONDS", 0.1)
    actor, notes = Actor("done", None), list[str]()
    make: Callable[[str], Any] = lambda address: actor  # noqa: E731
    with pool_of(cast("Cluster", Workers(a=actor)), make, notes.append) as pool:
        for client in range(2):
            pool.begin(ClientTask(client, 5, client, PUSH, 0.0))
        assert pool.next(20.0) is not None
        for _ in range(200):  # of 20 ms; the machine may be busy
            assert notes or pool.next(0.02) is None
        assert notes
        assert pool.next(0.2) is None
    assert [note.partition(" for ")[0] for note in notes] == ["the worker a has been at task 5 of client 1"]


@pytest.mark.parametrize("time", [-(10**30), 10**30, 1.5, "noon"])
def test_a_clock_that_shows_no_time(time: Any) -> None:
    """Of any other clock, the times of a task are made to fit an event."""
    actor, notes = Actor(), list[str]()
    actor.clock = lambda: Answer(time)  # type: ignore[method-assign]
    make: Callable[[str], Any] = lambda address: actor  # noqa: E731
    with pool_of(cast("Cluster", Workers(a=actor)), make, notes.append) as pool:
        pool.begin(ClientTask(0, 0, 0, PUSH, 0.0))
        if isinstance(time, int):
            dispatcher = LiveDispatcher(pool)
            dispatcher.configure()
            order = dispatcher.draw(1)
            assert (order.client.tolist(), np.asarray(order.stages).min() >= 0) == ([0], True)
        else:
            assert pool.next(0.7) is None
            assert "does not start (" in notes[0]


@pytest.mark.parametrize(("began", "done"), [(2**61, 2**61 + 1), (2**61, 1), (7, 3), (-(2**61), 3), (-(2**61), -1)])
def test_times_are_in_order_though_clocks_drift_apart(began: int, done: int) -> None:
    """A task on another machine cannot begin after it is done, or be done after its push was received."""
    actor = Actor()
    actor.compute = lambda *arguments: Answer((PUSH, LOSSES, True, 0, 0, began, done))  # type: ignore[method-assign]
    make: Callable[[str], Any] = lambda address: actor  # noqa: E731
    with pool_of(cast("Cluster", Workers(a=actor)), make, lambda note: None) as pool:
        pool.begin(ClientTask(0, 0, 0, PUSH, 0.0))
        result = pool.next(20.0)
    assert result is not None
    assert 0 <= result.began <= result.done <= result.received


def test_a_worker_that_goes_while_it_starts_holds_nothing_up() -> None:
    """Dask keeps what was asked of it for its coming back; another one begins the run meanwhile."""
    first, second = Actor(), Actor()
    first.ready = lambda: Answer(None)  # type: ignore[method-assign]
    cluster = Workers(a=first)

    def make(address: str) -> Any:
        cluster.actors = {"b": second}
        return first if address == "a" else second

    with pool_of(cast("Cluster", cluster), make, lambda note: None) as pool:
        pool.begin(ClientTask(0, 0, 5, PUSH, 0.0))
        done = pool.next(20.0)
        assert done is not None
        assert (done.task.task_id, done.worker) == (5, "b")


OTHERS = [Basis("e", {}, {}, 3), Basis("d", {"mine": "1"}, {}, 3), Basis("d", {}, {}, 2), ("", "", 1)]


@pytest.mark.parametrize("other", OTHERS)
def test_a_worker_that_would_compute_something_else_gets_no_task(other: Any) -> None:
    """With other data, code or parameters: at the beginning the run is refused, later the worker."""
    first, second = Actor(), Actor()
    second.basis = other
    make: Callable[[str], Any] = lambda address: cluster.actors[address]  # noqa: E731
    cluster, notes = Workers(b=second), list[str]()
    with pytest.raises(ClusterError, match="the worker b: "), pool_of(cast("Cluster", cluster), make, notes.append):
        pass
    cluster.actors = {"a": first}
    with pool_of(cast("Cluster", cluster), make, notes.append) as pool:
        cluster.actors["b"] = second
        while not notes:
            assert pool.next(0.1) is None
        for client in range(4):
            pool.begin(ClientTask(client, 0, client, PUSH, 0.0))
        assert {pool.next(20.0).worker for _ in range(4)} == {"a"}  # type: ignore[union-attr]
    assert [note.partition(": ")[0] for note in notes] == ["the worker b gets no task"]


@pytest.mark.parametrize(
    "answer",
    [
        (),
        (PUSH[:2], LOSSES, True, 0, 0, 1, 2),
        (PUSH, PUSH, True, 0, 0, 1, 2),
        (PUSH, LOSSES, True, 0, 0, -(10**30), 2),
        (PUSH, LOSSES, True, 2**70, 0, 1, 2),
    ],
)
def test_a_push_of_another_size_reaches_no_kernel(answer: tuple[Any, ...]) -> None:
    make: Callable[[str], Any] = lambda address: Actor(answer)  # noqa: E731
    with pool_of(cast("Cluster", Workers(a=Actor())), make, lambda note: None) as pool:
        pool.begin(ClientTask(0, 0, 0, PUSH, 0.0))
        with pytest.raises(ClusterError, match=r"the worker a sent .*; restart it"):
            pool.next(20.0)


def test_a_worker_that_does_not_answer_is_named_once() -> None:
    cluster, notes = Workers(a=Actor()), list[str]()
    cluster.silent = ("the worker b does not answer",)  # type: ignore[assignment]
    make: Callable[[str], Any] = lambda address: cluster.actors[address]  # noqa: E731
    with pool_of(cast("Cluster", cluster), make, notes.append) as pool:
        assert pool.next(1.2) is None
    assert notes == ["the worker b does not answer; it gets no task"]


def test_processes_of_this_machine_have_its_folders(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of data and of modules; a worker elsewhere has a folder of data of its own."""
    given: list[tuple[Any, ...]] = []

    class Failing(Workers):
        def actor(self, kind: object, address: str, *arguments: Any, seconds: float) -> None:
            del kind, address, seconds
            given.append(arguments)
            raise OSError("it does not start")

    monkeypatch.setattr("fredsim.runs.live.live.local_cluster", lambda _: nullcontext(Failing(a=Actor())))
    monkeypatch.setattr("fredsim.runs.live.live.Cluster", lambda _, direct: nullcontext(Failing(a=Actor())))
    monkeypatch.setattr("fredsim.runs.live.workers.WAIT_SECONDS", 0.1)
    Path("apart").mkdir()
    path = small_yaml.rename("apart/small.yaml")
    for dask, root in ((None, Path("data").absolute()), ("tcp://127.0.0.1:1", None)):
        expansion = open_expansion(path)
        with pytest.raises(ClusterError, match="no worker for"):
            run_live(expansion, "out", root="data", dask=dask)
        assert given[-1][-2:] == ([Path.cwd(), Path("apart").absolute()], root)
