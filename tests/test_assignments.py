"""Which worker of a cluster does which run, and what is written of one, without a cluster."""

import errno
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.sweep.expansion import expand, open_source
from fredsim.errors import ClusterError, OutputError, SimulationError
from fredsim.numerics import CONTRACT
from fredsim.runs.checkpoint.checkpoints import NO_CHECKPOINTS, CheckpointPolicy, Checkpoints
from fredsim.runs.checkpoint.transfer import CheckpointSender, Chunk, read_resume_files, write_chunk, write_resume_files
from fredsim.runs.folder.results import Result
from fredsim.runs.many.cluster import Assignments, Cluster, write_run
from fredsim.runs.many.sweep import run_sweep
from fredsim.runs.many.tasks import Task
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.execution import execute
from fredsim.runs.single.prepared import Wanted

pytest.importorskip("distributed", reason="Dask is not installed: pip install .[cluster]")


class FakeFuture:
    """A task that is under way, has failed on its worker, or has returned something."""

    def __init__(self, outcome: Any = None) -> None:
        self.outcome = outcome

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return self.outcome is not None

    def result(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class FakeClient:
    """Notes which run is given to which worker, and the files with which it goes on."""

    def __init__(self, outcome: Any = None) -> None:
        self.full: dict[str, Exception] = {}  # what a worker answers that takes no files
        self.given: list[tuple[str, str]] = []
        self.files: list[dict[str, bytes]] = []
        self.futures: list[FakeFuture] = []
        self.outcome = outcome

    def subscribe_topic(self, topic: str, told: Callable[..., None]) -> None:
        del topic, told

    def scatter(self, values: list[Any], *, workers: list[str], **how: Any) -> list[Any]:
        assert isinstance(values, list)  # of a mapping, the keys would be those of the whole cluster
        assert how["timeout"] > 0
        if workers[0] in self.full:
            raise self.full[workers[0]]
        return values

    def submit(self, do: object, task: Task, topic: str, where: object, files: Any, **options: Any) -> FakeFuture:
        del do, topic, where
        self.given.append((task.label, options["workers"][0]))
        self.files.append(files)
        self.futures.append(FakeFuture(self.outcome))
        return self.futures[-1]


class Notes(Monitor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def tasks(path: Path, count: int, *changes: str, policy: CheckpointPolicy = NO_CHECKPOINTS) -> list[Task]:
    runs = expand(open_source(path), [*changes, f"sweep={{seed: {list(range(count))}}}"]).runs
    made = ((run.label, run.experiment, Path("out", run.label)) for run in runs)
    return [Task(n, *parts, None, Wanted(), policy) for n, parts in enumerate(made)]


def note_end(ended: dict[int, Exception | None], task: Task, failure: Exception | None) -> None:
    ended[task.number] = failure


class Sending(Observer):
    """Sends each checkpoint, as a worker does."""

    def __init__(self, send: Callable[[int], None]) -> None:
        self.checkpoint = send  # type: ignore[assignment, method-assign]


def worked(task: Task, scratch: Path, files: dict[str, bytes]) -> tuple[list[Chunk], dict[str, bytes]]:
    """Do a run as a worker does, from these files on; return the chunks that it sends, and its answer."""
    write_resume_files(scratch, files)
    sent: list[Chunk] = []
    here = Task(task.number, task.label, task.experiment, scratch, None, Wanted(), task.policy)
    assert here.do(Sending(CheckpointSender(scratch, sent.append, files)), lambda: False) is None
    return sent, {path.name: path.read_bytes() for path in scratch.iterdir() if path.is_file()}


def ends_of_checkpoints(chunks: list[Chunk]) -> list[int]:
    """Return after how many chunks there is a further checkpoint."""
    return [place + 1 for place, chunk in enumerate(chunks) if chunk[0].endswith(".json")]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what an answer that is there takes on a busy machine."""
    monkeypatch.setattr("fredsim.runs.many.cluster.ANSWER_SECONDS", 60.0)


@pytest.fixture
def each(monkeypatch: pytest.MonkeyPatch) -> CheckpointPolicy:
    """Write a checkpoint wherever that is possible, and try again at once after a failure."""
    monkeypatch.setattr("fredsim.runs.single.run.MOST_CHECKPOINT_SHARE", 1e9)
    monkeypatch.setattr("fredsim.runs.many.cluster.RETRY_SECONDS", 0.0)
    return CheckpointPolicy(1e-9)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[Chunk]:
    """The chunks that wait in the queue of the run under way."""
    chunks: list[Chunk] = []

    def get(batch: bool) -> list[Chunk]:
        assert batch
        found = chunks.copy()
        chunks.clear()
        return found

    made = SimpleNamespace(get=get, close=lambda: None)
    monkeypatch.setattr("fredsim.runs.many.cluster.make_queue", lambda client, key: made)
    return chunks


def test_a_run_of_other_files_is_refused(small_yaml: Path) -> None:
    """Those that its model or data are made from; not one that only one process has read, or has elsewhere."""
    fredsim.run(small_yaml, ["iterations=1"], out="first")
    name = "first/params.safetensors"
    (task,) = tasks(small_yaml, 1, f"model.initial={name}")
    digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    for files in ({name: "0" * 64}, {"there/params.safetensors": "0" * 64}, {name: "0" * 64, "more.txt": digest}):
        failure = replace(task, wanted=Wanted(files=files)).do(Observer(), lambda: False)
        assert isinstance(failure, SimulationError)
        assert "files than the one that started the sweep: params.safetensors; put the same ones" in str(failure)
        assert not task.folder.exists()
    both: dict[str, str] = {name: "0" * 64, "there/params.safetensors": digest}
    for files in ({}, {name: digest}, {"there/params.safetensors": digest, "more.txt": "0" * 64}, both):
        assert replace(task, wanted=Wanted(files=files)).do(Observer(), lambda: False) is None


PARTS = """
import numpy as np


class Parts:
    shape, dtype, files = (2,), "float32", ["one/part.npy", "other/part.npy"]

    def len(self, part):
        return {"train": 60, "test": 30}.get(part, 0)

    def rows(self, part, numbers):
        return np.zeros((len(numbers), 2), np.float32), numbers % 2
"""


def test_a_file_that_this_process_alone_has_read_is_no_other_one(small_yaml: Path) -> None:
    """Nor one that has the name of another, in another folder."""
    small_yaml.with_name("data_of_parts.py").write_text(PARTS, encoding="utf-8")
    for number, folder in enumerate(("one", "other")):
        Path(folder).mkdir()
        Path(folder, "part.npy").write_bytes(b"%d" % number)
    (task,) = tasks(small_yaml, 1, "data={name: 'python:data_of_parts:Parts'}", "iterations=1")
    digests = [hashlib.sha256(content).hexdigest() for content in (b"0", b"1", b"2")]
    for digest, done in zip(digests, (True, True, False), strict=True):
        failure = replace(task, wanted=Wanted(files={"there/part.npy": digest})).do(Observer(), lambda: False)
        assert (failure is None) == done, failure


class Queues:
    """The queues of a scheduler, by key, each with how many still have it; as Dask's, it is gone when none has it."""

    def __init__(self) -> None:
        self.holders: dict[str, int] = {}

    def __call__(self, client: object, key: str) -> SimpleNamespace:
        """Return the queue of a run, which here and on its worker is one more that has it."""
        del client
        self.holders[key] = self.holders.get(key, 0) + 1
        return SimpleNamespace(get=lambda batch: self.holders[key] and [], close=lambda: self.close(key))

    def close(self, key: str) -> None:
        """Let one go that has it."""
        if key in self.holders:
            self.holders[key] -= 1
            if not self.holders[key]:
                del self.holders[key]


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


def test_a_run_that_is_done_again_goes_on_from_its_new_checkpoints(
    small_yaml: Path, each: CheckpointPolicy, waiting: list[Chunk], tmp_path: Path
) -> None:
    """The record of the run that has ended, and what belongs to it, give way to the first checkpoint."""
    fredsim.run(small_yaml, ["seed=0", "probe={every: 10}", "evaluation.every=5"], out="out/seed=0")
    (task,) = tasks(small_yaml, 1, "evaluation.every=5", policy=each)
    client = FakeClient()
    assignments = Assignments(client, [task], Monitor(), lambda task, failure: None)
    assignments.update(["a"])
    assert (client.files, (task.folder / "summary.json").exists()) == ([{}], True)
    sent, answer = worked(task, tmp_path / "a", {})
    waiting += sent[: ends_of_checkpoints(sent)[1]]
    assignments.update(["a"])
    assert {path.name for path in task.folder.iterdir()} == {"config.yaml", "metrics.csv", "checkpoint"}
    assignments.update(["b"])  # the first one is lost
    (last,) = Checkpoints(task.folder).iterations[-1:]
    assert {f"checkpoint/{last:012d}.json", "metrics.csv"} <= client.files[1].keys()
    assert 0 < last < 50
    sent, goes_on = worked(task, tmp_path / "b", dict(client.files[1]))
    assert all(begin for name, begin, _ in sent if name == "metrics.csv")
    waiting += sent
    client.futures[1].outcome = goes_on
    assignments.update(["b"])
    assert not assignments.busy
    found = {path.name: path.read_bytes() for path in task.folder.iterdir()}
    assert found.pop("summary.json") == goes_on["summary.json"]
    assert found == {name: content for name, content in answer.items() if name != "summary.json"}
    assert Result(task.folder).changed_files == []


@pytest.mark.parametrize("error", [TimeoutError("No valid workers found"), KeyError("tcp://a"), OSError("closed")])
def test_a_run_with_a_checkpoint_is_never_begun_anew(
    error: Exception, small_yaml: Path, each: CheckpointPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that does not take the files, as it is paused or has gone, gets no run; another one does it."""
    monkeypatch.setattr("fredsim.runs.many.cluster.make_queue", Queues())
    task, other = tasks(small_yaml, 2, "evaluation.every=5", policy=each)
    sent, _ = worked(task, tmp_path / "a", {})
    task.folder.mkdir(parents=True)
    (task.folder / "config.yaml").write_bytes(sent[0][2])
    for chunk in sent[1 : ends_of_checkpoints(sent)[1]]:
        write_chunk(task.folder, chunk, keep=False)
    files = read_resume_files(task.folder)
    assert len(files) == 4
    client, monitor = FakeClient(), Notes()
    client.full["a"] = error
    assignments = Assignments(client, [task, other], monitor, lambda task, failure: None)
    assignments.update(["a"])
    assert client.given == []
    assignments.update(["a", "b"])
    assert (client.given[0], client.files[0]) == (("seed=0", "b"), files)
    assert read_resume_files(task.folder) == files
    assert [text.partition(" (")[0] for text in monitor.texts] == [
        "the worker a does not take the checkpoint of seed=0"
    ]


def test_no_queue_is_left_at_the_scheduler(small_yaml: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a run that has ended, whose worker is lost, that has failed there, or that is left."""
    queues = Queues()
    monkeypatch.setattr("fredsim.runs.many.cluster.make_queue", queues)
    given = tasks(small_yaml, 4, policy=CheckpointPolicy(1.0))
    client = FakeClient()
    assignments = Assignments(client, given, Monitor(), lambda task, failure: None)
    assignments.update(["a", "b", "c", "d"])
    keys = [*queues.holders]
    assert len(keys) == 4
    for key in keys:
        queues(None, key)  # on its worker
    _, client.futures[0].outcome = worked(given[0], tmp_path / "a", {})
    client.futures[1].outcome = OSError("no room")
    for key in keys[:2]:
        queues.close(key)  # as these two have ended there
    assignments.update(["a", "b", "d"])  # "c" is lost
    assert keys[3] in queues.holders
    assert not {*keys[:3]} & {*queues.holders}
    assignments.close()
    assert queues.holders[keys[3]] == 1  # its worker's, which is told to stop
    for key in {*queues.holders} - {keys[3]}:
        assert key not in keys  # those of the runs that are done again, which no worker has begun here
        queues.close(key)
    queues.close(keys[3])
    assert queues.holders == {}


def test_a_scheduler_that_was_started_again_is_a_lost_one(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know the queues of the runs."""
    queues = Queues()
    monkeypatch.setattr("fredsim.runs.many.cluster.make_queue", queues)
    assignments = Assignments(
        FakeClient(), tasks(small_yaml, 1, policy=CheckpointPolicy(1.0)), Monitor(), lambda *_: None
    )
    assignments.update(["a"])
    queues.holders.clear()
    with pytest.raises(OSError, match="it was started again"):
        assignments.update(["a"])


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_what_could_not_be_written_is_written_later(
    at: int, small_yaml: Path, each: CheckpointPolicy, waiting: list[Chunk], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A full disk, for a while: nothing is missing in the checkpoints that come after it."""
    (task,) = tasks(small_yaml, 1, "evaluation.every=5", policy=each)
    sent, _ = worked(task, tmp_path / "a", {})
    calls: Iterator[int] = iter(range(1000))

    def write(*arguments: Any, **how: Any) -> int | None:
        if at <= next(calls) < at + 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_chunk(*arguments, **how)

    monkeypatch.setattr("fredsim.runs.many.cluster.write_chunk", write)
    monitor, client = Notes(), FakeClient()
    assignments = Assignments(client, [task], monitor, lambda task, failure: None)
    assignments.update(["a"])
    for begin, end in pairwise([0, *ends_of_checkpoints(sent)][:5]):
        waiting += sent[begin:end]
        for _ in range(3):
            assignments.update(["a"])
        assert Checkpoints(task.folder).iterations[-1] == int(Path(sent[end - 1][0]).stem)
        assert list(Checkpoints(task.folder).faults()) == []
    assert len(monitor.texts) == 1
    assert (
        "cannot be written yet: out/seed=0: cannot be written (No space left on device); make room" in monitor.texts[0]
    )


def test_a_part_that_is_missing_costs_no_earlier_checkpoint(
    small_yaml: Path, each: CheckpointPolicy, waiting: list[Chunk], tmp_path: Path
) -> None:
    (task,) = tasks(small_yaml, 1, "evaluation.every=5", policy=each)
    sent, _ = worked(task, tmp_path / "a", {})
    monitor, client = Notes(), FakeClient()
    assignments = Assignments(client, [task], monitor, lambda task, failure: None)
    assignments.update(["a"])
    first, *_, last = ends_of_checkpoints(sent)
    waiting += sent[:first]
    assignments.update(["a"])
    kept = Checkpoints(task.folder).iterations
    gone = next(n for n in range(first, last) if sent[n][0] == "metrics.csv" and sent[n][2])
    waiting += sent[first:gone] + sent[gone + 1 :]
    assignments.update(["a"])
    assignments.update(["a"])
    assert Checkpoints(task.folder).iterations == kept
    assert f"checkpoint/{kept[-1]:012d}.json" in read_resume_files(task.folder)
    assert [text.partition(" is lost: it refers to ")[0] for text in monitor.texts] == [
        "a checkpoint of seed=0 from the worker a"
    ]


def test_checkpoints_that_are_to_be_kept_are_all_there(
    small_yaml: Path, each: CheckpointPolicy, waiting: list[Chunk], tmp_path: Path
) -> None:
    """When they have come from the worker, and when the run has ended."""
    (task,) = tasks(small_yaml, 1, "evaluation.every=10", policy=replace(each, keep=True))
    sent, answer = worked(task, tmp_path / "a", {})
    there = Checkpoints(tmp_path / "a").iterations
    assert len(there) > 2
    ended, client = list[Exception | None](), FakeClient()
    assignments = Assignments(client, [task], Monitor(), lambda task, failure: ended.append(failure))
    assignments.update(["a"])
    waiting += sent
    assignments.update(["a"])
    assert Checkpoints(task.folder).iterations == there
    client.futures[0].outcome = answer
    assignments.update(["a"])
    assert (ended, Checkpoints(task.folder).iterations) == ([None], there)
    assert list(Checkpoints(task.folder).faults()) == []


def test_rows_that_the_experiment_does_not_give(
    small_yaml: Path, each: CheckpointPolicy, waiting: list[Chunk], tmp_path: Path
) -> None:
    """The worker fills them in: they are in its config.yaml, and so here from the first checkpoint on."""
    rng = np.random.default_rng(0)
    np.savez("own.npz", x_train=rng.random((60, 3)), y_train=np.arange(60) % 2, x_test=np.ones((4, 3)),
             y_test=np.arange(4) % 2)  # fmt: skip
    (task,) = tasks(small_yaml, 1, "data={name: 'npz:own.npz'}", policy=each)
    sent, answer = worked(task, tmp_path / "a", {})
    assert task.experiment.plain()["data"]["train"] is None
    ended: list[Exception | None] = []
    client = FakeClient()
    assignments = Assignments(client, [task], Monitor(), lambda task, failure: ended.append(failure))
    assignments.update(["a"])
    waiting += sent
    client.futures[0].outcome = answer
    assignments.update(["a"])
    assert ended == [None]
    assert Result(task.folder).config["data"]["train"] == 50
    for content in (b"", b"- 1", b"\xff", answer["config.yaml"].replace(b"train: 50", b"train: x"),
                    answer["config.yaml"].replace(b"seed: 0", b"seed: 1")):  # fmt: skip
        assert content != answer["config.yaml"]
        monitor = Notes()
        assignments = Assignments(FakeClient(), [task], monitor, lambda task, failure: None)
        assignments.update(["a"])
        waiting += [("config.yaml", 0, content), *sent[1:]]
        assignments.update(["a"])
        assert len(monitor.texts) == 1
        assert "is lost" in monitor.texts[0]


def test_a_run_that_gets_further_may_lose_any_number_of_workers(
    small_yaml: Path, each: CheckpointPolicy, waiting: list[Chunk], tmp_path: Path
) -> None:
    """As on a cluster whose jobs end; one that gets no further is given up after three."""
    (task,) = tasks(small_yaml, 1, "evaluation.every=5", policy=each)
    sent, _ = worked(task, tmp_path / "a", {})
    ends = [0, *ends_of_checkpoints(sent)][:6]
    assert len(ends) == 6
    ended: list[str] = []
    client = FakeClient()
    assignments = Assignments(client, [task], Monitor(), lambda task, failure: ended.append(str(failure)))
    assignments.update(["0"])
    for number, (begin, end) in enumerate(pairwise(ends), start=1):
        waiting += sent[: 1 if begin else 0] + sent[begin:end]
        assignments.update([str(number - 1)])
        assignments.update([str(number)])
        assert ended == []
    waiting += sent[: ends[1]]  # it began anew, and came no further than it was
    for number in range(6, 8):
        assignments.update([str(number)])
    assert ended == ["3 workers tried this run; the last, 6, was lost"]


def test_an_answer_that_is_damaged_is_its_workers_failure(small_yaml: Path, tmp_path: Path) -> None:
    """It is tried again elsewhere, and costs the sweep nothing."""
    task, other = tasks(small_yaml, 2)
    (_, answer), (_, of_other) = worked(task, tmp_path / "a", {}), worked(other, tmp_path / "b", {})
    for name, content in (
        ("summary.json", b""), ("summary.json", b"{}"), ("summary.json", b"[]"), ("summary.json", b"{" * 10**5),
        ("summary.json", answer["summary.json"].replace(b"finished", b"diverged")), ("summary.json", b"\xff"),
        ("summary.json", of_other["summary.json"]), ("metrics.csv", answer["metrics.csv"][:-1]),
        ("params.safetensors", b""), ("config.yaml", b"name: x\n"), ("config.yaml", b"\xff"), ("config.yaml", b"1"),
        ("probe.csv", b""),
    ):  # fmt: skip
        ended: dict[int, Exception | None] = {}
        client, on_end = FakeClient(), partial(note_end, ended)
        assignments = Assignments(client, [task, other], Monitor(), on_end)
        assignments.update(["a", "b"])
        client.futures[0].outcome, client.futures[1].outcome = answer | {name: content}, of_other
        assignments.update(["a", "b"])
        assert ended == {1: None}, name
        assert client.given[2:] == [("seed=0", "a")]
        client.futures[2].outcome = answer
        assignments.update(["a", "b"])
        assert ended == {0: None, 1: None}
        assert not assignments.busy


def test_a_worker_has_the_data_of_this_machine_or_does_no_run(small_yaml: Path, tmp_path: Path) -> None:
    """A file of MNIST and one of Fashion-MNIST have one name, so that a run is given the digest of all samples."""
    given: list[Task] = []
    cluster: Any = SimpleNamespace(run=lambda tasks, *_: given.extend(tasks))
    expansion = expand(open_source(small_yaml), ["sweep={seed: [0, 1]}"])
    how: dict[str, Any] = {"resume": False, "jobs": None, "cluster": cluster, "policy": NO_CHECKPOINTS}
    run_sweep(expansion, Path("swept"), None, Monitor(), lambda: False, **how)
    digest = expansion.runs[0].experiment.load(tmp_path).digest
    assert [task.wanted.data for task in given] == [digest] * 2
    fits = replace(given[0], folder=tmp_path / "a", wanted=Wanted(data=digest))
    other = replace(given[0], folder=tmp_path / "b", wanted=Wanted(data="0"))
    assert fits.do(Observer(), lambda: False) is None
    assert Result(fits.folder).summary["data"] == digest
    assert str(other.do(Observer(), lambda: False)).startswith("the process that does this run has other data than")
    assert not other.folder.exists()


def test_a_checkpoint_on_other_data_is_not_continued(small_yaml: Path) -> None:
    """Whose file has the same name, and whose samples are as many: half of the run would be on each."""
    rng = np.random.default_rng(0)
    notes, said = list[str](), Observer()
    said.note = notes.append  # type: ignore[assignment, method-assign]
    (task,) = tasks(small_yaml, 1, "data={name: 'npz:own.npz'}", "evaluation.every=5")
    for stop_at in (20, None):
        x = rng.random((60, 3))
        np.savez("own.npz", x_train=x, y_train=np.arange(60) % 2, x_test=x[:4], y_test=np.arange(4) % 2)
        execute(task.experiment, task.folder, stop_at=stop_at, policy=CheckpointPolicy(60.0), observer=said)
    assert len(notes) == 1
    assert "000000000020.json: cannot be used (its data is " in notes[0]


def test_files_that_the_run_does_not_write_any_more_are_removed(small_yaml: Path, tmp_path: Path) -> None:
    fredsim.run(small_yaml, ["seed=0", "probe={every: 10}"], out="out/seed=0")
    (task,) = tasks(small_yaml, 1)
    assert (task.folder / "probe.csv").exists()
    _, answer = worked(task, tmp_path / "a", {})
    write_run(task, answer)
    assert {path.name: path.read_bytes() for path in task.folder.iterdir()} == answer
    assert Result(task.folder).changed_files == []


class Scheduler:
    """In place of distributed.Client: workers that answer, each with a version, an error, or never (None).

    `contract` is what they have of the numerics contract, or the error that they get.
    """

    def __init__(self, contract: object = CONTRACT, **answers: Any) -> None:
        self.contract, self.answers, self.closed = contract, answers, False
        self.asked: list[str] = []
        self.go_on = threading.Event()

    def __call__(self, address: str, **how: Any) -> "Scheduler":
        return self

    def nthreads(self) -> dict[str, int]:
        if "lost" in self.answers:
            raise OSError("the connection was closed")
        return dict.fromkeys(self.answers, 1)

    def run(self, function: object, name: str, *, workers: list[str], on_error: str) -> dict[str, Any]:
        assert on_error == "return"
        if name == "fredsim.numerics:CONTRACT":
            return dict.fromkeys(workers, self.contract)
        assert name == "fredsim:__version__"
        self.asked += workers
        if any(self.answers[worker] is None for worker in workers):
            self.go_on.wait(300)
        return {worker: self.answers[worker] or fredsim.__version__ for worker in workers}

    def close(self) -> None:
        self.closed = True


def test_a_worker_that_cannot_be_reached_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named once, and is a worker like others when it answers."""
    monkeypatch.setattr("fredsim.runs.many.cluster.CONNECT_SECONDS", 1.0)
    scheduler = Scheduler(a=fredsim.__version__, b=None, c=OSError("gone"))
    monkeypatch.setattr("distributed.Client", scheduler)
    with Cluster("tcp://127.0.0.1:1") as cluster:
        assert [cluster.workers() for _ in range(5)] == [["a"]] * 5
        assert sorted(scheduler.asked) == ["a", "b", "c"]  # not again and again
        scheduler.answers["d"] = fredsim.__version__
        assert cluster.workers(60.0) == ["a", "d"]
        assert [silence.partition(" does not answer")[0] for silence in cluster.silent] == [
            "the worker b",
            "the worker c",
        ]
        monkeypatch.setattr("fredsim.runs.many.cluster.ASK_SECONDS", 0.0)
        scheduler.answers["c"] = fredsim.__version__
        assert set(cluster.workers(60.0)) == {"a", "c", "d"}
        scheduler.go_on.set()
        while len(cluster.workers()) < 4:
            pass
        assert cluster.silent == []
    assert scheduler.closed


def test_a_worker_that_comes_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been restarted with another version, at the address that it had."""
    scheduler = Scheduler(a=fredsim.__version__, b=fredsim.__version__)
    monkeypatch.setattr("distributed.Client", scheduler)
    with Cluster("tcp://127.0.0.1:1") as cluster:
        assert [cluster.fits(worker) for worker in cluster.workers(60.0)] == [True, True]
        del scheduler.answers["b"]
        assert cluster.workers(60.0) == ["a"]
        scheduler.answers["b"] = "0.0.9"
        assert [(worker, cluster.fits(worker)) for worker in cluster.workers(60.0)] == [("a", True), ("b", False)]
        assert cluster.misfit("b").startswith("the worker b has fredsim 0.0.9")
    assert sorted(scheduler.asked) == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [
        (Scheduler(lost=None), "no scheduler answers"), (Scheduler(a="0.0.9"), "has fredsim 0.0.9, this is"),
        (Scheduler(a=ImportError("no module")), "has fredsim none, this is"),
        # A checkout of another day: the version is the same until the next release.
        (Scheduler(CONTRACT - 1, a=fredsim.__version__), f"{fredsim.__version__} with other numerics, this is"),
        (Scheduler(AttributeError("it has none"), a=fredsim.__version__), "with other numerics, this is"),
        (Scheduler(OSError("gone"), a=fredsim.__version__), None),
    ],
)  # fmt: skip
def test_a_connection_that_is_of_no_use_is_closed(
    scheduler: Scheduler, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.Client", scheduler)
    if says is None:  # nobody knows what it has: it is asked again later, and gets no run before
        with Cluster("tcp://127.0.0.1:1") as cluster:
            assert cluster.workers() == []
        return
    with pytest.raises(ClusterError, match=says):
        Cluster("tcp://127.0.0.1:1")
    assert scheduler.closed


@pytest.mark.parametrize(("address", "says"), [("nowhere", "missing port"), ("wire://x:1", "unknown address scheme")])
def test_no_connection_is_tried_at_what_is_no_address(address: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take its time to give up."""
    monkeypatch.setattr("distributed.Client", Scheduler(a=fredsim.__version__))
    with pytest.raises(ClusterError, match=rf"no scheduler answers at '{address}' \({says}"):
        Cluster(address)
