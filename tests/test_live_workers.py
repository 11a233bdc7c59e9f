"""The workers of a live run, with workers made up: what becomes of tasks when one of them goes."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fredsim.runs.live.workers import DaskWorkers, _clock_offset
from fredsim.runs.many.cluster import Cluster
from fredsim.simulation.paths.live_pushes import ClientTask

PUSH = np.ones(3, np.float32)


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
        self.answers = list(answers)
        self.asked: list[int] = []

    def ready(self) -> Answer:
        """Return that it can compute."""
        return Answer((None, None, None))

    def clock(self) -> Answer:
        """Return its time."""
        return Answer(1)

    def compute(self, client: int, number: int, task_id: int, params: object, rate: float) -> Answer:
        """Do a task."""
        self.asked.append(task_id)
        answer = self.answers.pop(0) if self.answers else "done"
        if answer == "raises":
            raise RuntimeError("Worker holding Actor was lost.")
        return Answer((PUSH, np.zeros(1), True, 0, 0, 1, 2) if answer == "done" else answer)


class Workers:
    """A cluster whose workers are these actors, by their addresses."""

    def __init__(self, **actors: Actor) -> None:
        self.actors = actors

    def workers(self) -> list[str]:
        """Return the addresses."""
        return [*self.actors]

    def fits(self, address: str) -> bool:
        """Return that it has fredsim's version."""
        return True


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
    with DaskWorkers(cast("Cluster", cluster), make, notes.append, lambda: False) as pool:
        for client in range(4):
            pool.begin(ClientTask(client, 0, client, PUSH, 0.0))
        cluster.actors = {"b": second}  # it has another address when it comes again
        found = sorted(pool.next(20.0).task.task_id for _ in range(4))  # type: ignore[union-attr]
        assert pool.next(0.01) is None
    assert found == [0, 1, 2, 3]
    assert len(set(second.asked)) == len(second.asked) == pool.redone >= 4 - answers.count("done")
    assert (pool.workers, len(notes), "lost" in notes[0]) == (2, 1, True)


def test_a_workers_clock_is_read_in_the_middle_of_the_fastest_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of trips of 1,000, 400 and 700 ns, in the middle of which the worker's clock is 5,000 behind."""
    here = iter([10_000, 11_000, 20_000, 20_400, 30_000, 30_700])
    there = iter([10_400 - 5_000, 20_200 - 5_000, 30_300 - 5_000])
    monkeypatch.setattr("fredsim.runs.live.workers.CLOCK_READINGS", 3)
    monkeypatch.setattr("fredsim.runs.live.workers.time.monotonic_ns", lambda: next(here))
    assert _clock_offset(SimpleNamespace(clock=lambda: Answer(next(there)))) == 5_000


@pytest.mark.parametrize(("began", "done"), [(2**62, 2**62 + 1), (2**62, 1), (7, 3)])
def test_times_are_in_order_though_clocks_drift_apart(began: int, done: int) -> None:
    """A task on another machine cannot begin after it is done, or be done after its push was received."""
    actor = Actor()
    actor.compute = lambda *arguments: Answer((PUSH, np.zeros(1), True, 0, 0, began, done))  # type: ignore[method-assign]
    make: Callable[[str], Any] = lambda address: actor  # noqa: E731
    with DaskWorkers(cast("Cluster", Workers(a=actor)), make, lambda note: None, lambda: False) as pool:
        pool.begin(ClientTask(0, 0, 0, PUSH, 0.0))
        result = pool.next(20.0)
    assert result is not None
    assert result.began <= result.done <= result.received


def test_a_worker_that_goes_while_it_starts_holds_nothing_up() -> None:
    """Dask keeps what was asked of it for its coming back; another one begins the run meanwhile."""
    first, second = Actor(), Actor()
    first.ready = lambda: Answer(None)  # type: ignore[method-assign]
    cluster = Workers(a=first)

    def make(address: str) -> Any:
        cluster.actors = {"b": second}
        return first if address == "a" else second

    with DaskWorkers(cast("Cluster", cluster), make, lambda note: None, lambda: False) as pool:
        pool.begin(ClientTask(0, 0, 5, PUSH, 0.0))
        done = pool.next(20.0)
        assert done is not None
        assert (done.task.task_id, done.worker) == (5, "b")
