"""The protocol by which clients and server exchange pushes and fetches: gates, dropped pushes, compression, steps."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

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

__all__ = ["Protocol", "check", "counts_whole", "make_compressor", "make_protocol"]

#: Of what servers with pushes of parameters and a method `fetch` give to clients nobody can tell that it is not theirs.
GO_ON = "the server's clients push their own parameters and, since it has a fetch of its own, may go on from them"


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
    def tasks_per_client(self) -> int:
        """How many tasks a client may have at once: without `wait`, one under way and one to begin."""
        return 1 if self.wait else 2

    @property
    def gates(self) -> list[GuardedGate]:
        """The gates that there are."""
        return [gate for gate in (self.push_gate, self.fetch_gate) if gate is not None]

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
            own = f"clients of the server {server} must {key} every time: leave it out"
            raise ConfigError(
                f"dispatcher.{key} is given; {own if value == 'always' else f'the server {server} brings its own'}"
            )
        settings[key] = value
    gates: dict[str, GuardedGate | None] = {}
    for key, stream in (("push", Stream.PUSH_GATE), ("fetch", Stream.FETCH_GATE)):
        gate = build("gate", *spelled_out(settings[key]))
        gates[key] = None if type(gate) is Always else GuardedGate(gate, stream)  # a derived class may drop copies
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
    sums, moves = protocol.dropped_push in {"accumulate", "average"}, contract.pushes == "params" and contract.fetch
    if sums and contract.pushes == "params":
        raise ConfigError(
            f"dispatcher.dropped_push is {protocol.dropped_push}; the server's clients push parameters, whose sums "
            f"mean nothing; use {'skip' if moves else 'skip or reapply'}"
        )
    if protocol.push_gate and moves and protocol.dropped_push == "reapply":
        raise ConfigError(
            f"dispatcher.dropped_push is reapply; {GO_ON}, and would go back to those that they pushed last; use skip"
        )
    if contract.corrects:
        _check_corrected(protocol)
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
    for name, gate, counts in (
        ("push", protocol.push_gate, contract.bytes_pushed),
        ("fetch", protocol.fetch_gate, contract.bytes_fetched),
    ):
        if gate and gate.per_tensor and counts:
            raise ConfigError(counts_whole(name))
    if protocol.compressor and protocol.push_gate and protocol.push_gate.per_tensor:
        raise ConfigError("compress is given; a push that passes tensor by tensor cannot be compressed as one")
    if protocol.replica and protocol.work != ClientWork():
        raise ConfigError(_no_replica(protocol.work, contract))
    for given, what, why_not in (
        (protocol.work.control_variates, "clients.control_variates is true", _why_no_control_variates),
        (protocol.fraction < 1, f"clients.fraction is {protocol.fraction:g}", _why_no_fraction),
        (protocol.stages, "stages is given", _why_no_stages),
        (protocol.current, "clients.current is true", _why_not_current),
    ):
        if given and (why := why_not(protocol, contract)):
            raise ConfigError(f"{what}; {why}: leave one of them out")


def counts_whole(copy: str) -> str:
    """Return why a gate for pushes or fetches cannot pass single tensors."""
    return (
        f"dispatcher.{copy} passes tensor by tensor, and the server says by itself how many bytes a whole {copy} "
        f"takes (bytes_{copy}ed); give a gate for whole copies"
    )


def _gate(copy: str, contract: Contract) -> str:
    """Return what a gate for pushes or fetches is called, for messages."""
    return f"the server's gate for {copy}es" if copy in contract.gates else f"dispatcher.{copy}"


def _replica(contract: Contract) -> str:
    """Return what says that clients are replicas, for messages."""
    return "the server's clients are replicas" if "replica" in contract.gates else "dispatcher.replica is true"


def _no_replica(work: ClientWork, contract: Contract) -> str:
    """Return the message that refuses replicas of clients that push something else than single gradients."""
    only = "clients that push single gradients only"
    if contract.pushes != "gradient":
        return f"dispatcher.replica is true; it goes with {only}"
    keys = {"form": "pushes", "steps": "local_steps", "varied": "local_steps"}  # those that have other names
    differ = [one.name for one in fields(work) if getattr(work, one.name) != one.default]
    named = dict.fromkeys(f"clients.{keys.get(name, name)}" for name in differ if name != "form" or not work.optimizer)
    given = " and ".join(named)
    if "replica" in contract.gates:
        are = "is" if len(named) == 1 else "are"
        return f"{given} {are} given; {_replica(contract)}, which push single gradients only: leave this out"
    return f"dispatcher.replica is true; it goes with {only}: leave out it, or {given}"


def _check_corrected(protocol: Protocol) -> None:
    """Raise ConfigError if a push may be no gradient of the parameters that its client began from."""
    of = "the server corrects a gradient by the parameters that it was computed from"
    if protocol.push_gate and protocol.dropped_push != "skip":
        raise ConfigError(
            f"dispatcher.dropped_push is {protocol.dropped_push}; {of}, and one that is applied again or summed with "
            "others cannot be; use skip"
        )
    if protocol.work.takes_steps:
        raise ConfigError(
            "clients take steps of their own (clients.local_steps, optimizer, pushes or control_variates); "
            f"{of}, and a sum of several steps, or a difference of parameters, is no such gradient: leave them out"
        )
    if protocol.compressor and protocol.compressor.adds_earlier:
        raise ConfigError(
            f"compress adds what earlier pushes left; {of}, and a sum with earlier ones is of none: give a compressor "
            "without memory, such as qsgd"
        )


def _why_no_stages(protocol: Protocol, contract: Contract) -> str:
    """Return why clients cannot be pipelines; else ''."""
    if contract.pushes != "gradient":
        return f"the server's clients push {contract.pushes}, and a pipeline gradients"
    if protocol.work.takes_steps or protocol.work.prox:
        return "clients take steps of their own (clients.local_steps, optimizer, pushes, prox or control_variates)"
    if not protocol.wait:
        return "dispatcher.wait is false, and the delays say already how far a pipeline is ahead"
    if protocol.replica:
        return f"{_replica(contract)}, and a stage has parameters of several ages"
    if protocol.fraction < 1:
        return "clients.fraction lets pipelines stand still"
    if contract.cancels:
        return "the server restarts clients, whose minibatches under way would be lost"
    if contract.begins and not contract.built_in:
        return "the server has a method begins, and the parameters that a pipeline begins from have several ages"
    if contract.corrects and contract.holds and protocol.push_gate:
        return "a pipeline whose push is dropped is ahead of the others, and a round's gradients of other parameters"
    return "clients.current is true" if protocol.current else ""


def _why_not_current(protocol: Protocol, contract: Contract) -> str:
    """Return why gradients cannot be computed at the server's parameters; else ''."""
    if contract.pushes != "gradient":
        return f"the server's clients push {contract.pushes}, which no gradient at its own parameters is"
    if protocol.work.takes_steps or protocol.work.prox:
        return "clients take steps of their own (clients.local_steps, optimizer, pushes, prox or control_variates)"
    if protocol.push_gate or protocol.compressor:
        return f"clients send samples, which neither {_gate('push', contract)} nor compress takes"
    if protocol.replica:
        return f"{_replica(contract)}, and clients have no gradients"
    if contract.bytes_pushed:
        return "the server counts the bytes of gradients that clients push"
    if contract.corrects or contract.begins:
        return "the server notes what gradients are computed from, when clients fetch"
    return ""


def _why_no_control_variates(protocol: Protocol, contract: Contract) -> str:
    """Return why SCAFFOLD's control variates do not go with a protocol and a server; else ''."""
    if protocol.push_gate or protocol.fetch_gate:
        gate = _gate("push" if protocol.push_gate else "fetch", contract)
        return f"{gate} may drop a copy, and the control variates with it"
    if protocol.compressor:
        return "compress is given, and the control variates are not compressed"
    if not protocol.wait:
        return "dispatcher.wait is false"
    return "the server restarts clients, whose control variates would be lost" if contract.cancels else ""


def _why_no_fraction(protocol: Protocol, contract: Contract) -> str:
    """Return why a share of the clients cannot be drawn; else ''."""
    if protocol.fetch_gate:
        return f"a client that was drawn must fetch, and {_gate('fetch', contract)} may drop it"
    if not protocol.wait:
        return "dispatcher.wait is false, so that clients never wait to be drawn"
    if contract.cancels:
        return "the server restarts clients"
    if contract.pushes == "params" and contract.fetch:
        return f"{GO_ON}, which one that is not drawn loses"
    if contract.holds and not contract.takes_fraction:
        return "the server holds clients, and does not say that it can do with those that are drawn (takes_fraction)"
    return ""
