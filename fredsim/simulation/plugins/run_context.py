"""Calls the `init` of servers, dispatchers, gates and compressors, with what the run provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fredsim.compute.storage import Pool
from fredsim.hyper import Configurable
from fredsim.networks.layout import Layout
from fredsim.numerics.operations import Operations
from fredsim.numerics.streams import Streams
from fredsim.plugins.guarded import Guarded

__all__ = ["RunContext"]


@dataclass(frozen=True)
class RunContext:
    """What a run provides to `init`: the number of clients, the model's layout, random streams and operations.

    `pool` returns the pool of the arrays (P,) that a server keeps for single clients; None: it allocates them itself.
    `may_cancel`: whether the server may cancel pushes that are on their way.
    """

    clients: int
    layout: Layout
    streams: Streams
    operations: Operations
    pool: Callable[[], Pool] | None = None
    may_cancel: bool = False

    @property
    def tensors(self) -> list[int]:
        """The bytes of each tensor."""
        return [4 * size for size in self.layout.sizes]

    def call_init(self, plugin: Guarded, **own: Any) -> None:
        """Call a plug-in's `init` with the arguments that `plugin.signatures` lists, by position.

        An argument comes from `own` if it is there, else from this context. An object of a class derived from fredsim's
        is given streams, operations and pool first. Raises SimulationError if `init` fails.
        """
        if isinstance(plugin.inner, Configurable):
            plugin.inner.bind_runtime(self.streams, self.operations, self.pool)
        given = [own[name] if name in own else getattr(self, name) for name in plugin.signatures["init"]]
        plugin.guard("init", lambda: plugin.inner.init(*given))
        plugin.note_start()
