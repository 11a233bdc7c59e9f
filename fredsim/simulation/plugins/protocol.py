"""The protocol by which clients and server exchange pushes and fetches: gates, dropped pushes, compression, steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from fredsim.config.choices import DroppedPush
from fredsim.config.experiment import Experiment
from fredsim.config.registry import build
from fredsim.dispatchers.gates import spelled_out
from fredsim.dispatchers.gates.always import Always
from fredsim.errors import ConfigError
from fredsim.numerics.streams import Stream
from fredsim.simulation.plugins.client_work import ClientWork, make_work
from fredsim.simulation.plugins.contract import SETTINGS, Contract
from fredsim.simulation.plugins.guarded_plugins import GuardedCompressor, GuardedGate
from fredsim.simulation.plugins.run_context import RunContext

__all__ = ["Protocol", "check", "make_compressor", "make_protocol"]


@dataclass(frozen=True)
class Protocol:
    """How clients and server exchange pushes and fetches."""

    wait: bool = True
    push_gate: GuardedGate | None = None  # None lets everything pass
    fetch_gate: GuardedGate | None = None
    dropped_push: DroppedPush = "reapply"
    compressor: GuardedCompressor | None = None
    replica: bool = False  # whether a client whose fetch was dropped takes a step with its own gradient
    fred_timestamps: bool = False  # whether a dropped fetch refreshes the timestamp all the same
    work: ClientWork = field(default_factory=ClientWork)
    fraction: float = 1.0  # the share of the clients that are at work at once
    stages: bool = False  # whether clients are pipelines
    current: bool = False  # whether gradients are computed at the server's parameters when a push arrives

    @property
    def local_steps(self) -> int:
        """How many local steps clients take; the most of the fastest client if they differ."""
        return self.work.steps

    @property
    def tasks_per_client(self) -> int:
        """How many tasks a client may have at once: without `wait`, one under way and one to begin."""
        return 1 if self.wait else 2

    def start(self, context: RunContext) -> None:
        """Start the gates and the compressor."""
        for part in (self.push_gate, self.fetch_gate, self.compressor):
            if part is not None:
                part.start(context)


def make_protocol(experiment: Experiment, contract: Contract) -> Protocol:
    """Return the protocol of an experiment, not started; the server's `gates()` may set some of its keys.

    Raises ConfigError if the experiment gives a key that the server sets, or if protocol and server do not fit.
    """
    asked, clients, server = experiment.dispatcher, experiment.clients, experiment.server.name
    settings = {key: getattr(asked, key) for key in SETTINGS}
    defaults = type(asked)()
    for key, value in contract.gates.items():
        if settings[key] != getattr(defaults, key):
            raise ConfigError(f"dispatcher.{key} is given; the server {server} brings its own")
        settings[key] = value
    gates: dict[str, GuardedGate | None] = {}
    for key, stream in (("push", Stream.PUSH_GATE), ("fetch", Stream.FETCH_GATE)):
        gate = build("gate", *spelled_out(settings[key]))
        gates[key] = None if isinstance(gate, Always) else GuardedGate(gate, stream)
    protocol = Protocol(
        wait=asked.wait,
        push_gate=gates["push"],
        fetch_gate=gates["fetch"],
        dropped_push=settings["dropped_push"],
        compressor=make_compressor(experiment),
        replica=settings["replica"],
        fred_timestamps=asked.fred_timestamps,
        work=make_work(clients, contract, server),
        fraction=clients.fraction,
        stages=experiment.stages is not None,
        current=clients.current,
    )
    check(protocol, contract)
    return protocol


def make_compressor(experiment: Experiment) -> GuardedCompressor | None:
    """Return the compressor of an experiment, not started, or None. Raises ConfigError."""
    compress = experiment.compress
    return None if compress is None else GuardedCompressor(build("compressor", compress.name, compress.hyper))


def check(protocol: Protocol, contract: Contract) -> None:
    """Raise ConfigError if a protocol and a server do not fit together."""
    if contract.holds and not protocol.wait:
        raise ConfigError("dispatcher.wait is false; the server holds its clients, so they must wait")
    for name, gate in (("push", protocol.push_gate), ("fetch", protocol.fetch_gate)):
        if gate and gate.needs_statistics and contract.v is False:
            raise ConfigError(
                f"dispatcher.{name} asks for the gradients' deviation v, which this server does not keep; fasgd does"
            )
    sums = protocol.dropped_push in {"accumulate", "average"}
    if sums and contract.pushes == "params":
        raise ConfigError(
            f"dispatcher.dropped_push is {protocol.dropped_push}; the server's clients push parameters, whose sums "
            "mean nothing; use skip or reapply"
        )
    if protocol.push_gate and contract.corrects and protocol.dropped_push != "skip":
        raise ConfigError(
            f"dispatcher.dropped_push is {protocol.dropped_push}; the server corrects a gradient by the parameters "
            "that it was computed from, and one that is applied again or summed with others cannot be; use skip"
        )
    if protocol.compressor and contract.pushes == "params":
        raise ConfigError(
            "compress is given; the server's clients push parameters, whose errors would not shrink with the steps; "
            "leave it out, or take a server whose clients push differences, such as fedbuff"
        )
    if protocol.compressor and contract.bytes_pushed:
        raise ConfigError(
            "compress is given; the server says by itself how many bytes a push takes (bytes_pushed), as it encodes "
            "it: leave compress out"
        )
    if protocol.compressor and protocol.push_gate and protocol.push_gate.per_tensor:
        raise ConfigError("compress is given; a push that passes tensor by tensor cannot be compressed as one")
    if protocol.replica and protocol.work != ClientWork():
        raise ConfigError("dispatcher.replica is true; it goes with clients that push single gradients only")
    _check_control_variates(protocol, contract)
    _check_fraction(protocol, contract)
    if protocol.stages and (why := _why_no_stages(protocol, contract)):
        raise ConfigError(f"stages is given; {why}: leave one of them out")
    if protocol.current and (why := _why_not_current(protocol, contract)):
        raise ConfigError(f"clients.current is true; {why}: leave one of them out")


def _why_no_stages(protocol: Protocol, contract: Contract) -> str:
    """Return why clients cannot be pipelines; else ''."""
    if contract.pushes != "gradient":
        return f"the server's clients push {contract.pushes}, and a pipeline gradients"
    if protocol.work.takes_steps or protocol.work.prox:
        return "clients take steps of their own (clients.local_steps, optimizer, pushes, prox or control_variates)"
    if not protocol.wait:
        return "dispatcher.wait is false, and the delays say already how far a pipeline is ahead"
    if protocol.replica:
        return "dispatcher.replica is true, and a stage has parameters of several ages"
    if protocol.fraction < 1:
        return "clients.fraction lets pipelines stand still"
    if contract.cancels:
        return "the server restarts clients, whose minibatches under way would be lost"
    if contract.begins and not contract.built_in:
        return "the server has a method begins, and the parameters that a pipeline begins from have several ages"
    return "clients.current is true" if protocol.current else ""


def _why_not_current(protocol: Protocol, contract: Contract) -> str:
    """Return why gradients cannot be computed at the server's parameters; else ''."""
    if contract.pushes != "gradient":
        return f"the server's clients push {contract.pushes}, which no gradient at its own parameters is"
    if protocol.work.takes_steps or protocol.work.prox:
        return "clients take steps of their own (clients.local_steps, optimizer, pushes, prox or control_variates)"
    if protocol.push_gate or protocol.compressor:
        return "clients send samples, which neither dispatcher.push nor compress takes"
    if protocol.replica:
        return "dispatcher.replica is true, and clients have no gradients"
    if contract.bytes_pushed:
        return "the server counts the bytes of gradients that clients push"
    if contract.corrects or contract.begins:
        return "the server notes what gradients are computed from, when clients fetch"
    return ""


def _check_control_variates(protocol: Protocol, contract: Contract) -> None:
    """Raise ConfigError if SCAFFOLD's control variates do not go with a protocol and a server."""
    if not protocol.work.control_variates:
        return
    why = ""
    if protocol.push_gate or protocol.fetch_gate:
        why = "a gate may drop a copy, and the control variates with it"
    elif protocol.compressor:
        why = "compress is given, and the control variates are not compressed"
    elif not protocol.wait:
        why = "dispatcher.wait is false"
    elif contract.cancels:
        why = "the server restarts clients, whose control variates would be lost"
    if why:
        raise ConfigError(f"clients.control_variates is true; {why}: leave one of them out")


def _check_fraction(protocol: Protocol, contract: Contract) -> None:
    """Raise ConfigError if a share of the clients cannot be drawn."""
    if protocol.fraction == 1.0:
        return
    why = ""
    if protocol.fetch_gate:
        why = "a client that was drawn must fetch, and a gate may drop it (dispatcher.fetch)"
    elif not protocol.wait:
        why = "dispatcher.wait is false, so that clients never wait to be drawn"
    elif contract.cancels:
        why = "the server restarts clients"
    elif contract.pushes == "params" and contract.fetch:
        why = "the server's clients push their own parameters and go on from them, which one that is not drawn loses"
    elif contract.holds and not contract.takes_fraction:
        why = "the server waits for clients by name, and one that is not drawn never comes"
    if why:
        raise ConfigError(f"clients.fraction is {protocol.fraction:g}; {why}: leave one of them out")
