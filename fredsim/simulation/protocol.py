"""How clients and server exchange copies: gates, dropped pushes, compression, local steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

from fredsim.config.choices import DroppedPush
from fredsim.config.experiment import Experiment
from fredsim.config.registry import build
from fredsim.dispatchers.gates import Always, spelled_out
from fredsim.errors import ConfigError
from fredsim.models.layout import Layout
from fredsim.numerics.streams import Stream, Streams
from fredsim.plugins.guarded import Adapted
from fredsim.servers.window_average import WindowAverage
from fredsim.simulation.adapters import AdaptedServer
from fredsim.simulation.exchanges import AdaptedCompressor, AdaptedGate

__all__ = ["Protocol", "check", "make_protocol", "own_settings"]


@dataclass(frozen=True)
class Protocol:
    """How clients and server exchange copies."""

    wait: bool = True
    push_gate: AdaptedGate | None = None  # None lets everything pass
    fetch_gate: AdaptedGate | None = None
    dropped_push: DroppedPush = "reapply"
    compressor: AdaptedCompressor | None = None
    replica: bool = False  # whether a client that did not fetch steps by itself
    fred_timestamps: bool = False  # whether a dropped fetch refreshes the timestamp all the same
    local_steps: int = 1


def make_protocol(
    experiment: Experiment, server: Any, layout: Layout, streams: Streams, *, tried_out: bool = False
) -> Protocol:
    """Return the protocol of an experiment with its parts started; a server may bring settings of its own along.

    With `tried_out` the layout is none of a real model, and gates and compressor are not started.

    Raises ConfigError where the experiment gives a setting that the server brings.
    """
    choice, clients = experiment.dispatcher, experiment.clients
    settings = {key: getattr(choice, key) for key in SETTINGS}
    usual = type(choice)()
    for key, value in own_settings(server).items():
        if settings[key] != getattr(usual, key):
            raise ConfigError(f"dispatcher.{key} is given; the server {experiment.server.name} brings its own")
        settings[key] = value
    tensors = [4 * math.prod(shape) for _, shape in layout.tensors]
    gates: dict[str, AdaptedGate | None] = {}
    for key, stream in (("push", Stream.PUSH_GATE), ("fetch", Stream.FETCH_GATE)):
        gate = build("gate", *spelled_out(settings[key]))
        adapted = gates[key] = None if isinstance(gate, Always) else AdaptedGate(gate)
        if adapted and not tried_out:
            adapted.init(clients.count, tensors, streams, stream)
    compressor = None
    if experiment.compress is not None:
        compressor = AdaptedCompressor(build("compressor", experiment.compress.name, experiment.compress.hyper))
        if not tried_out:
            compressor.init(layout, streams)
    local_steps = own_local_steps(server, clients.local_steps)
    if clients.local_steps not in {1, local_steps}:
        raise ConfigError(
            f"clients.local_steps is {clients.local_steps}; the server {experiment.server.name} sets {local_steps}"
        )
    return Protocol(
        wait=choice.wait,
        push_gate=gates["push"],
        fetch_gate=gates["fetch"],
        dropped_push=settings["dropped_push"],
        compressor=compressor,
        replica=settings["replica"],
        fred_timestamps=choice.fred_timestamps,
        local_steps=local_steps,
    )


SETTINGS = ("push", "fetch", "dropped_push", "replica")


def own_settings(server: Any) -> dict[str, Any]:
    """Return the dispatcher's settings that a server brings along, by its method `gates`. Raises SimulationError."""
    adapted = _adapted(server)
    if not adapted.has("gates"):
        return {}
    found = adapted.call("gates")
    if not isinstance(found, dict) or not found.keys() <= set(SETTINGS):
        raise adapted.broken("gates", f"returned {found!r}; it must return a dict of {', '.join(SETTINGS)}")
    for key, value in found.items():
        try:
            if key in {"push", "fetch"}:
                spelled_out(value)
            elif value not in (get_args(DroppedPush) if key == "dropped_push" else (True, False)):
                known = ", ".join(get_args(DroppedPush)) if key == "dropped_push" else "true, false"
                raise ValueError(f"is {value!r}; it must be one of {known}")
        except ValueError as error:
            raise adapted.broken(f"gates, {key}", str(error)) from None
    return found


def own_local_steps(server: Any, usual: int) -> int:
    """Return the local steps between two pushes, where the server has a say in them. Raises SimulationError."""
    adapted = _adapted(server)
    found = adapted.get("local_steps", usual)
    adapted.check_count(found, "local_steps")
    return int(found)


def _adapted(server: Any) -> Adapted:
    return Adapted(server.server if isinstance(server, WindowAverage) else server)


def check(protocol: Protocol, server: AdaptedServer) -> None:
    """Raise ConfigError where a protocol and a server do not go together."""
    if server.holds and not protocol.wait:
        raise ConfigError("dispatcher.wait is false; the server holds its clients, so they must wait")
    for name, gate in (("push", protocol.push_gate), ("fetch", protocol.fetch_gate)):
        if gate and gate.needs_statistics and not server.has_deviation:
            raise ConfigError(
                f"dispatcher.{name} asks for the gradients' deviation v, which this server does not keep; fasgd does"
            )
    sums = protocol.dropped_push in {"accumulate", "average"}
    if sums and server.pushes == "params":
        raise ConfigError(
            f"dispatcher.dropped_push is {protocol.dropped_push}; the server's clients push parameters, whose sums "
            "mean nothing; use skip or reapply"
        )
    if protocol.push_gate and server.corrects and protocol.dropped_push != "skip":
        raise ConfigError(
            f"dispatcher.dropped_push is {protocol.dropped_push}; the server corrects a gradient by the parameters "
            "that it was computed from, and one that is applied again or summed with others cannot be; use skip"
        )
    if protocol.compressor and server.pushes == "params":
        raise ConfigError(
            "compress is given; the server's clients push parameters, whose errors would not shrink with the steps; "
            "leave it out, or take a server whose clients push differences, such as fedbuff"
        )
    if protocol.compressor and protocol.push_gate and protocol.push_gate.per_tensor:
        raise ConfigError("compress is given; a push that passes tensor by tensor cannot be compressed as one")
    if protocol.replica and (protocol.local_steps > 1 or server.pushes != "gradient"):
        raise ConfigError("dispatcher.replica is true; it goes with clients that push single gradients only")
