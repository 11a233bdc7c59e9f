"""The contract between the event loop and a parameter server: `Server`, the base class of fredsim's own, and `Reply`.

A user's server needs no base class. This one is complete, and runs under `server: {name: "mymodule:Plain", lr: 0.1}`:

>>> import numpy as np
>>> class Plain:
...     def __init__(self, lr):
...         self.lr = lr
...     def init(self, params, clients):
...         self.params = params.copy()
...     def apply_update(self, grad, client_id, timestamp):
...         self.params -= self.lr * grad
>>> server = Plain(lr=0.5)
>>> server.init(np.ones(2, np.float32), clients=1)
>>> server.apply_update(np.ones(2, np.float32), client_id=0, timestamp=0)
>>> server.params
array([0.5, 0.5], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Literal

import numpy as np

from fredsim.errors import ConfigError
from fredsim.hyper import Configurable, HyperParameters, NonNegative
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array
from fredsim.numerics.given_arrays import readable
from fredsim.numerics.operations import NumpyOperations, Operations
from fredsim.plugins.state.states import State
from fredsim.servers.schedules import Rate, rate_at

__all__ = ["Array", "Coefficients", "Rated", "Reply", "Server", "State", "Steps"]

Steps = Any  # a timestamp or a staleness: int, or int64 (n,)
Coefficients = tuple[Any, ...]  # each np.float32, or float32 (n,)


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's reply to a push: which clients continue.

    Attributes:
        released: ids of the clients that may fetch and continue (FRED's unblock).
        restarted: ids of clients that give up the gradient that they are computing, fetch, and start over.

    """

    released: Iterable[int] = ()
    restarted: Iterable[int] = ()


def _converted_push(method: Callable[..., Reply | None]) -> Callable[..., Reply | None]:
    """Return `apply_update` of a class of fredsim's, which a user's class may call with any array of P numbers."""

    @wraps(method)
    def apply_update(self: Server, grad: Any, client_id: int, timestamp: int) -> Reply | None:
        if not self._built_in:
            grad = readable(grad, len(self.params), "grad")
            if isinstance(grad, np.ndarray) and (not grad.flags.writeable or np.may_share_memory(grad, self.params)):
                grad = grad.copy()  # the server may write into it
        return method(self, grad, client_id, timestamp)

    return apply_update


def _converted_start(method: Callable[..., None]) -> Callable[..., None]:
    """Return `init` of a class of fredsim's, likewise."""

    @wraps(method)
    def init(self: Server, params: Any, clients: int, layout: Layout | None = None) -> None:
        method(self, params if self._built_in else readable(params, what="params"), clients, layout)

    return init


def _converted_params(method: Callable[..., None]) -> Callable[..., None]:
    """Return `begins` of a class of fredsim's, likewise."""

    @wraps(method)
    def begins(self: Server, client_id: int, params: Any, timestamp: int) -> None:
        if not self._built_in:
            params = readable(params, len(self.params), "params")
        method(self, client_id, params, timestamp)

    return begins


class Server(Configurable):
    """Base of the servers that come with fredsim; `init` and `apply_update` alone are enough for a user's own.

    Attributes:
        params: the parameters, float32 (P,). They change only when `timestamp` does.
        timestamp: how many updates were applied.
        holds: whether a reply may leave the client that pushed held, until a later reply releases it. If a server
            never holds clients, the whole order of arrivals can be drawn ahead.
        cancels: whether a reply may restart clients that did not push.
        takes_fraction: whether a server that holds clients can do with those that are drawn (`clients.fraction`), of
            which `at_work` are at work at once.
        corrects: whether a gradient is corrected by the parameters that it was computed from (`begins`): a push that
            is of no single parameters is refused.
        pushes: what a client pushes: the `gradient`; `delta`, the sum of its local steps −(α·g); or `params`, its
            parameters after those steps.
        finite: whether every parameter was finite after the last update.
        metrics: names of numbers that the server records, each with `sum` or `mean`: last columns of metrics.csv.

    """

    idea: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    state_names: ClassVar[tuple[str, ...]] = ("params", "timestamp")

    params: Array
    timestamp: int = 0
    holds: bool = False
    cancels: bool = False
    corrects: bool = False
    takes_fraction: bool = False
    #: How many clients are at work at once, if that is not all of them; set before `expect`.
    at_work: int | None = None
    #: Whether clients are pipelines (`stages`), whose gradients are of several versions; set before `expect`.
    pipelines: bool = False
    pushes: Literal["gradient", "delta", "params"] = "gradient"
    finite: bool = True
    metrics: ClassVar[dict[str, Literal["sum", "mean"]]] = {}

    operations: Operations = NumpyOperations()

    _converters = {"init": _converted_start, "apply_update": _converted_push, "begins": _converted_params}  # noqa: RUF012

    def expect(self, clients: int) -> None:
        """Note how many clients there will be; called first, so that declarations that depend on it are set here.

        Raises ConfigError if the hyper-parameters do not fit that number.
        """
        if clients <= 0:
            raise ConfigError(f"clients is {clients}; there must be one at least")
        self.clients = clients

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters, float32 (P,); ids of clients are 0 … clients − 1.

        `layout` names the tensors that make up the flat vector. Raises ConfigError as `expect` does.
        """
        self.expect(clients)
        self.params = self.operations.zeros(len(params))
        self.params[...] = params
        self.layout = layout
        self.timestamp = 0
        self.finite = True

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Take a push, float32 (P,), computed from the parameters of `timestamp`.

        Returns None to release the client that pushed, or a Reply. `grad` may be overwritten after the call.
        """
        raise NotImplementedError

    def record(self, name: str, value: float) -> None:
        """Record a number under a name that `metrics` declares; the event loop replaces this method by its own."""

    def fetch(self, client_id: int) -> Array:
        """Return what this client gets when it fetches, float32 (P,); the caller copies it."""
        return self.params

    def pushes_until_release(self) -> int:
        """Return how many pushes are certain to come before any held client is released, for a server that holds.

        Each of these pushes except the last leaves its client held, whichever clients they come from, so the gradients
        of that many arrivals can be computed together. 1 is always right.
        """
        return 1

    def rate(self, t: Steps | None = None) -> Any:
        """Return the learning rate α at timestamp t (default: the present one), in float64.

        The clients' local steps use the one at the timestamp that they fetched.
        """
        return rate_at(self.hyper.lr, self.timestamp if t is None else t)

    def restart_all(self, released: Iterable[int]) -> Reply:
        """Return the reply that releases these clients and restarts all others."""
        found = tuple(released)
        return Reply(found, sorted(set(range(self.clients)).difference(found)))

    def share_runtime(self, other: Server) -> None:
        """Give another server the streams, the operations and the pool of this one."""
        other.bind_runtime(self._given_streams, self.operations, self._given_pool)


class Rated(HyperParameters):
    """Hyper-parameters of a server with a learning rate: `lr`, a number or a schedule; `weight_decay`, decoupled."""

    lr: Rate
    """The learning rate α: a number, or a schedule of the timestamp."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay: before each step θ loses this share of itself, times α."""
