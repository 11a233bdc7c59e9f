"""Computes what clients push in a live run, in the process of a Dask worker; fredsim.runs.live.live creates it."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.config.experiment import Experiment
from fredsim.errors import ConfigError, FredsimError, SimulationError
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.streams import Streams
from fredsim.runs.live.live_csv import fingerprint
from fredsim.runs.live.wire import pack
from fredsim.runs.single.prepared import prepare
from fredsim.simulation.paths.backends import make_engine, resolve_backend
from fredsim.simulation.plugins.client_work import ClientWork
from fredsim.simulation.plugins.local_work import LocalWork, Tasks
from fredsim.simulation.plugins.protocol import make_compressor
from fredsim.simulation.plugins.run_context import RunContext

__all__ = ["LiveWorker"]

Answer = tuple[NDArray[Any], NDArray[np.float32], bool, int, int, int, int]


class LiveWorker:
    """Computes for any client: has the data and an engine once for all of them, and no server."""

    def __init__(
        self,
        experiment: Experiment,
        work: ClientWork,
        compresses: bool,
        threads: int,
        delay: float,
    ) -> None:
        """Load the data; `work`: what clients do; `compresses`: whether pushes are compressed here.

        `delay`: mean of an exponentially distributed time, in seconds, that is slept before each computation.
        An error is kept in `failure`, because raising it here would look like a lost worker.
        """
        self.failure: FredsimError | None = None
        self._delay = delay
        try:
            self._start(experiment, work, threads)
            self._compressor = make_compressor(experiment) if compresses else None
            if self._compressor is not None:
                context = RunContext(
                    experiment.clients.count, self._layout, Streams(experiment.seed), self._engine.operations
                )
                self._compressor.start(context)
        except FredsimError as error:
            self.failure = error

    def _start(self, experiment: Experiment, work: ClientWork, threads: int) -> None:
        prepared = prepare(experiment, None, work.steps)  # None: each machine's own default folder of data
        size = experiment.clients.batch_size
        self._digest = prepared.dataset.digest
        backend, threads = resolve_backend(experiment.backend), experiment.threads or threads
        self._engine = make_engine(backend, prepared.model, prepared.dataset, size, threads)
        if self._engine.takes_current:
            what = "its gradient takes current, the server's parameters, which the workers of a live run do not have"
            raise ConfigError(f"problem.name: {what}: leave current out")
        single = make_engine(backend, prepared.model, prepared.dataset, 1, 1) if work.clip_each_sample else None
        sampling, streams = experiment.clients.sampling, Streams(experiment.seed)
        self._sampler = prepared.dataset.sampler(sampling, size, streams, prepared.shards)
        self._steps = work.steps
        self._layout = layout = prepared.model.layout
        self._work = LocalWork(self._engine, layout.size, work, streams=streams, single=single)
        self._held = self._engine.operations.zeros(layout.size + MARGIN)[: layout.size]
        self._engine.gradients([], np.empty((0, 1), np.int64))  # compiles

    def ready(self) -> tuple[FredsimError | None, str, int]:
        """Return the error for which it cannot compute, or None; the digest of its data; and its process id."""
        return self.failure, "" if self.failure else self._digest, os.getpid()

    def clock(self) -> int:
        """Return this machine's time in nanoseconds."""
        return time.monotonic_ns()

    def compute(
        self, client: int, number: int, task_id: int, params: NDArray[np.float32], rate: float
    ) -> Answer | SimulationError:
        """Compute a client's push; return it (P,), its samples' losses (k·µ,), whether it is finite, and four numbers.

        These are the push's bytes if it is compressed, else 0; its fingerprint before compression; and the beginning
        and the end of the computation by this machine's clock, in nanoseconds. A compressed push is packed
        (fredsim.runs.live.wire). An error is returned, because raising it would look like a lost worker.
        """
        try:
            return self._compute(client, number, task_id, params, rate)
        except Exception as error:  # of any type: too little memory, an error in a user's model
            return SimulationError(f"client {client}, its task {number}: {type(error).__name__}: {error}")

    def _compute(self, client: int, number: int, task_id: int, params: NDArray[np.float32], rate: float) -> Answer:
        began = time.monotonic_ns()
        if self._delay:
            time.sleep(random.expovariate(1 / self._delay))
        self._engine.operations.duplicate(params, self._held)
        tasks = Tasks.of(self._sampler, self._steps, *(np.array([n], np.int64) for n in (task_id, client, number)))
        with np.errstate(all="ignore"):
            (push,), losses, (finite,) = self._work([self._held], tasks, [rate])
        sent: NDArray[Any] = np.array(push)
        size = before = 0
        if self._compressor is not None:
            before = fingerprint(sent)
            decoded, size = self._compressor.compress(push, client, task_id)
            sent = pack(np.asarray(decoded), list(self._layout.slices.values()))
        return sent, np.array(losses[0]), bool(finite), size, before, began, time.monotonic_ns()
