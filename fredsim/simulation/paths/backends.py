"""Makes the engine of a backend: `numpy`, the slow reference; `numba`, threaded kernels; `cuda`, a GPU.

A backend's modules are imported only when it is used, so that its dependencies need not be installed otherwise.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.backend import make_engine as numpy_engine
from fredsim.compute.backend import problem_engine
from fredsim.compute.engines import BackendOperations, Engine
from fredsim.compute.graph_engine import NumpyBackendOperations
from fredsim.compute.partly_trained import PartlyTrained
from fredsim.compute.staged import Staged
from fredsim.compute.statistics import Statistics
from fredsim.config.choices import Backend
from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError
from fredsim.networks.captured import table_rows
from fredsim.networks.graph import Graph
from fredsim.networks.network import Network
from fredsim.numerics.distributions import Draw
from fredsim.numerics.subnormals import check_subnormals
from fredsim.system.limits import default_threads

__all__ = ["make_engine", "make_operations", "resolve_backend"]


def resolve_backend(backend: Backend) -> Backend:
    """Return the backend to use: `auto` stands for `cuda` if this machine has a CUDA device, else for `numba`."""
    if backend != "auto":
        return backend
    try:
        from fredsim.cuda.machines import EMULATED, machine

        machine()
    except ConfigError:
        return "numba"
    return "numba" if EMULATED else "cuda"


class HostDraws:
    """Random draws by numba on the host, for a backend that computes on a device; imports numba at the first draw."""

    @cached_property
    def _draw(self) -> Draw:
        from fredsim.jit.team import Team
        from fredsim.kernels.arrays.draws import NumbaDraws

        return NumbaDraws(Team(1)).draw

    def __call__(self, *counter: Any, **named: Any) -> NDArray[np.float64]:
        """Draw as fredsim.numerics.distributions.draw does."""
        return self._draw(*counter, **named)


def make_engine(backend: Backend, network: Network, dataset: Dataset, mu: int, threads: int | None) -> Engine:
    """Return a backend's engine for minibatches of µ samples; `threads` None means one thread per processor.

    A network without a graph has an engine of its own, which takes the servers' operations from the backend. Raises
    ConfigError if something that the backend needs is missing, or if it cannot compute the network; SimulationError if
    the processor has been told to flush subnormal numbers.
    """
    if dataset.staged:
        rows = None if network.graph is None else table_rows(network.graph)
        staged = Staged(lambda window: _make_engine(backend, network, window, mu, threads), dataset, mu, rows)
        engine = cast(Engine, staged)  # what it does not do itself, the engine in it does
    else:
        engine = _make_engine(backend, network, dataset, mu, threads)
    check_subnormals()
    if network.graph is not None and network.graph.frozen:
        return cast(Engine, PartlyTrained(engine, network.graph, network.values))
    return engine


def _make_engine(backend: Backend, network: Network, dataset: Dataset, mu: int, threads: int | None) -> Engine:
    if network.graph is None:
        operations = partial(make_operations, backend, threads)
        if (own := problem_engine(network, threads or default_threads(), operations)) is not None:
            return own
        if backend == "cuda":
            from fredsim.cuda.queue import WindowsExecutor
            from fredsim.native.on_device import make_engine as on_device

            return on_device(network, dataset, mu, threads, cast(Any, operations()), WindowsExecutor)
        from fredsim.native.engine import make_engine as native

        return native(network, dataset, mu, threads, _beside_pytorch(backend, threads or default_threads()))
    engine = _of_graph(backend, network.graph, dataset, mu, threads)
    if (running := network.graph.running) is not None:
        engine.statistics = Statistics(network.statistics(), running.served)
    return engine


def _of_graph(backend: Backend, graph: Graph, dataset: Dataset, mu: int, threads: int | None) -> Engine:
    if backend == "numpy":
        return numpy_engine(graph, dataset)
    if backend == "cuda":
        from fredsim.cuda.backend import make_engine as cuda

        return cuda(graph, dataset, mu, HostDraws())
    from fredsim.kernels.backend import make_engine as numba

    return numba(graph, dataset, mu, threads)


def _beside_pytorch(backend: Backend, threads: int) -> BackendOperations:
    """Return a backend's operations for servers, on PyTorch's own threads."""
    if backend == "numpy":
        return make_operations(backend, threads)
    from fredsim.kernels.arrays.operations import NumbaOperations
    from fredsim.native.threads import pytorch_team

    return NumbaOperations(threads, pytorch_team(threads))


def make_operations(backend: Backend, threads: int | None) -> BackendOperations:
    """Return a backend's operations for servers, without an engine; `threads` is as in `make_engine`."""
    if backend == "numpy":
        return NumpyBackendOperations()
    if backend == "cuda":
        from fredsim.cuda.operations import CudaOperations

        return CudaOperations(HostDraws())
    from fredsim.kernels.arrays.operations import NumbaOperations

    return NumbaOperations(threads)
