"""The contract of a server: what it declares and which optional methods it has, read once per run.

Checks, the choice of the path and the event loop ask the contract, never the server. `read_contract` reads the
declarations before `init`, and they must not change in it; `complete` adds what only `init` may create.
docs/own_server.md explains every name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

from fredsim.config.choices import DroppedPush
from fredsim.config.plain_data import checked
from fredsim.dispatchers.gates import spelled_out
from fredsim.numerics.rules import Rule
from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.failures import said
from fredsim.plugins.guarded import BOOLEAN, Guarded, is_integer
from fredsim.servers.base import Array, Coefficients, Reply, Server, State, Steps
from fredsim.servers.checks import trusted_rule, why_whole_gradients
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.window_average import WindowAverage
from fredsim.simulation.record.recorder import Kind
from fredsim.simulation.record.server_metrics import check_metrics

__all__ = [
    "SETTINGS", "SIGNATURES", "Contract", "PushKind", "ServerMethods", "complete", "read_contract", "without_average",
]  # fmt: skip

PushKind = Literal["gradient", "delta", "params"]
"""What a server asks clients to push: gradients, differences of parameters, or parameters."""

#: Keys of the experiment's `dispatcher` section that a server's `gates()` may set itself.
SETTINGS = ("push", "fetch", "dropped_push", "replica")


class ServerMethods(Protocol):
    """The methods that a server may have, and their arguments, which are passed by position: docs/own_server.md."""

    params: Array
    timestamp: int
    finite: bool
    v: Array

    def expect(self, clients: int) -> None: ...  # noqa: D102
    def init(self, params: Array, clients: int) -> None: ...  # noqa: D102
    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None: ...  # noqa: D102
    def given_up(self, client_id: int, timestamp: int) -> Reply | None: ...  # noqa: D102
    def begins(self, client_id: int, params: Array, timestamp: int) -> None: ...  # noqa: D102
    def tell_time(self, seconds: float) -> None: ...  # noqa: D102
    def fetch(self, client_id: int) -> Array: ...  # noqa: D102
    def rate(self) -> float: ...  # noqa: D102
    def pushes_until_release(self) -> int: ...  # noqa: D102
    def bytes_pushed(self) -> int: ...  # noqa: D102
    def bytes_fetched(self) -> int: ...  # noqa: D102
    def gates(self) -> Mapping[str, Any]: ...  # noqa: D102
    def proxies(self, client_id: int, timestamp: int) -> dict[str, float]: ...  # noqa: D102
    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients: ...  # noqa: D102
    def take_state(self) -> State: ...  # noqa: D102
    def put_state(self, state: State) -> None: ...  # noqa: D102


#: By method of a server, the names of its arguments.
SIGNATURES = {
    name: tuple(inspect.signature(method).parameters)[1:]
    for name, method in vars(ServerMethods).items()
    if not name.startswith("_")
}


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What a server declares, which optional methods and attributes it has, and what is known about its updates."""

    name: str
    """The name of the server's class."""
    built_in: bool
    """Whether the class itself comes with fredsim; a user's class derived from one of fredsim's does not count."""
    derived: bool
    """Whether the class derives from fredsim.servers.Server."""

    pushes: PushKind = "gradient"
    holds: bool = False
    cancels: bool = False
    corrects: bool = False
    takes_fraction: bool = False
    local_steps: int | None = None
    gates: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Kind] = field(default_factory=dict)
    deviation: str = ""

    given_up: bool = False
    begins: bool = False
    tell_time: bool = False
    fetch: bool = False
    rate: bool = False
    pushes_until_release: bool = False
    bytes_pushed: bool = False
    bytes_fetched: bool = False
    proxies: bool = False
    take_state: bool = False
    put_state: bool = False

    timestamp: bool | None = None  # these three may be created in `init`: None as long as that is not known
    averaged_params: bool | None = None
    v: bool | None = None

    rule: Rule | None = None
    """The elementwise rule, if all that the server does with a push is to apply it, with coefficients that are known
    ahead; else None. Known after `init`."""
    per_client: int = 0
    """How many arrays (P,) the server keeps for each client; known after `init`."""
    whole_gradients: str = ""
    """Why the server must see whole gradients; empty if `rule` is all that it does. Known after `init`."""

    @property
    def checked(self) -> bool:
        """Whether the server is checked after each push, because some of its code may be a user's."""
        return not self.built_in and self.rule is None


METHODS = [name for name in SIGNATURES if name in Contract.__dataclass_fields__ and name != "gates"]


def without_average(server: Any) -> Any:
    """Return the server itself, unwrapped if a WindowAverage is around it."""
    return server.server if isinstance(server, WindowAverage) else server


class InspectedServer(Guarded):
    """A server of which only attributes are read, with errors turned into SimulationError."""

    signatures = SIGNATURES


def read_contract(server: Any, clients: int) -> Contract:
    """Tell a server that is not started yet how many clients there will be, and return its contract.

    Raises SimulationError if the server fails or a declaration is invalid, ConfigError if it refuses so many clients.
    """
    own = without_average(server)
    read = InspectedServer(own)
    if read.has("expect"):
        read.guard("expect", lambda: own.expect(clients))
    contract = Contract(
        name=type(own).__name__,
        built_in=is_built_in(type(own)),
        derived=isinstance(own, Server),
        gates=_gates(read, own),
        **_declared_v(own),
    )
    return replace(contract, **_declared(read, own))


def complete(contract: Contract, server: Any) -> Contract:
    """Return the completed contract of a started server. Raises SimulationError if `init` changed a declaration."""
    own = without_average(server)
    read, outside = InspectedServer(own), InspectedServer(server, own)
    read.where = outside.where = "init"
    for name, now in _declared(read, own).items():
        before = getattr(contract, name)
        plain = name in METHODS and not callable(read.get(name, None))  # a data attribute that has a method's name
        if now != before and not plain:
            what = "exists only after init" if name in METHODS else f"is {now!r} after init, and was {before!r} before"
            raise read.error(name, f"{what}; declare it in the class, in __init__ or in expect(clients)")
    whole = f"{contract.name if contract.derived else 'the server'} sees whole gradients"
    if isinstance(server, WindowAverage):
        whole = "the average needs the parameters after every update"
    elif isinstance(server, ElementwiseServer):
        whole = why_whole_gradients(server, ElementwiseServer)
    return replace(
        contract,
        timestamp=read.has("timestamp"),
        averaged_params=outside.has("averaged_params"),
        v=read.has("v"),
        rule=None if whole else trusted_rule(own),
        per_client=len(own.per_client) if isinstance(own, ElementwiseServer) else 0,
        whole_gradients=whole,
    )


def _declared(read: Guarded, own: Any) -> dict[str, Any]:
    """Return the declarations, which `init` must not change. Raises SimulationError if one is invalid."""
    pushes, steps = read.get("pushes", "gradient"), read.get("local_steps", None)
    if pushes not in get_args(PushKind):
        raise read.error("pushes", f"is {pushes!r}; it must be one of {', '.join(get_args(PushKind))}")
    if steps is not None:
        read.check_count(steps, "local_steps")
    found = {"pushes": pushes, "local_steps": steps, "metrics": check_metrics(read)}
    found |= {name: _flag(read, name) for name in ("holds", "cancels", "corrects", "takes_fraction")}
    return found | {name: _has(read, own, name) for name in METHODS}


def _flag(read: Guarded, name: str) -> bool:
    """Return a declaration that is either true or false. Raises SimulationError for anything else, such as "no"."""
    found = read.get(name, False)
    if found is None or isinstance(found, BOOLEAN) or (is_integer(found) and found in (0, 1)):
        return bool(found)
    raise read.error(name, f"is {said(found)}; it must be True or False")


def _has(read: Guarded, own: Any, name: str) -> bool:
    """Return whether the server has this method; one inherited from Server's defaults does not count."""
    defaults = {"fetch", "pushes_until_release"}
    if name in defaults and getattr(type(own), name, None) is getattr(Server, name) and name not in vars(own):
        return False
    return read.has(name)


def _declared_v(own: Any) -> dict[str, Any]:
    """Return `v`, whether the server keeps v (None if only `init` can tell), and `deviation`, which array that is."""
    if getattr(type(own), "v", None) is ElementwiseServer.v:
        return {"v": bool(own.deviation), "deviation": own.deviation}
    return {"v": True if inspect.getattr_static(own, "v", None) is not None else None}


def _gates(read: Guarded, own: Any) -> dict[str, Any]:
    """Return the dispatcher settings that the server's `gates()` sets, as plain data.

    Raises SimulationError or ConfigError if they are invalid.
    """
    if not read.has("gates"):
        return {}
    found = read.guard("gates", lambda: own.gates())
    if not isinstance(found, dict) or not found.keys() <= set(SETTINGS):
        raise read.error("gates", f"returned {found!r}; it must return a dict of {', '.join(SETTINGS)}")
    settings: dict[str, Any] = checked(found, (), f"{type(own).__name__}, gates")  # its numbers may be NumPy's
    for key, value in settings.items():
        try:
            if key in {"push", "fetch"}:
                spelled_out(value)
            elif value not in (get_args(DroppedPush) if key == "dropped_push" else (True, False)):
                known = ", ".join(get_args(DroppedPush)) if key == "dropped_push" else "true, false"
                raise ValueError(f"is {value!r}; it must be one of {known}")
        except ValueError as error:
            raise read.error(f"gates, {key}", str(error)) from None
    return settings
