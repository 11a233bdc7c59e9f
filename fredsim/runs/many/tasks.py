"""A run of a sweep as a task, for this process, another process (`--jobs`), or a worker of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fredsim.config.experiment import Experiment
from fredsim.errors import FredsimError
from fredsim.runs.checkpoint.checkpoints import NO_CHECKPOINTS, CheckpointPolicy
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute
from fredsim.runs.single.preloading import OneRun
from fredsim.runs.single.prepared import ANYTHING, Wanted
from fredsim.runs.single.run import SIMULATED_RUN, Hooks

__all__ = ["Jobs", "OnEnd", "Task"]

#: How many processes do runs in parallel, or that one process does them side by side; None: 1.
Jobs = int | Literal["device"] | None


@dataclass(frozen=True)
class Task(OneRun):
    """A run to do: its number in the sweep, and the arguments of `execute`."""

    number: int
    label: str
    experiment: Experiment
    folder: Path
    root: str | os.PathLike[str] | None
    wanted: Wanted = ANYTHING
    policy: CheckpointPolicy = NO_CHECKPOINTS

    def do(
        self,
        observer: Observer,
        stop: Callable[[], bool],
        threads: int | None = None,
        hooks: Hooks = SIMULATED_RUN,
    ) -> FredsimError | None:
        """Do the run, on `threads` threads if its experiment gives no number; return why it failed, or None."""
        try:
            execute(
                self.experiment, self.folder, root=self.root, observer=observer, stop=stop, label=self.label,
                default_threads=threads, wanted=self.wanted, policy=self.policy, hooks=hooks,
            )  # fmt: skip
        except FredsimError as error:
            return error
        return None


OnEnd = Callable[[Task, Exception | None], None]
"""Called when a task ends, with the error that it failed with, or None."""
