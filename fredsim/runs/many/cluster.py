"""Does the runs of a sweep on a Dask cluster: one run at a time on each worker; the files come back to this machine.

Each run is bound to one worker, so it can use all its threads; when a worker is lost, only its run goes to another one.
Workers may join and leave during the sweep.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Self
from uuid import uuid4

from fredsim.config.document import dump_yaml
from fredsim.errors import (
    ClusterError,
    ConfigError,
    FredsimError,
    OutputError,
    SimulationError,
    how_to_install,
    one_line,
    option,
)
from fredsim.plugins.modules import search_folders
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.checkpoint.transfer import make_queue, read_resume_files, write_chunk
from fredsim.runs.folder.folders import claim, locked
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import FILES
from fredsim.runs.many.tasks import OnEnd, Task
from fredsim.runs.processes.callbacks import call, from_text
from fredsim.runs.processes.isolation import note_code
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.system.files import write_atomic, write_errors
from fredsim.system.version import fredsim_version

__all__ = ["Cluster"]

CONNECT_SECONDS = 10
FILES_SECONDS = 60  # to wait for a run's files before checking again whether its worker still exists
POLL_SECONDS = 0.1
ATTEMPTS = 3  # this many workers may fail at a run before the run itself is considered the cause


class Cluster:
    """A connection to a scheduler, used in a `with` statement.

    Raises ConfigError if the package `distributed` is missing; ClusterError if no scheduler answers, or if it has
    workers and none of them has this version of fredsim.
    """

    def __init__(self, address: str, security: Any = None, *, direct: bool = False) -> None:
        """Connect to a scheduler; with `direct` also to its workers themselves, if they can be reached.

        `security` has the certificates for it, a `distributed.Security`; None: those of Dask's configuration, if any.
        """
        try:
            import distributed
        except ImportError as error:
            raise ConfigError(
                f"dask: '{address}' needs Dask's distributed, which cannot be imported ({error}); "
                f"{how_to_install('cluster')}"
            ) from None
        self._address = address
        self._versions: dict[str, str] = {}  # the version of fredsim, by worker
        try:
            distributed.comm.get_address_host_port(address, strict=True)  # a Client of a bad address closes slowly
            self._client = distributed.Client(
                address, timeout=CONNECT_SECONDS, security=security, set_as_default=False, direct_to_workers=direct
            )
        except (OSError, TypeError, ValueError) as error:
            raise ClusterError(
                f"dask: no scheduler answers at '{address}' ({str(error).partition(chr(10))[0]}); "
                "start one by `dask scheduler`, and give the address that it prints, such as tcp://127.0.0.1:8786; "
                "if it has certificates, Dask's configuration must name them here, too"
            ) from None
        workers = self.workers()
        if workers and not any(map(self.fits, workers)):
            self.__exit__()
            raise ClusterError(*(f"dask: {self.misfit(worker)}" for worker in workers))

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
                if not workers:
                    note(f"no worker at {self._address} yet; waiting for one …")
                assignments.update([worker for worker in workers if self.fits(worker)])
                time.sleep(POLL_SECONDS)
        except OSError as error:
            raise ClusterError(
                f"dask: the scheduler at {self._address} was lost ({error}); what has finished is kept, "
                f"{option('resume', 'True')} continues with the rest"
            ) from None

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

    def workers(self) -> list[str]:
        """Return the addresses of the workers whose version of fredsim is known. Raises OSError."""
        present: list[str] = list(self._client.nthreads())
        new = [worker for worker in present if worker not in self._versions]
        found = self._client.run(resolve_name, "fredsim:__version__", workers=new, on_error="return") if new else {}
        for worker, answer in found.items():
            if isinstance(answer, ImportError):
                self._versions[worker] = "none"
            elif isinstance(answer, str):  # anything else means that the worker has gone
                self._versions[worker] = answer
        return [worker for worker in present if worker in self._versions]

    def fits(self, worker: str) -> bool:
        """Return whether a worker has this version of fredsim."""
        return self._versions[worker] == fredsim_version()

    def misfit(self, worker: str) -> str:
        """Return the message about a worker with another version of fredsim."""
        return (
            f"the worker {worker} has fredsim {self._versions[worker]}, this is {fredsim_version()}; "
            "install the same version in both places"
        )


class Assignments:
    """The assignment of runs to workers: which worker does which run, and which runs are waiting for a worker."""

    def __init__(self, client: Any, tasks: Sequence[Task], monitor: Monitor, on_end: OnEnd) -> None:
        self._client = client
        self._queue = deque(tasks)
        self._running: dict[str, tuple[Task, Any]] = {}  # a task and its future, by worker
        self._queues: dict[str, Any] = {}  # by worker, the queue through which its run's checkpoints come, or None
        self._monitor = monitor
        self._on_end = on_end
        self._losses: Counter[int] = Counter()  # by run, how many workers were lost with it or failed at it
        self._observers: dict[int, Observer] = {}  # of the runs under way, by number
        self._lock = threading.Lock()  # guards the observers: Dask's client delivers events in a thread of its own
        self._topic = f"fredsim-{uuid4().hex}"
        client.subscribe_topic(self._topic, self._on_event)

    @property
    def busy(self) -> bool:
        """Whether a run is waiting or under way."""
        return bool(self._queue or self._running)

    def update(self, workers: Sequence[str]) -> None:
        """Collect the runs that have ended, requeue those whose worker was lost, and give free workers new runs."""
        for worker, (task, future) in list(self._running.items()):
            self._take_checkpoints(worker, task)
            if worker not in workers or future.cancelled():
                del self._running[worker]
                self._retry(worker, task)
            elif future.done() and self._collect(worker, task, future):
                del self._running[worker]
        for worker in workers:
            if worker not in self._running and self._queue:
                self._running[worker] = self._submit(worker, self._queue.popleft())

    def _submit(self, worker: str, task: Task) -> tuple[Task, Any]:
        from fredsim.runs.many.remote import run_on_worker

        with self._lock:
            if task.number not in self._observers:
                self._observers[task.number] = self._monitor.observer()
        key = f"{task.folder.name}-{uuid4().hex}"
        options: dict[str, Any] = {"key": key, "workers": [worker], "allow_other_workers": False}
        self._queues[worker] = make_queue(self._client, key) if task.policy.seconds else None
        files = self._send_resume_files(worker, task)
        return task, self._client.submit(run_on_worker, task, self._topic, search_folders(), files, **options)

    def _send_resume_files(self, worker: str, task: Task) -> Any:
        """Send the files of the checkpoint that a run continues from to its worker; return the future, or no files."""
        files = {} if Result(task.folder).has_finished else read_resume_files(task.folder)
        try:
            return self._client.scatter(files, workers=[worker], hash=False) if files else files
        except OSError:  # the worker has gone, as `update` will find
            return {}

    def _take_checkpoints(self, worker: str, task: Task) -> None:
        """Write the chunks of checkpoints that a worker has sent; if that fails, note it and let the run continue."""
        queue = self._queues[worker]
        chunks = [] if queue is None else queue.get(batch=True)
        if not chunks:
            return
        try:
            with locked(task.folder), write_errors(task.folder):
                claim(task.folder, "config.yaml", dump_yaml(task.experiment.plain()), task.experiment.digest)
                for chunk in chunks:
                    write_chunk(task.folder, chunk, keep=task.policy.keep)
        except (OutputError, ValueError, TypeError) as error:
            self._monitor.note(f"a checkpoint of {task.label} from the worker {worker} is lost: {error}")

    def _collect(self, worker: str, task: Task, future: Any) -> bool:
        """Write the files of a run that has ended, or report why it failed; return False if they have not come yet."""
        failure: Exception | None = None
        try:
            answer = future.result(timeout=FILES_SECONDS)
            if isinstance(answer, FredsimError):
                failure = answer
            else:
                write_run(task, checked_files(answer))
        except TimeoutError:
            return False
        except OutputError as error:
            failure = error
        except Exception as error:  # of any type: it is the worker's fault, a run's own error is a FredsimError
            self._retry(worker, task, f"failed ({type(error).__name__}: {error})")
            return True
        self._end(task, failure)
        return True

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
                observer.end(task.label, ended.summary | {"status": ended.ending})
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


def checked_files(answer: Any) -> dict[str, bytes]:
    """Return a worker's answer if it is the files of a run, by name. Raises ValueError if it is something else."""
    names = {"config.yaml", "summary.json", *FILES}
    if not isinstance(answer, dict) or not {"config.yaml", "summary.json"} <= answer.keys():
        raise ValueError("it returned no files of a run")
    for name, content in answer.items():
        if name not in names:
            raise ValueError(f"it returned a file {name!r}, which no run has")
        if not isinstance(content, bytes):
            raise ValueError(f"it returned {type(content).__name__} as the content of {name}")
    return answer


def write_run(task: Task, files: Mapping[str, bytes]) -> None:
    """Write the files of a run into its folder, summary.json last. Raises OutputError."""
    with locked(task.folder):
        claim(task.folder, "config.yaml", files["config.yaml"].decode(), task.experiment.digest)
        with write_errors(task.folder):
            (task.folder / "summary.json").unlink(missing_ok=True)
            for name in sorted(files, key="summary.json".__eq__):
                write_atomic(task.folder / name, files[name])
            if not task.policy.keep:
                Checkpoints(task.folder).clear()
        note_code(task.folder / "config.yaml", [task.experiment])
