"""Does the runs of a sweep on a Dask cluster: one run at a time on each worker; the files come back to this machine.

Each run is bound to one worker, so it can use all its threads; when a worker is lost, only its run goes to another one.
Workers may join and leave during the sweep.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import Any, Self
from uuid import uuid4

from fredsim.config.document import dump_yaml
from fredsim.config.experiment import Experiment
from fredsim.config.yaml.plain_yaml import parse_yaml
from fredsim.errors import (
    ClusterError,
    FredsimError,
    OutputError,
    SimulationError,
    needs,
    one_line,
    option,
)
from fredsim.numerics import CONTRACT
from fredsim.plugins.modules import search_folders
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.checkpoint.transfer import (
    GROWING,
    Chunk,
    check_chunk,
    make_queue,
    read_resume_files,
    write_chunk,
)
from fredsim.runs.folder.folders import claim, locked
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import FILES, summary_text
from fredsim.runs.folder.summary_types import fault_of_summary
from fredsim.runs.many.tasks import OnEnd, Task
from fredsim.runs.processes.callbacks import call, from_text
from fredsim.runs.processes.isolation import note_code
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.execution import remove_earlier
from fredsim.system.files import write_atomic, write_errors
from fredsim.system.json_files import parse_json
from fredsim.system.version import fredsim_version

__all__ = ["ATTEMPTS", "Cluster"]

CONNECT_SECONDS = 10
ANSWER_SECONDS = 0.2  # to wait for an answer that may be there at once, before going on without it
ASK_SECONDS = 5.0  # between two tries to ask a worker for its version
POLL_SECONDS = 0.1
ROWS = ("train", "validation")  # keys of data that a run fills in
RETRY_SECONDS = 5.0  # between two tries to write a checkpoint, or to send one
#: So many workers may fail at a run, without a checkpoint in between, or at a live run's task, before it is the cause.
ATTEMPTS = 3


class Cluster:
    """A connection to a scheduler, used in a `with` statement.

    Raises ConfigError if the package `distributed` is missing; ClusterError if no scheduler answers, or if it has
    workers and none of them has this version of fredsim.
    """

    def __init__(self, address: str, security: Any = None, *, direct: bool = False) -> None:
        """Connect to a scheduler; with `direct` also to its workers themselves, if they can be reached.

        `security` has the certificates for it, a `distributed.Security`; None: those of Dask's configuration, if any.
        """
        with needs(f"dask: '{address}'", "Dask's distributed", "cluster"):
            import distributed
        self._address = address
        self._versions: dict[str, str] = {}  # by worker, the version of fredsim, and whether its numerics are others
        self._questions: dict[str, Question] = {}  # by worker, that for its version
        client = None
        try:
            distributed.comm.get_address_host_port(address)  # a Client of a bad address closes slowly
            client = self._client = distributed.Client(
                address, timeout=CONNECT_SECONDS, security=security, set_as_default=False, direct_to_workers=direct
            )
            workers = self.workers(CONNECT_SECONDS)
            if workers and not any(map(self.fits, workers)):
                raise ClusterError(*(f"dask: {self.misfit(worker)}" for worker in workers))
        except (ClusterError, OSError, TypeError, ValueError) as error:
            if client is not None:
                client.close()
            if isinstance(error, ClusterError):
                raise
            raise ClusterError(
                f"dask: no scheduler answers at '{address}' ({str(error).partition(chr(10))[0]}); "
                "start one by `dask scheduler`, and give the address that it prints, such as tcp://127.0.0.1:8786; "
                "if it has certificates, Dask's configuration must name them here, too"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection: runs under way are cancelled and stop soon; the cluster itself keeps running."""
        self._client.close()

    def run(self, tasks: Sequence[Task], monitor: Monitor, stop: Callable[[], bool], on_end: OnEnd) -> None:
        """Do the tasks, and call `on_end` when one ends. Raises ClusterError if the scheduler is lost."""
        assignments = Assignments(self._client, tasks, monitor, on_end)
        noted: set[str] = set()

        def note(text: str) -> None:
            if text not in noted:
                noted.add(text)
                monitor.note(text)

        try:
            while assignments.busy and not stop():
                workers = self.workers()
                for worker in workers:
                    if not self.fits(worker):
                        note(f"{self.misfit(worker)}; it gets no run")
                for silence in self.silent:
                    note(f"{silence}; it gets no run")
                if not workers and not self._questions:
                    note(f"no worker at {self._address} yet; waiting for one …")
                assignments.update([worker for worker in workers if self.fits(worker)])
                time.sleep(POLL_SECONDS)
        except OSError as error:
            raise ClusterError(
                f"dask: the scheduler at {self._address} was lost ({error}); what has finished is kept, "
                f"{option('resume', 'True')} continues with the rest"
            ) from None
        finally:
            assignments.close()

    def actor(self, kind: type, address: str, *arguments: object, seconds: float) -> Any:
        """Create an actor, an object whose methods run at the worker `address`, within `seconds` seconds.

        It must have a method `clock`, which is called once to see whether the worker can be reached directly; if not,
        all later calls go through the scheduler. Raises OSError, RuntimeError.
        """
        key = f"{kind.__name__}-{uuid4().hex}"
        options: dict[str, Any] = {"key": key, "workers": [address], "allow_other_workers": False}
        with self._client.as_current():
            actor = self._client.submit(kind, *arguments, actor=True, **options).result(timeout=seconds)
            clock = actor.clock  # looked up in this context, so that it knows this client
        if self._client.direct_to_workers:
            try:
                clock().result(timeout=CONNECT_SECONDS)
            except (OSError, TimeoutError):
                self._client.direct_to_workers = False
        return actor

    def workers(self, seconds: float = ANSWER_SECONDS) -> list[str]:
        """Return the addresses of the workers whose version of fredsim is known. Raises OSError.

        Workers that are new are asked for it, and given these seconds to answer. One that the scheduler cannot reach
        answers much later, or never: nobody waits for it.
        """
        present: list[str] = list(self._client.nthreads())
        for gone in set(self._versions) - set(present):  # what starts at this address next may have another version
            del self._versions[gone]
        begun, now = [], time.monotonic()
        for worker in present:
            asked = self._questions.get(worker)
            failed = asked is not None and asked.call.done() and now - asked.last > ASK_SECONDS  # some time ago
            if worker not in self._versions and (asked is None or failed):
                begun.append(in_thread(partial(self._ask, worker)))
                self._questions[worker] = Question(asked.first if asked else now, now, begun[-1])
        wait(begun, max(0.0, now + seconds - time.monotonic()))
        known = [worker for worker in present if worker in self._versions]  # in which an answer may arrive meanwhile
        self._questions = {worker: self._questions[worker] for worker in present if worker not in known}
        return known

    def _ask(self, worker: str) -> None:
        """Ask a worker for its version of fredsim; it may take long, and the worker may go meanwhile."""
        version, contract = (self._found(worker, name) for name in ("fredsim:__version__", "fredsim.numerics:CONTRACT"))
        if isinstance(version, ImportError):
            self._versions[worker] = "none"
        elif isinstance(version, str) and contract == CONTRACT:
            self._versions[worker] = version
        elif isinstance(version, str) and isinstance(contract, int | ImportError | AttributeError):
            self._versions[worker] = f"{version} with other numerics"  # of another day, between two releases
        # anything else means that the worker has gone

    def _found(self, worker: str, name: str) -> Any:
        """Return what a worker has under a name as module:attribute, or the error that it got; None: it has gone."""
        return self._client.run(resolve_name, name, workers=[worker], on_error="return").get(worker)

    @property
    def silent(self) -> list[str]:
        """The messages about the workers that have not answered for long."""
        now = time.monotonic()
        late = [worker for worker, asked in self._questions.items() if now - asked.first > CONNECT_SECONDS]
        why = "does not answer the scheduler; see whether it hangs, or a firewall is between the two"
        return [f"the worker {worker} {why}" for worker in late]

    def fits(self, worker: str) -> bool:
        """Return whether a worker has this version of fredsim, and its numerics contract."""
        return self._versions[worker] == fredsim_version()

    def misfit(self, worker: str) -> str:
        """Return the message about a worker with another version of fredsim."""
        return (
            f"the worker {worker} has fredsim {self._versions[worker]}, this is {fredsim_version()}; "
            "install the same version in both places"
        )


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function that may take long or hang, in a thread that nobody has to wait for."""
    call: Future[Any] = Future()

    def run() -> None:
        try:
            call.set_result(function())
        except Exception as error:  # of any type, as `result` raises it
            call.set_exception(error)
        except BaseException:  # such as asyncio's, of a task that was cancelled: nobody may wait forever
            call.set_result(None)
            raise

    threading.Thread(target=run, daemon=True).start()
    return call


@dataclass(frozen=True)
class Question:
    """What a worker was asked: when for the first time, when last, and the call that waits for the answer."""

    first: float
    last: float
    call: Future[Any]


@dataclass
class Assignment:
    """A run on a worker."""

    task: Task
    future: Any
    queue: Any
    """The queue through which the run's checkpoints come; None if it writes none."""
    chunks: deque[Chunk] = field(default_factory=deque)
    """What has been taken from the queue, and is not written yet."""
    config: str = ""
    """The content of the run's config.yaml, once that has come."""
    next_try: float = 0.0
    """When to write again, after this machine could not."""
    failure: str = ""
    """Why it could not."""
    given_up: bool = False
    """Whether no further checkpoints are written, because a part of one is missing or wrong."""
    answer: Future[Any] | None = None
    """What fetches the run's files from the worker, when the run has ended."""

    def close_queue(self, *, lost: bool = False) -> None:
        """Free the queue, with what waits in it, as the scheduler does when all who made it have closed it.

        That are this process and the worker, which closes it when the run ends there, unless it is `lost`.
        """
        for _ in range(0 if self.queue is None else 2 if lost else 1):
            self.queue.close()

    def fetched(self) -> bool:
        """Return whether the answer is here; begin to fetch it, which takes long if files are large."""
        if self.answer is None:
            self.answer = in_thread(self.future.result)
        return bool(wait([self.answer], ANSWER_SECONDS).done)


class Assignments:
    """The assignment of runs to workers: which worker does which run, and which runs are waiting for a worker."""

    def __init__(self, client: Any, tasks: Sequence[Task], monitor: Monitor, on_end: OnEnd) -> None:
        self._client = client
        self._queue = deque(tasks)
        self._running: dict[str, Assignment] = {}  # by worker
        self._next_try: dict[str, float] = {}  # by worker that did not take a checkpoint, when to send one again
        self._monitor = monitor
        self._on_end = on_end
        self._losses: Counter[int] = Counter()  # by run, how many workers it lost since it last got further
        self._reached: dict[int, int] = {}  # by run, the iteration of the latest checkpoint that has come
        self._observers: dict[int, Observer] = {}  # of the runs under way, by number
        self._lock = threading.Lock()  # guards the observers: Dask's client delivers events in a thread of its own
        self._topic = f"fredsim-{uuid4().hex}"
        client.subscribe_topic(self._topic, self._on_event)

    def close(self) -> None:
        """Leave the runs under way: free what the scheduler has of them, which it keeps for as long as it runs."""
        for run in self._running.values():
            run.close_queue()

    @property
    def busy(self) -> bool:
        """Whether a run is waiting or under way."""
        return bool(self._queue or self._running)

    def update(self, workers: Sequence[str]) -> None:
        """Collect the runs that have ended, requeue those whose worker was lost, and give free workers new runs."""
        for worker, run in list(self._running.items()):
            self._take_checkpoints(worker, run)
            if worker not in workers or run.future.cancelled():
                del self._running[worker]
                run.close_queue(lost=True)
                self._retry(worker, run.task)
            elif run.future.done() and run.fetched():
                del self._running[worker]
                run.close_queue()
                self._collect(worker, run)
        for worker in workers:
            if worker not in self._running and self._queue and self._next_try.get(worker, 0.0) <= time.monotonic():
                self._submit(worker, self._queue.popleft())

    def _submit(self, worker: str, task: Task) -> None:
        """Give a run to a worker; put it back if the worker does not take the checkpoint that the run goes on from."""
        from fredsim.runs.many.remote import run_on_worker

        files: Any = {} if Result(task.folder).has_finished else read_resume_files(task.folder)
        if files:
            try:  # as one value: of a mapping, the names would be keys of the whole cluster, which other runs have, too
                (files,) = self._client.scatter([files], workers=[worker], hash=False, timeout=ANSWER_SECONDS)
            except (OSError, KeyError) as error:  # it is paused, or has gone
                self._queue.appendleft(task)
                if worker not in self._next_try:
                    self._monitor.note(
                        f"the worker {worker} does not take the checkpoint of {task.label} ({type(error).__name__}), "
                        f"perhaps as its memory is full; it is tried again every {RETRY_SECONDS:.0f} s"
                    )
                self._next_try[worker] = time.monotonic() + RETRY_SECONDS
                return
        with self._lock:
            if task.number not in self._observers:
                self._observers[task.number] = self._monitor.observer()
        key = f"{task.folder.name}-{uuid4().hex}"
        options: dict[str, Any] = {"key": key, "workers": [worker], "allow_other_workers": False}
        queue = make_queue(self._client, key) if task.policy.seconds else None
        future = self._client.submit(run_on_worker, task, self._topic, search_folders(), files, **options)
        self._running[worker] = Assignment(task, future, queue)

    def _take_checkpoints(self, worker: str, run: Assignment) -> None:
        """Write the chunks of checkpoints that a worker has sent.

        While this machine cannot write, the run continues, and no more are taken: the worker sends again what it could
        not. After a chunk that is missing or wrong, no further ones are written: the checkpoints that are here stay.
        """
        now = time.monotonic()
        if run.queue is None or now < run.next_try:
            return
        if not run.chunks:
            try:
                run.chunks.extend(run.queue.get(batch=True))
            except KeyError:
                raise OSError("it was started again, and knows none of the runs") from None
        if run.given_up:
            run.chunks.clear()
        what = f"a checkpoint of {run.task.label} from the worker {worker}"
        try:
            self._write_chunks(run)
        except OutputError as error:
            run.next_try = now + RETRY_SECONDS
            if run.failure != str(error):  # not again and again
                self._monitor.note(f"{what} cannot be written yet: {error}")
            run.failure = str(error)
        except ValueError as error:
            run.given_up = True
            self._monitor.note(f"{what} is lost: {error}; no further ones of it are taken")
        else:
            run.failure = ""

    def _write_chunks(self, run: Assignment) -> None:
        """Write the chunks that have been taken. Raises OutputError; ValueError for what no worker of fredsim sends."""
        if not run.chunks:
            return
        task = run.task
        with locked(task.folder), write_errors(task.folder):
            while run.chunks:
                name, begin, content = chunk = check_chunk(run.chunks[0])
                if name == "config.yaml":
                    run.config = checked_config(content, task.experiment)
                elif not run.config:
                    raise ValueError(f"it is of {name}, and comes before config.yaml")
                claim(task.folder, "config.yaml", run.config, task.experiment.digest)
                if name == "metrics.csv":  # the first of the growing files; from 0 on if the run began anew
                    remove_earlier(task.folder, GROWING if begin else None)
                if name != "config.yaml":
                    reached = write_chunk(task.folder, chunk, keep=task.policy.keep)
                    if reached is not None and reached > self._reached.get(task.number, -1):
                        self._reached[task.number] = reached
                        del self._losses[task.number]  # the workers that were lost before it do not count
                run.chunks.popleft()

    def _collect(self, worker: str, run: Assignment) -> None:
        """Write the files of a run that has ended, or report why it failed."""
        failure: Exception | None = None
        task, answer = run.task, run.answer
        assert answer is not None
        try:
            found = answer.result()
            if isinstance(found, FredsimError):
                failure = found
            else:
                write_run(task, checked_files(found, task.experiment, task.wanted.data))
                result = Result(task.folder)
                _ = result.metrics, result.outcome  # what follows reads them
        except OutputError as error:
            failure = error
        except Exception as error:  # of any type: it is the worker's fault, a run's own error is a FredsimError
            self._retry(worker, task, f"failed ({type(error).__name__}: {error})")
            return
        self._end(task, failure)

    def _retry(self, worker: str, task: Task, what: str = "was lost") -> None:
        """Put a task at the head of the queue again, unless too many workers were lost with it or failed at it."""
        self._losses[task.number] += 1
        if self._losses[task.number] < ATTEMPTS:
            self._monitor.note(f"the worker {worker} {what}; {task.label} is done again")
            self._queue.appendleft(task)
        else:
            self._end(task, SimulationError(f"{ATTEMPTS} workers tried this run; the last, {worker}, {what}"))

    def _end(self, task: Task, failure: Exception | None) -> None:
        with self._lock:
            observer = self._observers.pop(task.number)
            if failure is None:
                ended = Result(task.folder)
                observer.end(task.label, ended.summary, ended.ending)
            self._on_end(task, failure)

    def _on_event(self, event: tuple[float, Any]) -> None:
        """Pass a callback from a worker on to the run's observer, unless the run has ended; ignore anything else."""
        try:
            number, name, arguments = from_text(event[1])
            with self._lock:
                observer = self._observers.get(number)
                if observer is not None:
                    call(observer, name, arguments)
        except Exception as error:  # also what an observer makes of nonsense, such as a row before the beginning
            self._monitor.note(f"a message that no worker of fredsim sends is ignored: {one_line(error)[:200]}")


def checked_files(answer: Any, experiment: Experiment, data: str | None = None) -> dict[str, bytes]:
    """Return a worker's answer if it is the files of a run of this experiment, by name.

    Raises ValueError if it is something else, if a file is not as the run wrote it, if the worker has another version
    of fredsim, or if its data has not the digest `data` (None: any).
    """
    names = {"config.yaml", "summary.json", *FILES}
    if not isinstance(answer, dict) or not {"config.yaml", "summary.json"} <= answer.keys():
        raise ValueError("it returned no files of a run")
    for name, content in answer.items():
        if name not in names:
            raise ValueError(f"it returned a file {name!r}, which no run has")
        if not isinstance(content, bytes):
            raise ValueError(f"it returned {type(content).__name__} as the content of {name}")
    summary = parse_json(answer["summary.json"])
    if fault := fault_of_summary(summary):
        raise ValueError(f"it returned a summary.json of which {fault}")
    if answer["summary.json"] != summary_text(summary).encode():
        raise ValueError("it returned a summary.json that is not as the run wrote it")
    if summary.get("experiment") != experiment.digest:
        raise ValueError("it returned the files of another experiment")
    if (version := summary["versions"].get("fredsim")) != fredsim_version():
        raise ValueError(f"it returned the files of fredsim {version}, this is {fredsim_version()}")
    if data is not None and summary.get("data") != data:
        raise ValueError("it returned the files of a run on other data than this machine has")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in answer.items() if name in FILES}
    if changed := sorted(name for name, _ in digests.items() ^ summary.get("files", {}).items()):
        raise ValueError(f"it returned a {changed[0]} that is not as the run wrote it")
    checked_config(answer["config.yaml"], experiment)
    return answer


def checked_config(content: bytes, experiment: Experiment) -> str:
    """Return the content of a config.yaml if a run of this experiment has written it. Raises ValueError if not.

    It may have the numbers of rows that the run found, where the experiment does not give them.
    """
    text, given = content.decode(), experiment.plain()
    found = parse_yaml(text, "config.yaml")
    of, rows = given.get("data"), found.get("data") if isinstance(found, dict) else None
    if isinstance(of, dict) and isinstance(rows, dict):
        of |= {key: rows[key] for key in ROWS if of.get(key) is None and type(rows.get(key)) is int}
    if found != parse_yaml(dump_yaml(given), "config.yaml"):
        raise ValueError("its config.yaml is not that of this run")
    return text


def write_run(task: Task, files: Mapping[str, bytes]) -> None:
    """Write the files of a run into its folder, summary.json last. Raises OutputError."""
    with locked(task.folder):
        claim(task.folder, "config.yaml", files["config.yaml"].decode(), task.experiment.digest)
        with write_errors(task.folder):
            remove_earlier(task.folder, files.keys() - {"summary.json"})
            for name in sorted(files, key="summary.json".__eq__):
                write_atomic(task.folder / name, files[name])
            Checkpoints(task.folder, keep=task.policy.keep).clear()
        note_code(task.folder / "config.yaml", [task.experiment])
