"""Chooses the path on which a run is computed. All paths give the same bits; the more is known ahead, the faster.

- `hand`: clients hold pending passes, that is, activations and back-propagated errors (see hand.py). It needs
  fetches that all pass and an order of arrivals that nothing computed changes. A server's elementwise rule, whose
  coefficients follow from timestamp and staleness alone, is applied to a gradient row by row while it is formed; any
  other server gets whole gradients, one after the other.
- `fused`: clients hold the parameters they fetched; such a rule is applied as on `hand`, but a fetch may be refused.
- `snapshots`: clients hold the parameters they fetched, and gradients are formed whole, for any server.
- `queued`: such a rule is applied to whole stretches of iterations, if everything is known ahead, by a CUDA device or
  to the gradients of a PyTorch module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from fredsim.compute.engines import Engine
from fredsim.config.choices import Backend, PathName
from fredsim.errors import ConfigError
from fredsim.simulation.plugins.contract import Contract
from fredsim.simulation.plugins.protocol import Protocol
from fredsim.simulation.schedule.length import LONGEST_SCHEDULE

__all__ = ["Abilities", "Choice", "PathTaken", "choose_path"]

PathTaken = Literal["hand", "fused", "queued", "snapshots", "live"]

ORDER = "its kernels read an Mlp's parameters in place, and these have another order"
NOTES_BEGINS = "the server notes what clients compute from"


@dataclass(frozen=True)
class Choice:
    """The path of a run, and why it is not a faster one; `whole`: whether the path `hand` forms whole gradients."""

    path: PathTaken
    why: str
    whole: bool = False


class Abilities(NamedTuple):
    """What an engine can do: the attributes of Engine of these names."""

    why_whole: str = ""
    in_place: bool = True
    queues: bool = True
    keeps_passes: bool = True

    @classmethod
    def of(cls, engine: Engine) -> Abilities:
        """Return those of an engine."""
        return cls(engine.why_whole, engine.in_place, engine.queues, engine.keeps_passes)


def choose_path(
    wanted: PathName | Literal["live"],
    backend: Backend,
    contract: Contract,
    protocol: Protocol,
    events: int | None,
    *,
    can: Abilities,
    probed: bool,
    reacts: bool = False,
    may_give_up: bool = False,
    in_updates: bool = False,
) -> Choice:
    """Return the path of a run of about `events` events (None: unknown).

    `can`: what the engine can do. `probed`: the true B-staleness is measured. `reacts`: what is computed affects who
    arrives when. `may_give_up`: tasks may be given up. `in_updates`: the run's length is given in updates. Raises
    ConfigError if the path `wanted` cannot compute the run.
    """
    if wanted == "live":
        return Choice("live", "clients are real")
    why_snapshots = _first(
        _why_snapshots(contract, protocol),
        "a task may be given up" if may_give_up else "",
        "how long a fetch takes depends on whether it passes" if reacts else "",
    )
    why_not_rule = _first(why_snapshots, _why_not_rule(contract))
    why_not_known = _why_not_known(protocol, events, probed)
    why_not_whole = _why_not_hand(contract, protocol, in_updates=in_updates)  # matters only if there is no rule
    obstacles: dict[PathTaken, str] = {}  # by path, the fastest first, why it cannot be taken: "" if it can
    if backend == "numba":
        why_not_kept = "" if can.keeps_passes else "PyTorch does a client's passes when its push arrives"
        why_not_hand = why_not_rule and (why_not_whole if can.in_place else why_not_rule)
        obstacles["hand"] = _first(can.why_whole, why_not_kept, why_snapshots, why_not_known, why_not_hand)
        if can.queues:
            obstacles["queued"] = why_not_rule or why_not_known
        obstacles["fused"] = _first(can.why_whole, why_not_rule, "" if can.in_place else ORDER)
    elif backend == "cuda":
        obstacles["queued"] = _first("" if can.queues else can.why_whole, why_not_rule, why_not_known)
    obstacles["snapshots"] = ""
    if wanted != "auto":
        why_not = obstacles.get(wanted, f"the backend {backend} has no such path")
        if why_not:
            raise ConfigError(f"path is {wanted}; {why_not}: leave path out")
        return Choice(wanted, f"path is {wanted}", bool(why_not_rule))
    taken = next(path for path, why_not in obstacles.items() if not why_not)
    if not can.keeps_passes:
        obstacles.pop("hand", None)  # no run of such an engine takes it, so this says nothing about this one
    why = next(iter(obstacles.values()))  # why it is not the fastest path
    if backend == "numpy":
        why = "the backend numpy forms whole gradients"
    elif not why:
        all_known = "all that an event depends on is known ahead"
        why = f"{why_not_rule}; all else is known ahead" if why_not_rule else all_known
    return Choice(taken, why, bool(why_not_rule))


def _first(*reasons: str) -> str:
    """Return the first reason that is not empty; "" if all are."""
    return next(filter(None, reasons), "")


def _why_snapshots(contract: Contract, protocol: Protocol) -> str:
    """Return why only the path `snapshots` can handle the run's pushes; else ''."""
    if protocol.push_gate is not None:
        return "a push may be dropped"
    if protocol.compressor is not None:
        return "pushes are compressed"
    if protocol.work.several:
        return "clients take several local steps"
    if not protocol.work.plain:
        return "clients do more than the gradients' sums"
    if protocol.stages:
        return "the stages of a pipeline have parameters of different ages"
    if protocol.current:
        return "gradients are computed at the server's parameters when a push arrives"
    if protocol.fraction < 1:
        return "clients are drawn while the run goes on"
    if protocol.replica:
        return "a client that does not fetch steps by its own gradient"
    if contract.bytes_pushed or contract.bytes_fetched:
        return "the server counts the bytes of its copies itself"
    return "the server is told the time of each push" if contract.tell_time else ""


def _why_not_rule(contract: Contract) -> str:
    """Return why an update is more than the server's rule, applied to a gradient while it is formed; else ''."""
    if contract.metrics:
        return "the server records numbers of its own, push by push"
    return contract.whole_gradients or (NOTES_BEGINS if contract.begins else "")


def _why_not_hand(contract: Contract, protocol: Protocol, *, in_updates: bool) -> str:
    """Return why the path `hand` cannot serve a server that sees whole gradients; else ''."""
    if contract.holds or contract.cancels:
        return "the server decides which clients continue, and which start over"
    if contract.pushes != "gradient":
        return f"clients push {contract.pushes}, no gradients"
    if contract.fetch:
        return "the server says what a client fetches"
    if contract.begins and (contract.checked or not protocol.wait):
        # On this path those parameters are gone by then, or a user's server might write into them.
        return NOTES_BEGINS
    return "only the server knows how many pushes make an update" if in_updates and contract.timestamp else ""


def _why_not_known(protocol: Protocol, events: int | None, probed: bool) -> str:
    """Return why the whole schedule is not known ahead, or cannot be used; else ''."""
    if events is not None and events > LONGEST_SCHEDULE:
        return f"the order of more than {LONGEST_SCHEDULE:,} iterations is not kept in memory"
    if probed:
        return "the probe asks for the parameters that clients hold"
    return "" if protocol.fetch_gate is None else "a fetch may be refused"
