"""Starts servers, dispatchers, gates and compressors: calls their `init` with what a run supplies to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fredsim.compute.storage import Pool
from fredsim.hyper import Configurable
from fredsim.models.layout import Layout
from fredsim.numerics.operations import Operations
from fredsim.numerics.streams import Streams
from fredsim.plugins.guarded import Guarded

__all__ = ["Supplies"]


@dataclass(frozen=True)
class Supplies:
    """What a run supplies to `init`: the number of clients, the model's layout, random streams and operations.

    `pool` returns the pool in which a server keeps its arrays (P,) for single clients; None: in plain memory.
    """

    clients: int
    layout: Layout
    streams: Streams
    operations: Operations
    pool: Callable[[], Pool] | None = None

    @property
    def tensors(self) -> list[int]:
        """The bytes of each tensor."""
        return [4 * size for size in self.layout.sizes]

    def start(self, plugin: Guarded, **own: Any) -> None:
        """Call a plug-in's `init` with the arguments of its kind, by position, from `own` or else from these supplies.

        An object of a class derived from fredsim's is given streams, operations and pool first. Raises SimulationError
        if `init` fails.
        """
        if isinstance(plugin.inner, Configurable):
            plugin.inner.equip(self.streams, self.operations, self.pool)
        plugin.call("init", *(own[name] if name in own else getattr(self, name) for name in plugin.signatures["init"]))
