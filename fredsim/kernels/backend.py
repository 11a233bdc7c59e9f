"""The engine of the numba backend for a network."""

from __future__ import annotations

from fredsim.compute.engines import Engine
from fredsim.data.datasets import Dataset
from fredsim.data.problems import Quadratic
from fredsim.kernels.mlp.engine import NumbaEngine, NumbaEngineByRule
from fredsim.kernels.mlp.pending import slot_bytes
from fredsim.kernels.mlp.workspace import WorkspaceLayout, block_size
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.kernels.quadratic import NumbaQuadratic
from fredsim.networks.graph import Graph
from fredsim.networks.mlp import as_mlp, dense_layers

__all__ = ["make_engine", "pending_bytes"]


def make_engine(graph: Graph, dataset: Dataset, mu: int, threads: int | None) -> Engine:
    """Return the engine of a network for minibatches of µ samples."""
    if isinstance(dataset, Quadratic):
        return NumbaQuadratic(dataset, threads)
    layers = None if dataset.rewritten else dense_layers(graph)
    if layers is None:
        return NumbaGraphEngine(graph, dataset, mu, threads)
    if mlp := as_mlp(graph):
        return NumbaEngine(mlp, dataset, mu, threads)
    return NumbaEngineByRule(graph, layers, dataset, mu, threads)


def pending_bytes(graph: Graph, mu: int) -> int:
    """Return the bytes of the pending passes of one minibatch, of a network that takes the path `hand`."""
    layers = dense_layers(graph)
    assert layers is not None
    return slot_bytes(WorkspaceLayout(layers.sizes, mu, block_size(mu), 1), mu)
