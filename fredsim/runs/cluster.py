"""A sweep on a Dask cluster: its workers do one run each at a time, and the files come back to the folders here.

A run is a task that is bound to one worker. So it is known at any time who does what, a run has all threads of its
worker, and a worker that is lost costs that run alone, which goes to another. Workers may come and go meanwhile.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self
from uuid import uuid4

from fredsim.errors import ClusterError, ConfigError, FredsimError, OutputError, SimulationError
from fredsim.plugins.modules import folders
from fredsim.runs.folders import claim, kept, put, writing
from fredsim.runs.observer import Observer, Show
from fredsim.runs.results import Result
from fredsim.runs.tasks import Ended, Task

__all__ = ["Cluster"]

CONNECT_SECONDS = 10
FILES_SECONDS = 60  # to wait for a run's files, before it is looked again whether its worker is there
LOOK_SECONDS = 0.1
LOSSES = 3  # workers that may fail at a run before it is taken for the cause


class Cluster:
    """A connection to a scheduler, used in a `with` statement.

    Raises ConfigError where distributed is missing; ClusterError where no scheduler answers, or none of its workers has
    this version of fredsim.
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError as error:
            raise ConfigError(
                f"dask: '{address}' needs Dask's distributed, which cannot be imported ({error}); "
                "run pip install 'fredsim[cluster]'"
            ) from None
        self._address = address
        self._versions: dict[str, str] = {}  # of fredsim, by worker
        try:
            distributed.comm.get_address_host_port(address, strict=True)  # a client of no address takes long to close
            self._client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TypeError, ValueError) as error:
            raise ClusterError(
                f"dask: no scheduler answers at '{address}' ({str(error).partition(chr(10))[0]}); "
                "start one by `dask scheduler`, and give the address that it prints, such as tcp://127.0.0.1:8786"
            ) from None
        workers = self.workers()
        if workers and not any(map(self.fits, workers)):
            self.__exit__()
            raise ClusterError("\n".join(f"dask: {self.misfit(worker)}" for worker in workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the cluster, which lives on; runs under way are cancelled, and stop after the events at hand."""
        self._client.close()

    def run(
        self,
        tasks: Sequence[Task],
        show: Show,
        stop: Callable[[], bool],
        ended: Ended,
    ) -> None:
        """Do the tasks; `ended` is called as each ends. Raises ClusterError where the scheduler is lost."""
        assignments = Assignments(self._client, tasks, show, ended)
        noted: set[str] = set()

        def note(text: str) -> None:
            if text not in noted:
                noted.add(text)
                show.note(text)

        try:
            while assignments.busy and not stop():
                workers = self.workers()
                for worker in workers:
                    if not self.fits(worker):
                        note(f"{self.misfit(worker)}; it gets no run")
                if not workers:
                    note(f"no worker at {self._address} yet; waiting for one …")
                assignments.turn([worker for worker in workers if self.fits(worker)])
                time.sleep(LOOK_SECONDS)
        except OSError as error:
            raise ClusterError(
                f"dask: the scheduler at {self._address} was lost ({error}); what has finished is kept, "
                "--resume goes on with the rest"
            ) from None

    def workers(self) -> list[str]:
        """Return the addresses of the workers that are there and say which fredsim they have. Raises OSError."""
        present: list[str] = list(self._client.nthreads())
        new = [worker for worker in present if worker not in self._versions]
        found = self._client.run(version, "fredsim", workers=new, on_error="return") if new else {}
        for worker, answer in found.items():
            if isinstance(answer, PackageNotFoundError):
                self._versions[worker] = "none"
            elif isinstance(answer, str):  # all else: it has gone meanwhile
                self._versions[worker] = answer
        return [worker for worker in present if worker in self._versions]

    def fits(self, worker: str) -> bool:
        """Return whether a worker has this version of fredsim."""
        return self._versions[worker] == version("fredsim")

    def misfit(self, worker: str) -> str:
        """Say how a worker does not fit."""
        return (
            f"the worker {worker} has fredsim {self._versions[worker]}, this is {version('fredsim')}; "
            "install the same version in both places"
        )


class Assignments:
    """Which worker does which run, and what is left to do."""

    def __init__(self, client: Any, tasks: Sequence[Task], show: Show, ended: Ended) -> None:
        self._client = client
        self._left = deque(tasks)
        self._doing: dict[str, tuple[Task, Any]] = {}  # a task and its future, by worker
        self._show = show
        self._ended = ended
        self._lost: Counter[int] = Counter()
        self._observers: dict[int, Observer] = {}  # of the runs under way
        self._watching = threading.Lock()  # events come in by a thread of the client's
        self._topic = f"fredsim-{uuid4().hex}"  # until the client is closed
        client.subscribe_topic(self._topic, self._told)

    @property
    def busy(self) -> bool:
        """Whether anything is left to do or under way."""
        return bool(self._left or self._doing)

    def turn(self, workers: Sequence[str]) -> None:
        """Take what has ended, take back what was lost, and give the workers that are free something to do."""
        for worker, (task, future) in list(self._doing.items()):
            if worker not in workers or future.cancelled():
                del self._doing[worker]
                self._again(worker, task)
            elif future.done() and self._take(worker, task, future):
                del self._doing[worker]
        for worker in workers:
            if worker not in self._doing and self._left:
                self._doing[worker] = self._give(worker, self._left.popleft())

    def _give(self, worker: str, task: Task) -> tuple[Task, Any]:
        from fredsim.runs.cluster_worker import do

        with self._watching:
            if task.number not in self._observers:
                self._observers[task.number] = self._show.run()
        key = f"{task.folder.name}-{uuid4().hex}"
        arguments = task, self._topic, folders()
        return task, self._client.submit(do, *arguments, key=key, workers=[worker], allow_other_workers=False)

    def _take(self, worker: str, task: Task, future: Any) -> bool:
        """Take up how a run has ended; return False where its files did not come."""
        failure: Exception | None = None
        try:
            answer = future.result(timeout=FILES_SECONDS)
            if isinstance(answer, FredsimError):
                failure = answer
            else:
                write_run(task, answer)
        except TimeoutError:
            return False
        except OutputError as error:
            failure = error
        except Exception as error:  # of any kind: what a run itself does wrong is a FredsimError
            self._again(worker, task, f"failed ({type(error).__name__}: {error})")
            return True
        self._end(task, failure)
        return True

    def _again(self, worker: str, task: Task, what: str = "was lost") -> None:
        """Put a task whose worker was lost, or could not do it, in front, unless that has happened too often."""
        self._lost[task.number] += 1
        if self._lost[task.number] < LOSSES:
            self._show.note(f"the worker {worker} {what}; {task.label} is done again")
            self._left.appendleft(task)
        else:
            self._end(task, SimulationError(f"{LOSSES} workers tried this run; the last, {worker}, {what}"))

    def _end(self, task: Task, failure: Exception | None) -> None:
        with self._watching:
            observer = self._observers.pop(task.number)
            if failure is None:
                observer.end(task.label, Result(task.folder).summary)
            self._ended(task, failure)

    def _told(self, event: tuple[float, bytes]) -> None:
        """Pass on what a worker tells of a run, unless that has ended."""
        number, name, arguments = pickle.loads(event[1])
        with self._watching:
            observer = self._observers.get(number)
            if observer is not None and name != "end":  # which comes with the files
                getattr(observer, name)(*arguments)


def write_run(task: Task, files: Mapping[str, bytes]) -> None:
    """Write the files of a run into its folder, summary.json last. Raises OutputError."""
    with kept(task.folder):
        claim(task.folder, "config.yaml", files["config.yaml"].decode(), task.experiment.digest)
        with writing(task.folder):
            (task.folder / "summary.json").unlink(missing_ok=True)
            for name in sorted(files, key="summary.json".__eq__):
                put(task.folder / name, files[name])
