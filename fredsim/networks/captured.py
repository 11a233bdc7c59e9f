"""A network that was captured from a PyTorch module: its graph, and the initial parameters that PyTorch drew.

Both are kept in a run's folder, so that the run can be verified without PyTorch and without the module's code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.given import GivenNetwork
from fredsim.networks.graph import Graph, Node
from fredsim.networks.initial import initial_parameters
from fredsim.networks.layout import Layout
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.views import Cat, Permute, Reshape, Slice
from fredsim.numerics.streams import Streams
from fredsim.system.tensor_files import parse_tensors

__all__ = ["GRAPH_FILE", "INITIAL_FILE", "CapturedNetwork", "lacking_rows", "table_rows"]

SOME = 4096  # samples that are looked at together
GRAPH_FILE, INITIAL_FILE = "graph.json", "initial.safetensors"


class CapturedNetwork(GivenNetwork):
    """A graph, and the initial values of its tensors, float32 (P,).

    `files` has the SHA-256 of the files that the module's factory has read; `remarks` what was perhaps not meant;
    `code`, of a network that was read from a run's folder, the SHA-256 of the modules that it was captured from.
    `statistics` are the running statistics that clients begin with, in the order of the graph's.
    """

    def __init__(
        self,
        graph: Graph,
        initial: NDArray[np.float32],
        files: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
        code: Mapping[str, str] | None = None,
        statistics: Sequence[NDArray[np.float32]] = (),
    ) -> None:
        super().__init__(graph, initial, files)
        self._remarks, self._code, self._statistics = remarks, dict(code or {}), list(statistics)

    @classmethod
    def of_files(
        cls, graph: bytes, initial: bytes, files: Mapping[str, str] | None = None, code: Mapping[str, str] | None = None
    ) -> CapturedNetwork:
        """Return the network of what `saved` returned. Raises ValueError, which names the file and what is wrong."""
        from fredsim.networks.saved import graph_of_text

        try:
            found = graph_of_text(graph)
        except ValueError as error:
            raise ValueError(f"{GRAPH_FILE}: {error}") from None
        try:
            tensors = parse_tensors(initial)
        except ValueError as error:
            raise ValueError(f"{INITIAL_FILE}: {error}") from None
        params = np.empty(found.layout.size, np.float32)
        statistics = Layout(()) if found.running is None else found.statistics
        running = np.empty(statistics.size, np.float32)
        views = found.layout.split(params) | statistics.split(running)
        if tensors.keys() != views.keys():
            raise ValueError(f"{INITIAL_FILE}: its tensors are not those of {GRAPH_FILE}")
        for name, view in views.items():
            given = tensors[name]
            if given.dtype != np.float32 or given.shape != view.shape:
                raise ValueError(f"{INITIAL_FILE}: {name} is {given.dtype} {given.shape}, not float32 {view.shape}")
            view[...] = given
        return cls(found, params, files, code=code, statistics=[*statistics.split(running).values()])

    def drawn(self, streams: Streams, init: str, std: float) -> CapturedNetwork:
        """Return the network with initial values that fredsim draws: `initial_parameters`."""
        values = initial_parameters(self._graph, streams, init, std)
        return CapturedNetwork(self._graph, values, self._files, self._remarks, self._code, self._statistics)

    def statistics(self) -> list[NDArray[np.float32]]:
        """Return the running statistics that clients begin with: those of the module."""
        return self._statistics

    @cached_property
    def made(self) -> str:
        """The SHA-256 of the graph and the values with which a run begins."""
        from fredsim.networks.saved import text_of_graph

        found = hashlib.sha256(text_of_graph(self._graph).encode())
        for values in (self._initial, *self._statistics):
            found.update(values.tobytes())
        return found.hexdigest()

    def saved(self) -> dict[str, bytes]:
        """Return the contents of the files that a run's folder keeps of it, by name."""
        from safetensors.numpy import save

        from fredsim.networks.saved import text_of_graph

        tensors = self._graph.layout.split(self._initial)
        if self._graph.running is not None:
            tensors |= dict(zip(self._graph.running.names, self._statistics, strict=True))
        return {GRAPH_FILE: text_of_graph(self._graph).encode(), INITIAL_FILE: save(tensors)}

    @property
    def code(self) -> Mapping[str, str]:
        """The SHA-256 of the modules that a recorded network was captured from, by name."""
        return self._code

    def remarks(self, x: NDArray[Any]) -> Iterator[str]:
        """Yield what was perhaps not meant."""
        del x
        yield from self._remarks


def _tables(graph: Graph) -> tuple[dict[int, int], dict[int, Node]]:
    """Return the rows of the smallest table from which each value chooses, and the values that are parts of samples."""
    tables, parts = dict[int, int](), dict[int, Node]()
    for value, node in enumerate(graph.nodes, start=1):
        if not any(i == 0 or i in parts for i in node.inputs):
            continue
        if isinstance(node.operator, Embedding):
            tables[node.inputs[0]] = min(node.operator.rows, tables.get(node.inputs[0], node.operator.rows))
        elif isinstance(node.operator, Reshape | Permute | Slice | Cat):
            parts[value] = node
    return tables, parts


def table_rows(graph: Graph) -> int | None:
    """Return how many rows all tables have from which samples choose.

    None if there are none, or if parts of a sample may have tables of their own.
    """
    tables, parts = _tables(graph)
    divided = any(isinstance(node.operator, Slice) for node in parts.values())
    return None if divided else min(tables.values(), default=None)


def lacking_rows(graph: Graph, *samples: NDArray[Any]) -> str:
    """Return what is wrong if a sample chooses a row that a table lacks; "" if none does."""
    tables, parts = _tables(graph)
    for x in samples:
        for value, rows in tables.items():
            low, high = _range_of(x, graph, parts, value)
            if not 0 <= low <= high < rows and len(x):
                return f"has a table of {rows} rows; samples choose the rows {low:g} … {high:g}"
    return ""


def _range_of(x: NDArray[Any], graph: Graph, parts: Mapping[int, Node], value: int) -> tuple[Any, Any]:
    """Return the lowest and the highest number in samples, or in the part of each that a value is."""
    if not any(isinstance(node.operator, Slice) for node in parts.values()) or not len(x):
        return (x.min(), x.max()) if x.size else (0, 0)

    def part_of(some: NDArray[Any], value: int) -> NDArray[Any]:
        if value not in parts:  # what samples are joined to, if it is not they: 0, a row that each table has
            return some if value == 0 else np.zeros((len(some), *graph.shapes[value]), some.dtype)
        node = parts[value]
        return node.operator.forward([part_of(some, i) for i in node.inputs], {})[0]

    found = []
    for begin in range(0, len(x), SOME):
        some = np.asarray(x[begin : begin + SOME])
        part = part_of(some.reshape(len(some), *graph.sample), value)
        found.append((part.min(), part.max()))
    return min(low for low, _ in found), max(high for _, high in found)
