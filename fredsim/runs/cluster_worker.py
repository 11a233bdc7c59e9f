"""The task that does one run on a worker of a Dask cluster; fredsim.runs.cluster hands it out."""

from __future__ import annotations

import pickle
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distributed import get_worker

from fredsim.errors import FredsimError
from fredsim.plugins.modules import look_in
from fredsim.runs import tasks
from fredsim.runs.tasks import Task
from fredsim.runs.worker import Relay

__all__ = ["do"]

TURN = threading.Lock()  # PyTorch's settings belong to the process: two sweeps may share a worker, two runs may not
TELL_SECONDS = 0.5  # how far a run is, is said no more often


def do(task: Task, topic: str, folders: Sequence[Path]) -> dict[str, bytes] | FredsimError:
    """Do a run in a scratch folder of the worker; return its files by name, or why it failed.

    A user's modules are looked up in `folders`, too, where this machine has them. What happens is told as events of the
    topic, each with the run's number. The run stops after the events at hand when its task is no longer wanted:
    cancelled, or of a client that has gone.
    """
    worker = get_worker()
    key = worker.get_current_task()

    def tell(name: str, *arguments: object) -> None:
        worker.log_event(topic, pickle.dumps((task.number, name, arguments)))

    def unwanted() -> bool:
        known = worker.state.tasks.get(key)
        return known is None or known.state != "executing"

    with TURN, tempfile.TemporaryDirectory(prefix="fredsim-", dir=worker.local_directory) as scratch:
        folder = Path(scratch) / "run"
        look_in(*folders)
        here = replace(task, folder=folder, root=None)  # each machine knows where its data is
        failure = tasks.do(here, Relay(tell, TELL_SECONDS), unwanted, worker.state.nthreads)
        return failure or {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
