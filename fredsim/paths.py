"""Which way a run is computed. All of them give the same bits; what is known ahead decides how soon.

`hand`: clients hold the work they have in hand; needs an elementwise rule whose coefficients follow from timestamp and
staleness alone, and every fetch known ahead. `fused`: clients hold the parameters they fetched, and such a rule is
applied to a gradient row by row as it is formed; a fetch may be refused. `snapshots`: as fused, with whole gradients;
any server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fredsim.adapters import AdaptedServer
from fredsim.backends import Backend
from fredsim.errors import ConfigError
from fredsim.protocol import Protocol

__all__ = ["PATHS", "Choice", "Path", "Taken", "choose_path"]

Taken = Literal["hand", "fused", "snapshots"]
Path = Literal["auto", "hand", "fused", "snapshots"]
PATHS: dict[Path, str] = {
    "auto": "the fastest that a run can take (default)",
    "hand": "clients hold the work they have in hand",
    "fused": "clients hold the parameters they fetched; the rule is applied to a gradient as it is formed",
    "snapshots": "clients hold the parameters they fetched; the server gets whole gradients",
}


#: Iterations whose order is drawn ahead and kept: about 50 bytes each.
FORESEEN = 10_000_000


@dataclass(frozen=True)
class Choice:
    """The path of a run, and why it is no faster one."""

    path: Taken
    why: str


def choose_path(
    wanted: Path, backend: Backend, server: AdaptedServer, protocol: Protocol, events: int, *, native: bool
) -> Choice:
    """Return the path of a run of so many events at most; `native`: its model is a PyTorch module.

    Raises ConfigError where a path is wanted that the run cannot take.
    """
    against_fused = "a PyTorch module forms whole gradients" if native else _against_fused(backend, server, protocol)
    hindrances: dict[Taken, str] = {
        "hand": against_fused or _against_hand(protocol, events),
        "fused": against_fused,
        "snapshots": "",
    }
    if wanted != "auto":
        if hindrances[wanted]:
            raise ConfigError(f"path is {wanted}; {hindrances[wanted]}: leave path out")
        return Choice(wanted, f"path is {wanted}")
    taken = next(path for path, hindrance in hindrances.items() if not hindrance)
    return Choice(taken, hindrances["fused"] or hindrances["hand"] or "all that an event depends on is known ahead")


def _against_fused(backend: Backend, server: AdaptedServer, protocol: Protocol) -> str:
    """Return why a rule cannot be applied to rows as they are formed, or nothing."""
    if backend != "numba":
        return f"the backend {backend} forms whole gradients"
    if protocol.push_gate is not None:
        return "a push may be dropped"
    if protocol.compressor is not None:
        return "pushes are compressed"
    if protocol.local_steps > 1:
        return "clients take several local steps"
    if protocol.replica:
        return "a client that does not fetch steps by its own gradient"
    return server.unforeseen


def _against_hand(protocol: Protocol, events: int) -> str:
    if events > FORESEEN:
        return f"the order of more than {FORESEEN:,} iterations is not kept in memory"
    return "" if protocol.fetch_gate is None else "a fetch may be refused"
