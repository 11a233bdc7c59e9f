"""Starts the parts of a run, chooses its path, and makes the simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fredsim.simulation.paths.choice import Abilities, Choice, choose_path
from fredsim.simulation.paths.fused import Fused
from fredsim.simulation.paths.hand import HandByRule, HandWholeGradients
from fredsim.simulation.paths.loop import Parts, Simulation
from fredsim.simulation.paths.queued import Queued
from fredsim.simulation.paths.scheduled import Scheduled
from fredsim.simulation.paths.snapshots import Snapshots, pushes_may_be_cancelled
from fredsim.simulation.plugins.contract import Contract
from fredsim.simulation.plugins.protocol import Protocol, check
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.simulation.schedule.guarded_clock import GuardedClock

__all__ = ["arrivals_react", "make_simulation"]


def make_simulation(parts: Parts) -> Simulation:
    """Start the parts and return the run's simulation.

    Raises ConfigError if the parts do not fit together, SimulationError if a user's part breaks its contract.
    """
    server, layout = parts.server, parts.model.layout
    may_cancel = pushes_may_be_cancelled(parts.dispatcher, server.contract)
    context = RunContext(parts.clients, layout, parts.streams, parts.engine.operations, lambda: parts.pool, may_cancel)
    context.call_init(parts.dispatcher)
    parts.protocol.start(context)
    server.start(parts.params, context, parts.recorder)
    contract, protocol = server.contract, parts.protocol
    if not contract.built_in:  # whose `init` may have changed the initial parameters: clients begin from the server's
        parts.params[...] = np.asarray(server.params)
    check(protocol, contract)
    reacts = _configure_clock(parts)
    choice = choose_path(
        parts.path, parts.backend, contract, protocol, parts.events,
        can=Abilities.of(parts.engine), probed=parts.probe is not None, reacts=reacts,
        may_give_up=parts.dispatcher.may_give_up, in_updates=parts.length.updates is not None,
    )  # fmt: skip
    paths: dict[str, Callable[[Parts, Choice], Simulation]]
    paths = {
        "hand": partial(Scheduled, stretches=HandWholeGradients if choice.whole else HandByRule),
        "fused": Fused,
        "queued": partial(Scheduled, stretches=Queued),
        "snapshots": Snapshots,
        "live": Snapshots,
    }
    return paths[choice.path](parts, choice)


def _configure_clock(parts: Parts) -> bool:
    """Tell the clock, if there is one, about the run; return whether what is computed affects who arrives when."""
    clock = parts.dispatcher
    if not isinstance(clock, GuardedClock):
        return False
    reacts = arrivals_react(clock, parts.server.contract, parts.protocol)
    work = parts.protocol.work
    size = parts.params.nbytes * work.copied_arrays
    clock.configure(reacts=reacts, size=size, steps=work.steps_of_tasks, until=parts.length.until)
    return reacts


def arrivals_react(clock: GuardedClock, contract: Contract, protocol: Protocol) -> bool:
    """Return whether what is computed affects who arrives when: by the server's replies, or by the sizes of copies.

    So does, as it seems to a clock, an optimizer of the user's: it is called in the order in which pushes are sent.
    """
    sizes = protocol.push_gate, protocol.fetch_gate, protocol.compressor, contract.bytes_pushed, contract.bytes_fetched
    drawn, sent = protocol.fraction < 1, any(sizes) or protocol.work.own
    return contract.holds or contract.cancels or drawn or (not clock.clock.sends_on_arrival and sent)
