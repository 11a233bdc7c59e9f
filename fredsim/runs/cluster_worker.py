"""Does one run on a worker of a Dask cluster; fredsim.runs.cluster submits it."""

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
from fredsim.runs.checkpoints import NO_CHECKPOINTS
from fredsim.runs.tasks import Task
from fredsim.runs.worker import Relay

__all__ = ["run_on_worker"]

ONE_RUN = threading.Lock()  # two sweeps may share a worker, two runs may not: PyTorch's settings are the process's
ADVANCE_SECONDS = 0.5  # between two messages of how far a run is, at least


def run_on_worker(task: Task, topic: str, folders: Sequence[Path]) -> dict[str, bytes] | FredsimError:
    """Do a run in a scratch folder of the worker; return its files by name, or why it failed.

    A user's modules are looked up in `folders`, too, where this machine has them. Callbacks are sent as Dask events of
    `topic`, each with the run's number. The run stops soon after its task is cancelled, or its client has gone.
    """
    worker = get_worker()
    key = worker.get_current_task()

    def tell(name: str, *arguments: object) -> None:
        worker.log_event(topic, pickle.dumps((task.number, name, arguments)))

    def cancelled() -> bool:
        known = worker.state.tasks.get(key)
        return known is None or known.state != "executing"

    with ONE_RUN, tempfile.TemporaryDirectory(prefix="fredsim-", dir=worker.local_directory) as scratch:
        folder = Path(scratch) / "run"
        look_in(*folders)
        here = replace(task, folder=folder, root=None, policy=NO_CHECKPOINTS)  # each machine knows where its data is
        failure = here.do(Relay(tell, ADVANCE_SECONDS), cancelled, worker.state.nthreads)
        return failure or {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
