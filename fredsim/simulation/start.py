"""The start of a run: its parts are started, and its path is chosen."""

from __future__ import annotations

from fredsim.compute.engines import NativeEngine
from fredsim.simulation.fused import Fused
from fredsim.simulation.guarded_clock import GuardedClock
from fredsim.simulation.loop import Parts, Simulation
from fredsim.simulation.paths import choose_path
from fredsim.simulation.protocol import check
from fredsim.simulation.scheduled import Queued, WorkInHand
from fredsim.simulation.snapshots import Snapshots
from fredsim.simulation.supplies import Supplies

__all__ = ["make_simulation"]


def make_simulation(parts: Parts) -> Simulation:
    """Start the parts and return the run's simulation.

    Raises ConfigError where parts do not go together, SimulationError where a user's part breaks its contract.
    """
    server, supplies = parts.server, Supplies(parts.clients, parts.model.layout, parts.streams, parts.engine)
    supplies.start(parts.dispatcher)
    parts.protocol.start(supplies)
    server.start(parts.params, supplies, parts.recorder)
    contract, protocol = server.contract, parts.protocol
    check(protocol, contract)
    reacts = _settle_clock(parts)
    events, probed, native = parts.events, parts.probe is not None, isinstance(parts.engine, NativeEngine)
    choice = choose_path(
        parts.path, parts.backend, contract, protocol, events, probed=probed, native=native, reacts=reacts
    )
    simulation = {"hand": WorkInHand, "fused": Fused, "queued": Queued, "snapshots": Snapshots}[choice.path]
    return simulation(parts, choice)


def _settle_clock(parts: Parts) -> bool:
    """Say to a clock what it will be told; return whether what is computed has a say in who arrives when."""
    clock, contract, protocol = parts.dispatcher, parts.server.contract, parts.protocol
    if not isinstance(clock, GuardedClock):
        return False
    sizes = protocol.push_gate, protocol.fetch_gate, protocol.compressor, contract.bytes_pushed, contract.bytes_fetched
    reacts = contract.holds or contract.cancels or (not clock.instant and any(sizes))
    clock.settle(reacts=reacts, size=parts.params.nbytes, steps=protocol.local_steps)
    return reacts
