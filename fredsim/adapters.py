"""One face for every server and dispatcher, and one place where a user's mistakes are caught.

A user's server needs `init`, `apply_update` and `params` only; what it lacks of the optional rest is supplied here.
Whatever goes wrong inside, the error names the class, the client, the iteration, the stage, and the line.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.clients import Work
from fredsim.dispatchers import DISPATCHERS
from fredsim.errors import FredsimError, SimulationError
from fredsim.layout import Layout
from fredsim.numerics.operations import Operations
from fredsim.servers.base import ElementwiseServer, Server
from fredsim.servers.checks import alone, comes_with_fredsim, more_than_a_rule
from fredsim.servers.window_average import WindowAverage
from fredsim.streams import Streams

__all__ = ["Adapted", "AdaptedDispatcher", "AdaptedServer"]

Array = NDArray[np.float32]


class Adapted:
    """An object whose methods may fail, and what to say then."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._name = type(inner).__name__

    def _call(self, stage: str, where: str, *arguments: Any) -> Any:
        try:
            return getattr(self._inner, stage)(*arguments)
        except FredsimError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(frame.filename).name}:{frame.lineno}"
            raise self._broken(where, stage, f"{type(error).__name__}: {error} ({at})") from error

    def _broken(self, where: str, stage: str, what: str) -> SimulationError:
        return SimulationError(f"{', '.join(part for part in (self._name, where, stage) if part)}: {what}")

    def _check_array(self, array: Any, size: int, where: str, what: str) -> None:
        is_array = hasattr(array, "__array_ufunc__") and hasattr(array, "shape") and hasattr(array, "dtype")
        if not is_array or array.dtype != np.float32 or array.shape != (size,):
            found = f"{array.dtype} {array.shape}" if is_array else type(array).__name__
            raise self._broken(where, what, f"is {found}; it must be float32 ({size},)")


class Pushed(NamedTuple):
    """What a push brought about."""

    released: tuple[int, ...]
    restarted: tuple[int, ...]
    finite: bool


class AdaptedServer(Adapted):
    """A server as the loop sees it."""

    def __init__(
        self,
        server: Any,
        params: Array,
        clients: int,
        layout: Layout,
        operations: Operations,
        streams: Streams,
    ) -> None:
        """Start the server. Raises SimulationError where its `init` fails or its params are not float32 (P,)."""
        super().__init__(server)
        self._clients = clients
        self._size = layout.size
        inner = server.server if isinstance(server, WindowAverage) else server
        self._own = isinstance(inner, Server)
        if isinstance(inner, Server):
            inner.operations = operations
            inner.streams = streams
            server.init(params, clients, layout)
        else:
            self._call("init", "", params.copy(), clients)
            self._check_params("init")
        self.holds = bool(getattr(server, "holds", False))
        self.cancels = bool(getattr(server, "cancels", False))
        self.corrects = bool(getattr(server, "corrects", False))
        self.watches = hasattr(server, "begins")
        self.pushes: Work = getattr(server, "pushes", "gradient")
        self.averages = hasattr(server, "averaged_params")
        #: Whether what the server says of its parameters and its timestamp is known to be so.
        self.trusted = comes_with_fredsim(inner)
        self.unforeseen = f"{self._name if self._own else 'the server'} sees whole gradients"
        if isinstance(server, WindowAverage):
            self.unforeseen = "the average needs the parameters after every update"
        elif isinstance(server, ElementwiseServer):
            self.unforeseen = more_than_a_rule(server, ElementwiseServer)
            self.trusted |= not self.unforeseen
        self._layout = layout
        self._mean = operations.mean
        self._finite = operations.finite
        self._statistics: dict[str, tuple[int, list[float]]] = {}  # at which timestamp, and the values
        self._counts_itself = hasattr(server, "timestamp")
        self._hands_out = hasattr(server, "fetch")
        self.timestamp = 0
        self._held: set[int] = set()
        self._certain = 0  # how many pushes are certain to come yet before any client is released

    @property
    def params(self) -> Array:
        """The server's parameters, float32 (P,)."""
        params: Array = self._inner.params
        return params

    @property
    def result(self) -> Array:
        """The parameters to evaluate: averaged ones where the server averages."""
        params: Array = self._inner.averaged_params if self.averages else self._inner.params
        return params

    @property
    def elementwise(self) -> ElementwiseServer:
        """The server itself, whose updates are known ahead but for the rule."""
        server: ElementwiseServer = self._inner
        return server

    def coefficients(self, t: NDArray[np.int64], staleness: NDArray[np.int64]) -> Array:
        """Return the coefficients (n, C) of n pushes to an elementwise server, whose names stand in its rule.

        Fewer rows where those of a later push cannot be had; that may never come. Raises SimulationError where the
        first cannot.
        """
        server, before = self.elementwise, self.elementwise.timestamp
        result = np.empty((len(t), len(server.rule.coefficients)), np.float32)
        with np.errstate(all="ignore"), alone(server):
            if comes_with_fredsim(server):
                try:
                    for column, values in enumerate(server.coefficients(t, staleness)):
                        result[:, column] = values
                    return result
                except Exception:  # of a user's schedule: at which push? one by one
                    pass
            try:
                for i, (one, behind) in enumerate(zip(t.tolist(), staleness.tolist(), strict=True)):
                    server.timestamp = one
                    try:
                        result[i] = self._coefficients_of(one, behind, result.shape[1])
                    except FredsimError:
                        if i == 0:
                            raise
                        return result[:i]
            finally:
                server.timestamp = before
        return result

    def _coefficients_of(self, t: int, staleness: int, count: int) -> Array:
        """Return those of one push. Raises SimulationError where there are not so many."""
        where = f"iteration {t}"
        found = self._call("coefficients", where, t, staleness)
        if not isinstance(found, tuple | list) or len(found) != count:
            raise self._broken(where, "coefficients", f"returned {found!r}; the rule takes a tuple of {count}")
        return np.array(found, np.float32)

    def pushes_until_release(self) -> int:
        """Return how many pushes are certain to come before any client is released, for a server that holds."""
        count = self._call("pushes_until_release", "") if hasattr(self._inner, "pushes_until_release") else 1
        if not isinstance(count, int | np.integer) or count < 1:
            raise self._broken("", "pushes_until_release", f"returned {count!r}; it must be a positive integer")
        self._certain = max(self._certain, int(count))
        return int(count)

    def rate(self) -> float:
        """Return the learning rate of the clients' local steps. Raises SimulationError where the server has none."""
        if not hasattr(self._inner, "rate"):
            what = "the clients step by themselves, by the server's learning rate; give the server a method rate()"
            raise self._broken("", "rate", what)
        return float(self._call("rate", ""))

    def bytes_of(self, direction: Literal["pushed", "fetched"], usual: int) -> int:
        """Return the bytes of one copy, where the server has a say in it."""
        count = getattr(self._inner, f"bytes_{direction}", None)
        return usual if count is None else int(count())

    @property
    def counts_bytes(self) -> bool:
        """Whether the server has a say in what a copy takes."""
        return hasattr(self._inner, "bytes_pushed") or hasattr(self._inner, "bytes_fetched")

    @property
    def has_deviation(self) -> bool:
        """Whether the server keeps v, which gates may ask for."""
        return hasattr(self._inner, "v")

    @property
    def deviation(self) -> str:
        """The name of the array of the rule's state that v is; empty where it is none, or a user's class forms it."""
        return self._inner.deviation if getattr(type(self._inner), "v", None) is ElementwiseServer.v else ""

    def mean(self) -> float:
        """Return v̄ for the gates: 1 before the first push."""
        return self._of_v("model", lambda v: [self._mean(v)], 1)[0]

    def means(self) -> list[float]:
        """Return v̄ of each tensor for the gates: 1 before the first push."""
        tensors = self._layout.tensors
        return self._of_v(
            "tensor", lambda v: [self._mean(x.reshape(-1)) for x in self._layout.split(v).values()], len(tensors)
        )

    def _of_v(self, kind: str, measure: Callable[[Array], list[float]], count: int) -> list[float]:
        """Return a statistic of v, measured once a timestamp."""
        known = self._statistics.get(kind)
        if known is None or known[0] != self.timestamp:
            known = self.timestamp, measure(self._inner.v) if self.timestamp else [1.0] * count
            self._statistics[kind] = known
        return known[1]

    def proxies(self, client: int, timestamp: int, iteration: int) -> dict[str, float]:
        """Return what the server itself takes for the staleness of a client's gradient, by name."""
        if not hasattr(self._inner, "proxies"):
            return {}
        where = f"client {client}, iteration {iteration}"
        found = self._call("proxies", where, client, timestamp)
        if not isinstance(found, dict) or not all(
            isinstance(value, int | float | np.number) for value in found.values()
        ):
            raise self._broken(where, "proxies", f"returned {found!r}; it must return a dict of names to numbers")
        return found

    def push(self, grad: Array, client: int, timestamp: int, iteration: int) -> Pushed:
        """Push; return who goes on, who begins anew, and whether the parameters are still finite."""
        where = f"client {client}, iteration {iteration}"
        if self.holds:
            self.pushes_until_release()
            self._certain -= 1
        if not self._own:  # one of a user's own gets NumPy's arrays, wherever a gradient lies
            grad = np.asarray(grad)
        with np.errstate(all="ignore") if self._own else nullcontext():  # a run that overflows diverges, as it should
            reply = self._call("apply_update", where, grad, client, timestamp)
        self.timestamp = self._inner.timestamp if self._counts_itself else self.timestamp + 1
        if self.trusted:
            finite = bool(self._inner.finite)
        else:
            self._check_params(where)
            params = self.params
            finite = self._finite(params)
        released, restarted = self._named_by(reply, client, where)
        return Pushed(released, restarted, finite)

    def _named_by(self, reply: Any, client: int, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return who goes on and who begins anew. Raises SimulationError where the reply cannot be followed."""
        if reply is not None and not hasattr(reply, "released"):
            raise self._broken(where, "apply_update", f"returned {reply!r}; it must return None or a Reply")
        released = (client,) if reply is None else tuple(reply.released)
        restarted = tuple(getattr(reply, "restarted", ()))
        for other in (*released, *restarted):
            if not isinstance(other, int | np.integer) or not 0 <= other < self._clients:
                raise self._broken(where, "reply", f"names client {other!r}; ids lie in 0 … {self._clients - 1}")
        what = ""
        if restarted and not self.cancels:
            what = "restarts clients; a server that may do so declares cancels = True"
        elif not self.holds and client not in released:
            what = "the client was not released; a server that may hold its clients declares holds = True"
        elif self.holds and self._certain and (released or restarted):
            what = f"releases clients {self._certain} pushes before the one that pushes_until_release named"
        self._held.add(client)
        computing = [other for other in released if other not in self._held]
        if computing and not what:
            what = f"releases client {computing[0]}, which computes; to have it begin anew, name it in restarted"
        if what:
            raise self._broken(where, "reply", what)
        self._held.difference_update(released)
        return released, restarted

    def begins(self, client: int, params: Array, timestamp: int, iteration: int) -> None:
        """Tell the server what a client computes its next gradient from, where it wants to know."""
        if self.watches:
            params = params if self._own else np.asarray(params)
            self._call("begins", f"client {client}, iteration {iteration}", client, params, timestamp)

    def fetch(self, client: int, iteration: int) -> Array:
        """Return what the client gets: `params` itself unless the server says otherwise."""
        if not self._hands_out:
            return self.params
        given: Array = self._call("fetch", f"client {client}, iteration {iteration}", client)
        if given is not self._inner.params:
            self._check_array(given, self._size, f"client {client}, iteration {iteration}", "what fetch returns")
        return given

    def moved(self, client: int, iteration: int) -> SimulationError:
        """Return the error of parameters that changed between two fetches at one timestamp."""
        what = f"changed while timestamp stayed at {self.timestamp}; count every update in self.timestamp"
        return self._broken(f"client {client}, iteration {iteration}", "params", what)

    def _check_params(self, where: str) -> None:
        self._check_array(getattr(self._inner, "params", None), self._size, where, "params")


class AdaptedDispatcher(Adapted):
    """A dispatcher, already started, as the loop sees it."""

    def __init__(self, dispatcher: Any, clients: int) -> None:
        super().__init__(dispatcher)
        self._clients = clients
        self.hold: Callable[[int], None] = dispatcher.hold
        self.release: Callable[[int], None] = dispatcher.release

    def choose(self, step: int) -> int:
        """Return the client that arrives at an iteration."""
        client = self._call("choose", f"iteration {step}", step)
        if not isinstance(client, int | np.integer) or not 0 <= client < self._clients:
            raise self._broken(
                f"iteration {step}", "choose", f"returned {client!r}; ids lie in 0 … {self._clients - 1}"
            )
        return int(client)

    def order(self, count: int) -> NDArray[np.int64]:
        """Return the clients of the first `count` iterations, where none is ever held."""
        if type(self._inner) in DISPATCHERS.values():  # one that is derived from ours may choose otherwise
            order: NDArray[np.int64] = self._inner.order(count)
            return order
        return np.array([self.choose(step) for step in range(count)], np.int64)
