"""The engine of the NumPy backend for a network."""

from __future__ import annotations

from fredsim.compute.engines import Engine
from fredsim.compute.graph_engine import GraphEngine
from fredsim.compute.quadratic_engine import NumpyQuadratic
from fredsim.data.datasets import Dataset
from fredsim.data.problems import Quadratic
from fredsim.networks.graph import Graph

__all__ = ["make_engine"]


def make_engine(graph: Graph, dataset: Dataset) -> Engine:
    """Return the engine of a network."""
    return NumpyQuadratic(dataset) if isinstance(dataset, Quadratic) else GraphEngine(graph, dataset)
