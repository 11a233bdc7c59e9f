"""The task that does one run on a worker of a Dask cluster; fredsim.runs.cluster hands it out."""

from __future__ import annotations

import pickle
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from distributed import get_worker

from fredsim.config.experiment import Experiment
from fredsim.errors import FredsimError
from fredsim.plugins.modules import look_in
from fredsim.runs.execution import execute
from fredsim.runs.worker import Teller

__all__ = ["do"]

TURN = threading.Lock()  # PyTorch's settings belong to the process: two sweeps may share a worker, two runs may not
TELL_SECONDS = 0.5  # how far a run is, is said no more often


def do(
    experiment: Experiment, label: str, code: Mapping[str, str], number: int, topic: str, folders: Sequence[Path]
) -> dict[str, bytes] | FredsimError:
    """Do a run in a scratch folder of the worker; return its files by name, or why it failed.

    A user's modules are looked up in `folders`, too, where this machine has them. What happens is told as events of the
    topic, each with the run's number. The run stops after the events at hand when its task is no longer wanted:
    cancelled, or of a client that has gone.
    """
    worker = get_worker()
    key = worker.get_current_task()

    def tell(name: str, *arguments: object) -> None:
        worker.log_event(topic, pickle.dumps((number, name, arguments)))

    def unwanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state != "executing"

    with TURN, tempfile.TemporaryDirectory(prefix="fredsim-", dir=worker.local_directory) as scratch:
        folder = Path(scratch) / "run"
        look_in(*folders)
        try:
            execute(
                experiment, folder, observer=Teller(tell, TELL_SECONDS), stop=unwanted, label=label,
                share=worker.state.nthreads, code=code,
            )  # fmt: skip
        except FredsimError as error:
            return error
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
