"""Loads beforehand what runs share that are done in processes of their own, all but what is the user's."""

from __future__ import annotations

import functools
import os

from fredsim.config.choices import Backend
from fredsim.config.experiment import Experiment
from fredsim.config.registry import own_modules
from fredsim.data.datasets import data_root
from fredsim.errors import ConfigError
from fredsim.runs.processes.forking import in_fork
from fredsim.runs.single.prepared import assign_shards
from fredsim.simulation.paths.backends import make_engine, make_operations, resolve_backend
from fredsim.system.notices import on_notices

__all__ = ["OneRun", "warm_up"]


class OneRun:
    """What tasks have in common of which each is a run of an `experiment`, with data from `root`."""

    experiment: Experiment
    root: str | os.PathLike[str] | None

    @property
    def alone(self) -> bool:
        """Whether the run has a user's own code."""
        return bool(self.own)

    @property
    def own(self) -> set[str]:
        """The names of the user's modules whose code it runs."""
        return own_modules(self.experiment.plain())

    def warm_up(self) -> None:
        """Load what other runs need as well."""
        warm_up(self.experiment, self.root)


class _CompilingError(Exception):
    """A kernel is not in the cache yet, or something is to be said: that is for the run itself, which is watched."""


def warm_up(experiment: Experiment, root: str | os.PathLike[str] | None) -> None:
    """Load data, and what is made of them, and kernels into this process's caches; import no module of a user's.

    No thread is started, and no device is used, so that the process can be forked. Raises what the run itself would.
    """
    backend = _resolve_backend(experiment.backend)
    if experiment.model.native:
        import fredsim.native.engine
    if backend == "cuda":
        import fredsim.cuda.backend  # noqa: F401
    if experiment.data.user_code:
        return
    if experiment.data.name.startswith("torchvision:"):  # PyTorch may read it with threads
        return
    dataset = experiment.load(data_root(root))
    dataset.digest  # noqa: B018  it is kept
    assign_shards(experiment, dataset)
    if backend != "cuda":
        with on_notices(_give_up, _give_up):
            if experiment.model.user_code:
                make_operations(backend, threads=1)
            else:
                network = experiment.network(dataset)
                make_engine(backend, network, dataset, experiment.clients.batch_size, threads=1).close()


def _give_up(*_: str) -> None:
    raise _CompilingError


@functools.cache
def _resolve_backend(backend: Backend) -> Backend:
    """Return the backend to use, as `resolve_backend` does; but a forked process looks for a device.

    To look is to start the device's driver, which does not survive a fork.
    """
    if backend != "auto":
        return backend
    try:
        import fredsim.cuda  # noqa: F401  what every run would import otherwise
    except ConfigError:
        return "numba"
    return "cuda" if in_fork(lambda: resolve_backend("auto") == "cuda") else "numba"
