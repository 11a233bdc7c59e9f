"""The start of a run: its parts are started, and its path is chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fredsim.compute.engines import NativeEngine
from fredsim.models.linear import Linear
from fredsim.simulation.contract import Contract
from fredsim.simulation.fused import Fused
from fredsim.simulation.guarded_clock import GuardedClock
from fredsim.simulation.in_hand import OneByOne, WorkInHand
from fredsim.simulation.loop import Parts, Simulation
from fredsim.simulation.paths import Choice, choose_path
from fredsim.simulation.protocol import Protocol, check
from fredsim.simulation.scheduled import Queued
from fredsim.simulation.snapshots import Snapshots
from fredsim.simulation.supplies import Supplies

__all__ = ["make_simulation", "reacts_to"]


def make_simulation(parts: Parts, snapshots: Callable[[Parts, Choice], Snapshots] = Snapshots) -> Simulation:
    """Start the parts and return the run's simulation; `snapshots`: what does the path of that name.

    Raises ConfigError where parts do not go together, SimulationError where a user's part breaks its contract.
    """
    server, layout = parts.server, parts.model.layout
    supplies = Supplies(parts.clients, layout, parts.streams, parts.engine, lambda: parts.pool)
    supplies.start(parts.dispatcher)
    parts.protocol.start(supplies)
    server.start(parts.params, supplies, parts.recorder)
    contract, protocol = server.contract, parts.protocol
    if not contract.ours:  # clients begin from what a user's `init` made of them
        parts.params[...] = np.asarray(server.params)
    check(protocol, contract)
    reacts = _settle_clock(parts)
    events, probed, whole = parts.events, parts.probe is not None, ""
    if isinstance(parts.engine, NativeEngine):
        whole = "a PyTorch module forms whole gradients"
    elif isinstance(parts.model, Linear):
        whole = "a linear model forms whole gradients"
    choice = choose_path(
        parts.path, parts.backend, contract, protocol, events,
        probed=probed, whole=whole, reacts=reacts, limited=parts.dispatcher.limited,
        in_updates=parts.length.updates is not None,
    )  # fmt: skip
    paths: dict[str, Callable[[Parts, Choice], Simulation]]
    paths = {"hand": OneByOne if choice.whole else WorkInHand, "fused": Fused, "queued": Queued, "snapshots": snapshots}
    return paths[choice.path](parts, choice)


def _settle_clock(parts: Parts) -> bool:
    """Say to a clock what it will be told; return whether what is computed has a say in who arrives when."""
    clock = parts.dispatcher
    if not isinstance(clock, GuardedClock):
        return False
    reacts = reacts_to(clock, parts.server.contract, parts.protocol)
    size, steps = parts.params.nbytes, parts.protocol.local_steps
    clock.settle(reacts=reacts, size=size, steps=steps, until=parts.length.until)
    return reacts


def reacts_to(clock: GuardedClock, contract: Contract, protocol: Protocol) -> bool:
    """Return whether what is computed has a say in who arrives when."""
    sizes = protocol.push_gate, protocol.fetch_gate, protocol.compressor, contract.bytes_pushed, contract.bytes_fetched
    return contract.holds or contract.cancels or (not clock.instant and any(sizes))
