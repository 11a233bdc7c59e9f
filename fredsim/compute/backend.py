"""The engines of the NumPy backend, and of a problem, which every backend has."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fredsim.compute.engines import BackendOperations, Engine
from fredsim.compute.graph_engine import GraphEngine
from fredsim.compute.problem_engine import ProblemEngine
from fredsim.compute.quadratic_engine import NumpyQuadratic
from fredsim.data.datasets import Dataset
from fredsim.data.problems import Quadratic
from fredsim.networks.graph import Graph
from fredsim.networks.network import Network
from fredsim.networks.own_problem import OwnProblem

__all__ = ["make_engine", "problem_engine"]


def make_engine(graph: Graph, dataset: Dataset) -> Engine:
    """Return the engine of a network."""
    return NumpyQuadratic(dataset) if isinstance(dataset, Quadratic) else GraphEngine(graph, dataset)


def problem_engine(network: Network, threads: int, operations: Callable[[], BackendOperations]) -> Engine | None:
    """Return the engine of a user's own problem; None for a network that is none. `operations` makes its operations."""
    return cast(Engine, ProblemEngine(network, threads, operations())) if isinstance(network, OwnProblem) else None
