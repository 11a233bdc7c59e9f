"""The engine of the backend `cuda` for a network."""

from __future__ import annotations

from fredsim.compute.engines import Engine
from fredsim.cuda.engine import CudaEngine
from fredsim.cuda.networks.engine import CudaGraphEngine, check_kernels
from fredsim.cuda.squares_engine import CudaLeastSquares, CudaQuadratic
from fredsim.data.datasets import Dataset
from fredsim.data.problems import Quadratic
from fredsim.errors import ConfigError
from fredsim.networks.graph import Graph
from fredsim.networks.linear import is_linear
from fredsim.networks.mlp import as_mlp
from fredsim.numerics.distributions import Draw

__all__ = ["can_compute", "make_engine"]


def can_compute(graph: Graph, dataset: Dataset, mu: int) -> bool:
    """Return whether there are kernels for a network and minibatches of µ samples, so that `make_engine` succeeds."""
    if isinstance(dataset, Quadratic) or as_mlp(graph) is not None or is_linear(graph):
        return True
    try:
        check_kernels(graph, dataset, mu)
    except ConfigError:
        return False
    return True


def make_engine(graph: Graph, dataset: Dataset, mu: int, draw: Draw) -> Engine:
    """Return the engine of a network for minibatches of µ samples; raise ConfigError for what has no kernels."""
    if isinstance(dataset, Quadratic):
        return CudaQuadratic(dataset, draw)
    if mlp := as_mlp(graph):
        return CudaEngine(mlp, dataset, mu, draw)
    if is_linear(graph):
        return CudaLeastSquares(dataset, mu, draw)
    return CudaGraphEngine(graph, dataset, mu, draw)
