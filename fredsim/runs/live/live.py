"""`fredsim live`: a real asynchronous run on the workers of a Dask cluster, recorded for replay by the simulator."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.config.experiment import Experiment
from fredsim.config.resolution import placed
from fredsim.config.sweep.expansion import Expansion
from fredsim.data.kept import own_data_read_anew
from fredsim.errors import ClusterError, ConfigError, SimulationError, flow, needs
from fredsim.plugins.modules import search_folders
from fredsim.runs.checkpoint.checkpoints import EVERY_MINUTE, CheckpointPolicy
from fredsim.runs.folder.growing_files import GrowingText
from fredsim.runs.folder.results import Result
from fredsim.runs.live.live_csv import HEAD, fingerprint
from fredsim.runs.live.worker import Basis, LiveWorker
from fredsim.runs.live.workers import START_SECONDS, DaskWorkers
from fredsim.runs.many.cluster import Cluster
from fredsim.runs.many.remarks import remark_after, remark_before
from fredsim.runs.many.runner import check_jobs, check_policy, stop_on_interrupt
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import make_server, with_changes
from fredsim.runs.single.prepared import prepare
from fredsim.runs.single.run import Hooks
from fredsim.simulation.clients.pushes import EventObserver
from fredsim.simulation.paths.live_pushes import LiveDispatcher, WorkerPool, live_parts
from fredsim.simulation.paths.loop import Diverged, Parts, Simulation
from fredsim.simulation.paths.start import make_simulation
from fredsim.simulation.plugins.client_work import ClientWork
from fredsim.simulation.schedule.guarded_clock import GuardedClock
from fredsim.system.limits import default_threads
from fredsim.system.machine import git_commit

__all__ = ["execute_live", "run_live", "worker_of"]


def _check(expansion: Expansion, workers: int | None, dask: str | None, delay: float, policy: CheckpointPolicy) -> None:
    """Raise ConfigError if these cannot be run live."""
    if expansion.is_sweep:
        chosen = shlex.join(f"{key}={flow(value)}" for key, value in expansion.runs[0].axes.items())
        raise ConfigError(
            f"this is a sweep of {len(expansion.runs)} runs; a live run is one: give sweep=null (and cases=null) and "
            f"the keys of one of them, such as {chosen}"
        )
    if dask is not None and workers is not None:
        raise ConfigError(f"workers is {workers}, and dask is given, whose workers are used; keep one")
    check_jobs(1 if workers is None else workers, "workers")
    check_policy(policy)
    if not 0 <= delay < 3600:
        raise ConfigError(f"delay is {delay}; it must be seconds, 0 for none, and less than an hour")
    refuse_what_workers_cannot(expansion.runs[0].experiment)


@own_data_read_anew
def run_live(
    expansion: Expansion,
    out: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    dask: str | None = None,
    delay: float = 0.0,
    policy: CheckpointPolicy = EVERY_MINUTE,
    monitor: Monitor | None = None,
    remarks: bool = True,
) -> Result:
    """Run a single experiment with real clients, and return its result.

    Args:
        expansion: the document of the experiment; clients arrive in real order, whatever its dispatcher says.
        out: the folder of results; None: results/NAME-live.
        root: where this machine keeps data files.
        workers: how many processes of a local cluster compute for the clients; None: as many as processors.
        dask: the address of a scheduler whose workers compute instead.
        delay: mean of an exponentially distributed time, in seconds, that is slept before each computation.
        policy: when to write checkpoints.
        monitor: shows the progress.
        remarks: warn of probable mistakes (fredsim.runs.many.remarks).

    Raises ConfigError, DataError, OutputError, SimulationError as `fredsim.run` does; ClusterError if there are no
    workers, if none can compute, or if the scheduler is lost.

    """
    _check(expansion, workers, dask, delay, policy)
    (run,) = expansion.runs
    experiment = run.experiment
    folder = Path(out) if out is not None else Path("results") / f"{expansion.name}-live"
    git_commit.cache_clear()  # see `run_expansion`
    if remarks:
        remark_before(expansion.runs, root)
    with placed(run.place):
        basis = Basis.of(experiment, prepare(experiment, root))
    with ExitStack() as opened:
        stop, monitor = opened.enter_context(stop_on_interrupt()), opened.enter_context(monitor or Monitor())
        made, threads = _cluster(workers, dask)
        cluster = opened.enter_context(made)
        theirs = None if root is None or dask is not None else Path(root).absolute()  # None: the worker's own
        _, work, compresses = known = worker_of(experiment)
        make = partial(_actor, cluster, (*known, threads, delay, search_folders(), theirs))
        samples = experiment.clients.batch_size * work.steps
        pool = opened.enter_context(
            DaskWorkers(cluster, make, monitor.note, stop, basis, samples, compresses=compresses)
        )
        loaded = execute_live(
            experiment, folder, pool, root=root, observer=monitor.observer(), stop=stop, heading=expansion.heading,
            policy=policy, default_threads=threads if experiment.model.native else None,  # bits depend on the workers'
            facts=lambda: {"workers": pool.workers, "works_redone": pool.redone, "delay": delay},
        )  # fmt: skip
    if remarks:
        remark_after(expansion, loaded, root)
    return loaded


def _cluster(workers: int | None, dask: str | None) -> tuple[AbstractContextManager[Cluster], int]:
    """Return the cluster that computes, and how many threads each of its workers has."""
    if dask is not None:
        return Cluster(dask, direct=True), 1
    workers = default_threads() if workers is None else workers
    return local_cluster(workers), max(1, default_threads() // workers)


def execute_live(
    experiment: Experiment, folder: Path, pool: WorkerPool, *, facts: Callable[[], dict[str, Any]] = dict, **how: Any
) -> Result:
    """Run an experiment whose gradients a pool of workers computes; return its result.

    `facts` returns what summary.json says about the workers. See `execute` for `how`, and for the errors raised.
    """
    hooks = Hooks(
        dispatcher=lambda experiment: GuardedClock(LiveDispatcher(pool), experiment.clients.count),
        simulation=_simulation,
        files=("live.csv",),
        facts=lambda: {"live": facts()},
        replayable=False,
    )
    try:
        return execute(with_changes(experiment, {"events": True, "path": "snapshots"}), folder, hooks=hooks, **how)
    except Diverged as diverged:
        raise SimulationError(
            f"iteration {diverged.iteration}: a parameter is not finite any more; choose a smaller learning rate"
        ) from None


def _simulation(parts: Parts, files: Mapping[str, GrowingText]) -> Simulation:
    """Return the simulation of a live run, which writes live.csv."""
    file, dispatcher = files["live.csv"], parts.dispatcher.inner

    class Noting(EventObserver):
        def arrived(self, iteration: int, params: NDArray[np.float32]) -> None:
            done = dispatcher.last
            if iteration == 0:
                file.write(HEAD + "\n")
            gradient = done.fingerprint if done.size else fingerprint(done.push)
            prints = f"{gradient:016x},{fingerprint(np.asarray(params)):016x}"
            assigned, served = dispatcher.served()  # last, as what is above is the server's work, too
            file.write(f"{iteration},{assigned},{served},{done.worker},{prints}\n")

    return make_simulation(live_parts(parts, dispatcher, Noting()))


def _actor(cluster: Cluster, arguments: tuple[object, ...], address: str) -> Any:
    """Create a LiveWorker with these arguments as an actor at the worker `address`."""
    return cluster.actor(LiveWorker, address, *arguments, seconds=START_SECONDS)


def worker_of(experiment: Experiment) -> tuple[Experiment, ClientWork, bool]:
    """Return what a LiveWorker must know: what clients do, and whether they compress what they push.

    They compress it if what is sent depends on the push alone: if there is no gate, which asks the server; if the
    compressor keeps nothing from push to push, which would be lost with a worker; and if `replica` is false.
    """
    _, protocol = make_server(experiment)
    compressor = protocol.compressor
    alone = protocol.push_gate is None and not protocol.replica
    compresses = compressor is not None and alone and not compressor.has_memory
    return experiment, protocol.work, compresses


def refuse_what_workers_cannot(experiment: Experiment) -> None:
    """Raise ConfigError if clients do what needs more than a worker has, which computes for any of them."""
    if experiment.model.keeps_statistics:
        raise ConfigError(
            f"model.buffers is {getattr(experiment.model, 'buffers', None)}; a live run's workers compute for any "
            "client, and keep no statistics of each: give local"
        )
    if experiment.problem is not None and experiment.problem.declared.takes_current:
        what = "its gradient takes current, the server's parameters, which the workers of a live run do not have"
        raise ConfigError(f"problem.name: {what}: leave current out")
    clients, (_, protocol) = experiment.clients, make_server(experiment)
    work, why = protocol.work, ""
    if work.varied is not None:
        why = "clients.local_steps differ by the clock of a simulated run: give a number"
    elif work.own:
        why = f"clients.optimizer is {clients.optimizer and clients.optimizer.name}; its state would be a worker's"
    elif work.control_variates:
        why = "clients.control_variates is true; they would be a worker's: leave them out"
    elif work.keeps:
        why = "clients.optimizer.keep_state is true; the state would be a worker's: give false"
    elif protocol.stages:
        why = "stages is given; what a pipeline held before would be a worker's: leave it out"
    elif protocol.current:
        why = "clients.current is true; a worker has only what it fetched: leave it out"
    elif protocol.fraction < 1:
        why = f"clients.fraction is {protocol.fraction:g}; all clients of a live run compute: leave it out"
    if why:
        raise ConfigError(f"{why} (a live run's workers compute for any client, and keep nothing)")


@contextmanager
def interrupts_kept_from_children() -> Iterator[None]:
    """Block SIGINT in all threads and processes that are started here, and what these start later.

    Ctrl-C in a terminal reaches each process of a command. This one stops the run; workers that it reached would die
    with a traceback, and the tasks in progress with them.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # whoever starts it later has SIGINT unblocked by that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def imports_not_from_here() -> Iterator[None]:
    """Let processes that are started here import nothing from the current folder, which may be somebody else's.

    Those of `multiprocessing` are begun by `python -c`, which looks there first, also for Python's own modules.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def local_cluster(workers: int) -> Iterator[Cluster]:
    """Start a scheduler and `workers` workers on this machine; yield a connection to them.

    Only this process can connect: whoever reaches a scheduler can run code as its user, and other users of the machine
    reach its ports. So both sides of each connection must have a certificate, which is made here and never leaves the
    processes. Dask adds its scratch space to `sys.path`, by default a folder of `/tmp` that another user may have made;
    here it is one of this user alone.
    """
    with needs("live:", "Dask's distributed and cryptography", "cluster"):
        import dask
        from distributed import LocalCluster
        from distributed.security import Security

        security = Security.temporary()
    settings: dict[str, Any] = {f"distributed.{of}.http.routes": [] for of in ("scheduler", "worker")}  # no pages
    where = dask.config.get("temporary-directory", None)
    kept = imports_not_from_here()  # also of a worker that is started again
    with kept, TemporaryDirectory(prefix="fredsim-", dir=where, ignore_cleanup_errors=True) as scratch:
        try:
            with dask.config.set({**settings, "temporary-directory": scratch}), interrupts_kept_from_children():
                processes = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    security=security,
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False},
                    scheduler_port=0,
                    silence_logs=logging.CRITICAL,
                )
        except Exception as error:  # for instance, a worker died while it started
            raise ClusterError(
                f"{workers} workers on this machine do not start: {str(error).rstrip('.')}; see whether it has memory "
                "and processes for them, or give fewer --workers"
            ) from error
        with processes, Cluster(processes.scheduler_address, security, direct=True) as cluster:
            yield cluster
