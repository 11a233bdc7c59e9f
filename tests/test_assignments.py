"""Which worker of a cluster does which run, and what is written of one, without a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fredsim
from fredsim.config.sweep.expansion import expand, open_source
from fredsim.errors import OutputError
from fredsim.runs.folder.results import Result
from fredsim.runs.many.cluster import Assignments, write_run
from fredsim.runs.many.tasks import Task
from fredsim.runs.processes.observer import Monitor

pytest.importorskip("distributed", reason="Dask is not installed: pip install .[cluster]")


class FakeFuture:
    """A task that is never done, or has failed on its worker."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return self.failure is not None

    def result(self, timeout: float) -> None:
        del timeout
        assert self.failure
        raise self.failure


class FakeClient:
    """Notes which run is given to which worker."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.given: list[tuple[str, str]] = []
        self.failure = failure

    def subscribe_topic(self, topic: str, told: Callable[..., None]) -> None:
        del topic, told

    def submit(self, do: object, task: Task, *others: object, **options: Any) -> FakeFuture:
        del do, others
        self.given.append((task.label, options["workers"][0]))
        return FakeFuture(self.failure)


def tasks(path: Path, count: int) -> list[Task]:
    runs = expand(open_source(path), [f"sweep={{seed: {list(range(count))}}}"]).runs
    return [Task(n, run.label, run.experiment, Path("out", run.label), None, {}) for n, run in enumerate(runs)]


def test_a_lost_run_is_the_next_to_be_done(small_yaml: Path) -> None:
    """Not the last: what it waits for is not the whole sweep."""
    client = FakeClient()
    assignments = Assignments(client, tasks(small_yaml, 4), Monitor(), lambda task, failure: None)
    for workers in (["a", "b"], ["b"], ["b", "c"], ["b", "c", "d"]):
        assignments.update(workers)
    assert client.given == [("seed=0", "a"), ("seed=1", "b"), ("seed=0", "c"), ("seed=2", "d")]


def test_a_worker_that_fails_by_itself_is_not_the_last_to_try(small_yaml: Path) -> None:
    """What a run does wrong comes as an answer; anything else is the machine's."""
    client, ended = FakeClient(OSError("no room")), list[str]()
    assignments = Assignments(client, tasks(small_yaml, 1), Monitor(), lambda task, failure: ended.append(str(failure)))
    for _ in range(4):
        assignments.update(["a"])
    assert client.given == [("seed=0", "a")] * 3
    assert ended == ["3 workers tried this run; the last, a, failed (OSError: no room)"]
    assert not assignments.busy


def test_the_files_of_a_run_come_with_its_summary_last(small_yaml: Path) -> None:
    """And without one where something fails: a folder stands in the way of the parameters."""
    result = fredsim.run(small_yaml, out="here")
    assert isinstance(result, Result)
    files = {path.name: path.read_bytes() for path in sorted(result.folder.iterdir())}
    (task,) = tasks(small_yaml, 1)
    write_run(task, files)
    assert {path.name: path.read_bytes() for path in task.folder.iterdir()} == files
    (task.folder / "params.safetensors").unlink()
    (task.folder / "params.safetensors" / "taken").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"out/seed=0/params.safetensors: cannot be written \(it is a folder\)"):
        write_run(task, dict(reversed(files.items())))
    assert not (task.folder / "summary.json").exists()
