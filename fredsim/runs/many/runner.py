"""Does a single run, or the runs of a sweep."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from fredsim.config.experiment import Experiment
from fredsim.config.resolution import placed
from fredsim.config.sweep.expansion import Expansion
from fredsim.data.kept import own_data_read_anew
from fredsim.errors import ConfigError, OutputError, warn
from fredsim.runs.checkpoint.checkpoints import EVERY_MINUTE, CheckpointPolicy
from fredsim.runs.folder.results import Result, Results
from fredsim.runs.many.cluster import Cluster
from fredsim.runs.many.remarks import remark_after, remark_before
from fredsim.runs.many.resuming import reason_to_run
from fredsim.runs.many.sweep import run_sweep
from fredsim.runs.many.tasks import Jobs
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.single.execution import execute, load_early
from fredsim.system.limits import default_threads
from fredsim.system.machine import git_commit

__all__ = ["Stop", "check_jobs", "check_policy", "run_expansion", "stop_on_interrupt"]

MOST_JOBS = 32  # the most jobs per processor; each job is a process


def check_jobs(jobs: int, name: str = "jobs") -> None:
    """Raise ConfigError if `jobs` is not a number of processes that this machine can run in parallel."""
    if not isinstance(jobs, int) or isinstance(jobs, bool):
        raise ConfigError(f"{name} is {jobs!r}; it must be a whole number")
    most = MOST_JOBS * default_threads()
    if not 1 <= jobs <= most:
        what = f"it must be 1 at least, and {most} at most: {MOST_JOBS} for each processor"
        raise ConfigError(f"{name} is {jobs}; {what}")


def check_policy(policy: CheckpointPolicy) -> None:
    """Raise ConfigError if no run can write checkpoints in this way."""
    if not isinstance(policy.seconds, int | float) or not 0 <= policy.seconds < math.inf:
        raise ConfigError(f"checkpoint is {policy.seconds}; it must be seconds between two checkpoints, or 0 for none")
    if policy.keep and not policy.seconds:
        raise ConfigError("checkpoints are to be kept, and checkpoint is 0: there are none; leave one of the two out")


@own_data_read_anew
def run_expansion(
    expansion: Expansion,
    out: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    resume: bool = False,
    jobs: Jobs = None,
    dask: str | None = None,
    policy: CheckpointPolicy = EVERY_MINUTE,
    monitor: Monitor | None = None,
    stop: Stop | None = None,
    remarks: bool = True,
) -> Result | Results:
    """Do the runs of an expanded document, and report to `monitor`; see `fredsim.run`.

    An interrupted run is recorded as such, and returned; KeyboardInterrupt is raised if every run had ended before.
    `stop` says whether an interrupt has come, if the caller looks out for one; `remarks`: warn of what was perhaps not
    meant (fredsim.runs.many.remarks).
    """
    processes = 1 if jobs is None or jobs == "device" else jobs
    check_jobs(processes)
    if dask is not None and jobs not in (None, 1):
        raise ConfigError(f"jobs is {jobs}, and dask is given, whose workers do the runs; keep one")
    if dask is not None and not expansion.is_sweep:
        raise ConfigError("dask: is given; a cluster does the runs of a sweep, and this is a single run; leave it out")
    check_policy(policy)
    git_commit.cache_clear()  # a notebook gives several commands, and files change in between
    default = (expansion.folder if resume else None) or Path("results") / expansion.name
    folder = Path(out) if out is not None else default
    with nullcontext(stop) if stop is not None else stop_on_interrupt() as stop, monitor or Monitor() as monitor:
        loaded: Result | Results
        if dask is None and not resume:
            load_early(expansion.runs[0].experiment, root, jobs=min(processes, len(expansion.runs)))
        if remarks:
            remark_before(expansion.runs, root)
            if jobs not in (None, 1) and not expansion.is_sweep:
                what = "this is a single run, of which that changes nothing: `threads` says how many threads compute it"
                warn(f"jobs is {jobs}, and {what}")
        if expansion.is_sweep:
            with Cluster(dask) if dask is not None else nullcontext() as cluster:
                loaded = run_sweep(
                    expansion,
                    folder,
                    root,
                    monitor,
                    stop,
                    resume=resume,
                    jobs=jobs,
                    cluster=cluster,
                    policy=policy,
                )
        else:
            loaded = _run_single(expansion, folder, root, resume, policy, monitor, stop)
        if remarks:
            remark_after(expansion, loaded, root)
        if stop() and _has_ended(expansion, loaded):  # the interrupt came too late to leave anything undone
            raise KeyboardInterrupt
        return loaded


def _has_ended(expansion: Expansion, loaded: Result | Results) -> bool:
    if isinstance(loaded, Result):
        return bool(loaded.summary["status"] != "interrupted")
    return len(loaded.runs) == len(expansion.runs)


def _run_single(
    expansion: Expansion,
    folder: Path,
    root: str | os.PathLike[str] | None,
    resume: bool,
    policy: CheckpointPolicy,
    monitor: Monitor,
    stop: Callable[[], bool],
) -> Result:
    """Do the run, unless `resume` is true and it has finished in the folder; return its result."""
    (run,) = expansion.runs
    if expansion.folder is not None and os.path.exists(folder) and os.path.samefile(expansion.folder, folder):
        _refuse_edited(folder, run.experiment)
    if resume:
        why = reason_to_run(folder, run.experiment, root)
        if why is None:
            monitor.note(f"{folder} finished before, and is not run again")
            return Result(folder)
        if why:
            monitor.note(f"{folder} is done again: {why}")
    with placed(run.place):  # of a mistake that only shows once the data is loaded
        return execute(
            run.experiment, folder, root=root, observer=monitor.observer(), stop=stop, heading=expansion.heading,
            policy=policy,
        )  # fmt: skip


def _refuse_edited(folder: Path, experiment: Experiment) -> None:
    """Raise OutputError if config.yaml, which says what to run, was edited after the run in this folder ended."""
    result = Result(folder)
    try:
        summary = result.summary if result.has_ended else {}
    except OutputError:  # a damaged summary.json cannot tell
        return
    if summary.get("experiment", experiment.digest) != experiment.digest:
        _ = result.config


class Stop:
    """Says whether an interrupt has come: called, it returns true from then on."""

    def __init__(self) -> None:
        self.asked_by: int | None = None  # the number of the first signal that came
        self._asked = False

    def ask(self) -> None:
        """Ask to stop, without a signal."""
        self._asked = True

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self._asked or self.asked_by is not None


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Turn the first interrupt (Ctrl-C or SIGTERM) into a request to stop soon; a second raises KeyboardInterrupt."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        del frame
        stop.asked_by = number
        for one in before:
            signal.signal(one, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for one, handler in before.items():  # None: it was set by other code than Python's
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
