"""A network that is given by its graph, whose initial parameters are drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.graph import Graph
from fredsim.networks.initial import initial_parameters
from fredsim.networks.layout import Layout
from fredsim.networks.network import Network
from fredsim.numerics.streams import Streams

__all__ = ["DrawnNetwork"]


class DrawnNetwork(Network):
    """A graph, and how its initial parameters are drawn: `init` and `std` of fredsim.networks.initial."""

    def __init__(self, graph: Graph, init: str = "he", std: float = 1.0) -> None:
        self._graph, self._init, self._std = graph, init, std

    @property
    def layout(self) -> Layout:
        """The layout of the graph."""
        return self._graph.layout

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    def initial(self, streams: Streams) -> NDArray[np.float32]:
        """Return the initial parameters, float32 (P,)."""
        return initial_parameters(self._graph, streams, self._init, self._std)
