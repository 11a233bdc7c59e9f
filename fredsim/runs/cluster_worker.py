"""Does one run of a sweep on a worker of a Dask cluster; fredsim.runs.cluster submits it."""

from __future__ import annotations

import pickle
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distributed import get_client, get_worker

from fredsim.errors import FredsimError
from fredsim.plugins.modules import look_in
from fredsim.runs.handover import Piece, Sender, make_queue, put_back
from fredsim.runs.tasks import Task
from fredsim.runs.worker import Relay

__all__ = ["run_on_worker"]

ONE_RUN = threading.Lock()  # sweeps may share a worker, but not two runs at once: PyTorch's settings are per process
SEND_SECONDS = 60  # a piece of a checkpoint that nobody takes for so long is given up
ADVANCE_SECONDS = 0.5  # the shortest time between two messages about a run's progress


class Handing(Relay):
    """An observer that sends callbacks to the machine of the sweep, and each checkpoint with its growing files."""

    def __init__(self, tell: Callable[..., None], hand_over: Callable[[int], None]) -> None:
        super().__init__(tell, ADVANCE_SECONDS)
        self._hand_over = hand_over

    def checkpoint(self, iteration: int) -> None:
        """Send the checkpoint at this iteration."""
        self._hand_over(iteration)


def run_on_worker(
    task: Task, topic: str, folders: Sequence[Path], begun: Mapping[str, bytes]
) -> dict[str, bytes] | FredsimError:
    """Do a run in a scratch folder of the worker; return its files by name, or the error that it failed with.

    A user's modules are also looked up in `folders`, if this machine has them. Callbacks are sent as Dask events of
    `topic`, each with the run's number; checkpoints go through the queue that has the task's key as its name. `begun`:
    the files of the checkpoint to go on from. The run stops soon after its task is cancelled, or the Dask client left.
    """
    worker = get_worker()
    key = worker.get_current_task()
    queue = make_queue(get_client(), key) if task.policy.seconds else None

    def tell(name: str, *arguments: object) -> None:
        worker.log_event(topic, pickle.dumps((task.number, name, arguments)))

    def send(piece: Piece) -> None:
        if queue is not None and not cancelled():
            queue.put(piece, timeout=SEND_SECONDS)

    def cancelled() -> bool:
        known = worker.state.tasks.get(key)
        return known is None or known.state != "executing"

    with ONE_RUN, tempfile.TemporaryDirectory(prefix="fredsim-", dir=worker.local_directory) as scratch:
        folder = Path(scratch) / "run"
        look_in(*folders)
        put_back(folder, begun)
        here = replace(task, folder=folder, root=None)  # each machine knows where its data is
        failure = here.do(Handing(tell, Sender(folder, send, begun)), cancelled, worker.state.nthreads)
        return failure or {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
