"""Computes what clients push in a live run, in the process of a Dask worker; fredsim.runs.live.live creates it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.config.experiment import Experiment
from fredsim.data.kept import forget_own_data
from fredsim.errors import FredsimError, SimulationError, one_line
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.streams import Streams
from fredsim.plugins.modules import look_in
from fredsim.plugins.user_code import named_modules, user_code_digests
from fredsim.runs.live.live_csv import fingerprint
from fredsim.runs.live.wire import pack
from fredsim.runs.single.backend_choice import chosen_backend
from fredsim.runs.single.prepared import Prepared, prepare
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.plugins.client_work import ClientWork
from fredsim.simulation.plugins.local_work import LocalWork, Tasks
from fredsim.simulation.plugins.protocol import make_compressor
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.system.files import named_as

__all__ = ["Basis", "LiveWorker"]

Answer = tuple[NDArray[Any], NDArray[np.float32], bool, int, int, int, int]
#: The parts of an experiment whose modules workers import; nothing in them has a short name that a package gives.
PARTS = ("data", "model", "loss", "problem")


@dataclass(frozen=True)
class Basis:
    """What gradients are computed from; it must be the same at the server and at each worker."""

    data: str | None
    """The digest of the data."""
    code: Mapping[str, str]
    """The SHA-256 of the user's modules that gradients depend on, by name."""
    files: Mapping[str, str]
    """The SHA-256 of the files that the model, or the data, is made from, by name."""
    size: int
    """The number of parameters."""

    @staticmethod
    def of(experiment: Experiment, prepared: Prepared) -> Basis:
        """Return that of an experiment that has been prepared in this process, soon after that."""
        parts = {key: value for key, value in experiment.plain().items() if key in PARTS}
        code = user_code_digests(named_modules(parts)) | dict(prepared.model.code)
        return Basis(prepared.dataset.digest, code, prepared.model_files, prepared.model.layout.size)

    def difference(self, other: Basis) -> str:
        """Say in what a worker's, `other`, differs from this, the server's; "" if in nothing."""
        for name in sorted({*self.code, *other.code}):
            if self.code.get(name) != other.code.get(name):
                return f"it has another version of {name} than this machine; restart it with the same files"
        theirs = named_as(other.files, self.files)
        for name in sorted({*self.files, *theirs}):
            if self.files.get(name) != theirs.get(name):
                return f"it has another file {name} than this machine; put the same one there, and restart it"
        if self.data != other.data:
            return "it has other data than this machine; put the same files into its FREDSIM_DATA, and restart it"
        if self.size != other.size:
            return (
                f"its model has {other.size:,} parameters, here it has {self.size:,}; install the same packages there"
            )
        return ""


class LiveWorker:
    """Computes for any client: has the data and an engine once for all of them, and no server."""

    def __init__(
        self,
        experiment: Experiment,
        work: ClientWork,
        compresses: bool,
        threads: int,
        delay: float,
        folders: Sequence[Path] = (),
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        """Load the data; `work`: what clients do; `compresses`: whether pushes are compressed here.

        `delay`: mean of an exponentially distributed time, in seconds, that is slept before each computation.
        A user's modules are also looked up in `folders`, if this machine has them. `root`: the folder of data; None:
        this machine's own. An error is kept in `failure`, because raising it here would look like a lost worker.
        """
        self.failure: FredsimError | None = None
        self._delay, self._root = delay, root
        forget_own_data()  # of an earlier live run
        try:
            if folders:
                look_in(*folders)
            self._start(experiment, work, threads)
            self._compressor = make_compressor(experiment) if compresses else None
            if self._compressor is not None:
                context = RunContext(
                    experiment.clients.count, self._layout, Streams(experiment.seed), self._engine.operations
                )
                self._compressor.start(context)
        except FredsimError as error:
            self.failure = error
        except Exception as error:  # of any type: too little memory, an error in a user's code
            self.failure = SimulationError(f"{type(error).__name__}: {one_line(error)}")

    def _start(self, experiment: Experiment, work: ClientWork, threads: int) -> None:
        prepared = prepare(experiment, self._root, work.steps)
        size, model = experiment.clients.batch_size, prepared.model
        self._basis = Basis.of(experiment, prepared)
        one_by_one = experiment.model_copy(update={"path": "snapshots"})  # as gradients are computed here
        backend = chosen_backend(one_by_one, model.layout.size, model.graph, prepared.dataset, prepared.length)
        threads = experiment.threads or threads
        self._engine = make_engine(backend, model, prepared.dataset, size, threads)
        single = partial(make_engine, backend, model, prepared.dataset, 1, 1)
        sampling, streams = experiment.clients.sampling, Streams(experiment.seed)
        self._sampler = prepared.dataset.sampler(sampling, size, streams, prepared.shards)
        self._steps = work.steps
        self._layout = layout = model.layout
        self._work = LocalWork(self._engine, layout.size, work, streams=streams, single=single)
        self._held = self._engine.operations.zeros(layout.size + MARGIN)[: layout.size]
        self._engine.gradients([], np.empty((0, 1), np.int64))  # compiles

    def ready(self) -> FredsimError | Basis:
        """Return what it computes from, or the error for which it cannot compute."""
        return self.failure or self._basis

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
        return sent, np.array(losses[0]), bool(finite), int(size), before, began, time.monotonic_ns()
