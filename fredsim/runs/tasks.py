"""The runs of a sweep as tasks, whoever does them: this process, others beside it, or the workers of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fredsim.config.experiment import Experiment
from fredsim.errors import FredsimError
from fredsim.runs.execution import execute
from fredsim.runs.observer import Observer

__all__ = ["Ended", "Task", "do"]


@dataclass(frozen=True)
class Task:
    """A run that is to be done: its number in the sweep, and what `execute` needs to know.

    `code` are the digests of the user's modules that it names: whoever does the run must have the same.
    """

    number: int
    label: str
    experiment: Experiment
    folder: Path
    root: str | os.PathLike[str] | None
    code: Mapping[str, str]


Ended = Callable[[Task, Exception | None], None]
"""What is called as a task ends, with why it failed, or None."""


def do(task: Task, observer: Observer, stop: Callable[[], bool], share: int | None = None) -> FredsimError | None:
    """Do a run, on `share` threads where its experiment gives none; return why it failed, or None."""
    try:
        execute(
            task.experiment, task.folder, root=task.root, observer=observer, stop=stop, label=task.label,
            share=share, code=task.code,
        )  # fmt: skip
    except FredsimError as error:
        return error
    return None
