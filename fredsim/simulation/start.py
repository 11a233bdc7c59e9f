"""The start of a run: its server is started, and the path chosen that it can take."""

from __future__ import annotations

from fredsim.compute.engines import NativeEngine
from fredsim.simulation.adapters import AdaptedServer
from fredsim.simulation.fused import Fused
from fredsim.simulation.loop import Parts, Simulation
from fredsim.simulation.paths import choose_path
from fredsim.simulation.protocol import check
from fredsim.simulation.scheduled import Queued, WorkInHand
from fredsim.simulation.snapshots import Snapshots

__all__ = ["make_simulation"]


def make_simulation(parts: Parts) -> Simulation:
    """Start the server and return a run's simulation, by the path that it can take.

    Raises ConfigError where parts do not go together, SimulationError where a user's part breaks its contract.
    """
    server = AdaptedServer(
        parts.server, parts.params, parts.clients, parts.model.layout, parts.engine, parts.streams, parts.recorder
    )
    check(parts.protocol, server)
    events, probed, native = parts.length.events, parts.probe is not None, isinstance(parts.engine, NativeEngine)
    choice = choose_path(parts.path, parts.backend, server, parts.protocol, events, probed=probed, native=native)
    simulation = {"hand": WorkInHand, "fused": Fused, "queued": Queued, "snapshots": Snapshots}[choice.path]
    return simulation(parts, server, choice)
