"""Which way a run is computed. All of them give the same bits; what is known ahead decides how soon.

`hand`: clients hold the work they have in hand; needs an elementwise rule whose coefficients follow from timestamp and
staleness alone, and every fetch known ahead. `snapshots`: clients hold the parameters they fetched; any server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fredsim.adapters import AdaptedServer
from fredsim.backends import Backend
from fredsim.errors import ConfigError
from fredsim.protocol import Protocol

__all__ = ["PATHS", "Choice", "Path", "choose_path"]

Path = Literal["auto", "hand", "snapshots"]
PATHS = {
    "auto": "the fastest that a run can take (default)",
    "hand": "clients hold the work they have in hand",
    "snapshots": "clients hold the parameters they fetched",
}


@dataclass(frozen=True)
class Choice:
    """The path of a run, and why."""

    path: Literal["hand", "snapshots"]
    why: str


def choose_path(wanted: Path, backend: Backend, server: AdaptedServer, protocol: Protocol) -> Choice:
    """Return the path. Raises ConfigError where a path is wanted that the run cannot take."""
    hindrance = _hindrance(backend, server, protocol)
    if hindrance and wanted == "hand":
        raise ConfigError(f"path is hand; {hindrance}: leave path out, or give snapshots")
    if wanted == "snapshots":
        return Choice("snapshots", "path: snapshots")
    if hindrance:
        return Choice("snapshots", hindrance)
    return Choice("hand", "an elementwise rule, and an order and fetches that are known ahead")


def _hindrance(backend: Backend, server: AdaptedServer, protocol: Protocol) -> str:
    """Return why clients cannot hold work in hand, or nothing."""
    if backend != "numba":
        return f"the backend {backend} computes one way only"
    for gate, what in ((protocol.push_gate, "push"), (protocol.fetch_gate, "fetch")):
        if gate is not None:
            return f"a {what} may be dropped"
    if protocol.compressor is not None:
        return "pushes are compressed"
    if protocol.local_steps > 1:
        return "clients take several local steps"
    return server.unforeseen
