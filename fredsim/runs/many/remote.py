"""Does one run of a sweep on a worker of a Dask cluster; fredsim.runs.many.cluster submits it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

from distributed import get_client, get_worker

from fredsim.data.kept import forget_own_data
from fredsim.errors import FredsimError
from fredsim.plugins.modules import look_in
from fredsim.runs.checkpoint.transfer import CheckpointSender, Chunk, make_queue, write_resume_files
from fredsim.runs.many.tasks import Task
from fredsim.runs.processes.callbacks import as_text
from fredsim.runs.processes.isolation import keep_apart
from fredsim.runs.processes.worker import Relay
from fredsim.system.machine import git_commit

__all__ = ["run_on_worker"]

ONE_RUN = threading.Lock()  # sweeps may share a worker, but not two runs at once: PyTorch's settings are per process
SEND_SECONDS = 60  # a chunk of a checkpoint that is not taken from the queue within this time is given up
ADVANCE_SECONDS = 0.5  # the shortest time between two messages about a run's progress


def run_on_worker(
    task: Task, topic: str, folders: Sequence[Path], resume_files: Mapping[str, bytes]
) -> dict[str, bytes] | FredsimError:
    """Do a run in a scratch folder of the worker; return its files by name, or the error that it failed with.

    A user's modules are also looked up in `folders`, if this machine has them. Callbacks are sent as Dask events of
    `topic`, each with the run's number; checkpoints go through the queue that is named by the task's key.
    `resume_files`: the files of the checkpoint to continue from, by name. The run stops soon after its task is
    cancelled, or the Dask client has disconnected.
    """
    worker = get_worker()
    key = worker.get_current_task()
    queue = make_queue(get_client(), key) if task.policy.seconds else None

    def send_callback(name: str, *arguments: object) -> None:
        if name not in {"end", "memory"}:  # the other side knows it, or does not ask
            worker.log_event(topic, as_text(task.number, name, arguments))

    def send_chunk(chunk: Chunk) -> None:
        if queue is not None and not cancelled():
            queue.put(chunk, timeout=SEND_SECONDS)

    def cancelled() -> bool:
        dask_task = worker.state.tasks.get(key)
        return dask_task is None or dask_task.state != "executing"

    kept = nullcontext() if queue is None else closing(queue)
    with kept, ONE_RUN, tempfile.TemporaryDirectory(prefix="fredsim-", dir=worker.local_directory) as scratch:
        folder = Path(scratch) / "run"
        look_in(*folders)
        keep_apart()
        git_commit.cache_clear()  # a worker does sweeps for days
        forget_own_data()
        write_resume_files(folder, resume_files)
        here = replace(task, folder=folder, root=None)  # None: this machine's own data folder
        observer = Relay(send_callback, ADVANCE_SECONDS, CheckpointSender(folder, send_chunk, resume_files))
        failure = here.do(observer, cancelled, worker.state.nthreads)
        return failure or {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
