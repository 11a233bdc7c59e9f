"""The wrapper through which the event loop calls a run's server: mistakes in a user's class are caught here.

A user's server needs `init`, `apply_update` and `params` only; this wrapper supplies what is optional and missing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Set
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import FredsimError, SimulationError
from fredsim.numerics.arrays import Array
from fredsim.numerics.given_arrays import check_written
from fredsim.numerics.rules import Rule
from fredsim.plugins.failures import said
from fredsim.plugins.guarded import Guarded, is_integer, is_real
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.simulation.plugins.contract import SIGNATURES, ServerMethods, complete, read_contract, without_average
from fredsim.simulation.plugins.guarded_plugins import checked_array
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.simulation.record.recorder import Recorder
from fredsim.simulation.record.server_metrics import add_record_method, check_proxies

__all__ = ["GuardedServer", "PushResult"]


class PushResult(NamedTuple):
    """Which clients continue after a push, which ones start over, and whether the parameters are still finite."""

    released: tuple[int, ...]
    restarted: tuple[int, ...]
    finite: bool


class GuardedServer(Guarded):
    """A server, called with checks, and its contract."""

    state_names = ("timestamp", "_held", "_certain")
    _inner: ServerMethods

    def __init__(self, server: Any, clients: int) -> None:
        """Read the contract of a server for this number of clients.

        Raises SimulationError if the server breaks its contract, ConfigError if it refuses so many clients.
        """
        super().__init__(server, without_average(server))
        self.contract = read_contract(server, clients)
        self.signatures = SIGNATURES | ({"init": ("params", "clients", "layout")} if self.contract.derived else {})
        self._clients = clients
        #: Whether its parameters are computed when they are asked for.
        self._computes_params = isinstance(inspect.getattr_static(self._user_object, "params", None), property)
        self.timestamp = 0
        self._statistics: dict[str, tuple[int, list[float]]] = {}  # the timestamp and the values, by kind
        self._proxies: list[str] | None = None  # the names of the proxies, once known
        self._held: set[int] = set()  # the clients that are held
        self._certain = 0  # how many more pushes are certain to come before any client is released

    def start(self, params: Array, context: RunContext, recorder: Recorder | None = None) -> None:
        """Start the server from these parameters; the numbers that it records go to `recorder`.

        Raises SimulationError if its `init` fails or its `params` are not float32 (P,).
        """
        add_record_method(self, self.contract.metrics, recorder)
        initial = params if self.contract.derived or self._user_object is not self._inner else params.copy()
        context.call_init(self, params=initial)
        self.where = "init"
        self._size, self._layout = context.layout.size, context.layout
        self._mean, finite = context.operations.mean, context.operations.finite
        self._finite = finite
        self.check: Callable[..., bool] = lambda params, **_: finite(params)  # a path may set one that copies, too
        checked_array(self, self.params, self._size, "params")
        self.contract = complete(self.contract, self._inner)
        if self.contract.rule is not None and not self.contract.built_in:  # kernels update these arrays in place
            server = self.elementwise
            self.guard("init", lambda: check_written({"params": server.params, **server.arrays}, self._size))
        self._checked = self.contract.checked

    @property
    def params(self) -> Array:
        """The server's parameters, float32 (P,); a copy if a kernel cannot read the server's own array."""
        if self.contract.built_in:
            return self._inner.params
        params: Array = self.get("params", None)
        fits = type(params) is np.ndarray and params.flags.carray and params.dtype == np.float32
        fits = fits and params.shape == (self._size,)
        return params if fits else checked_array(self, params, self._size, "params")

    @property
    def evaluated_params(self) -> Array:
        """The parameters to evaluate: the average, if the server keeps one. Raises SimulationError if it is invalid."""
        if not self.contract.averaged_params:
            return self.params
        return checked_array(self, self.get("averaged_params", None), self._size, "averaged_params")

    def pushes_until_release(self) -> int:
        """Return how many pushes are certain to come before any client is released, for a server that holds clients."""
        count = 1
        if self.contract.pushes_until_release:
            count = self.guard("pushes_until_release", lambda: self._inner.pushes_until_release())
            self.check_count(count, "what pushes_until_release returns")
        if self._checked:
            self._certain = max(self._certain, int(count))
        return int(count)

    @property
    def elementwise(self) -> ElementwiseServer:
        """The server itself; only for servers whose update is an elementwise rule."""
        return cast(ElementwiseServer, self._inner)

    @property
    def rule(self) -> Rule:
        """The server's elementwise rule; only for servers that have one."""
        assert self.contract.rule is not None
        return self.contract.rule

    def coefficients(self, t: NDArray[np.int64], staleness: NDArray[np.int64]) -> Array:
        """Return the coefficients (n, C) of n pushes to an elementwise server, in the order of its rule.

        If the coefficients of a later push fail, only the rows before it are returned: the run may end before that
        push. Raises SimulationError if those of the first push fail.
        """
        server = self.elementwise
        result = np.empty((len(t), len(server.rule.coefficients)), np.float32)
        with np.errstate(all="ignore"):
            if self.contract.built_in:
                try:
                    for column, values in enumerate(server.coefficients(t, staleness)):
                        result[:, column] = values
                    return result
                except Exception:  # a user's schedule failed: push by push below shows for which push
                    pass
            for i, (one, behind) in enumerate(zip(t.tolist(), staleness.tolist(), strict=True)):
                self.set_event(None, one)
                try:
                    result[i] = self.guard("coefficients", partial(server.checked_coefficients, one, behind))
                except FredsimError:
                    if i == 0:
                        raise
                    return result[:i]
        return result

    def rate(self) -> float:
        """Return the learning rate of the clients' local steps. Raises SimulationError if the server has none."""
        if not self.contract.rate:
            what = "the clients step by themselves, by the server's learning rate; give the server a method rate()"
            raise self.error("rate", what)
        rate = self.guard("rate", lambda: self._inner.rate())
        if not is_real(rate) or not rate >= 0:  # ∞ is allowed
            what = f"is {said(rate)}; it must be a number, 0 at least"
            raise self.error("the learning rate that rate returns", what)
        try:
            return float(rate)
        except OverflowError:  # of an integer of hundreds of digits
            return math.inf

    def bytes_of(self, direction: Literal["pushed", "fetched"], usual: int) -> int:
        """Return the bytes of one push or fetch: `usual`, unless the server counts them itself."""
        contract, server = self.contract, self._inner
        if not (contract.bytes_pushed if direction == "pushed" else contract.bytes_fetched):
            return usual
        ask = (lambda: server.bytes_pushed()) if direction == "pushed" else (lambda: server.bytes_fetched())
        count = self.guard(f"bytes_{direction}", ask)
        self.check_count(count, f"what bytes_{direction} returns")
        return int(count)

    def mean(self) -> float:
        """Return v̄ for the gates: 1 before the first push."""
        return self._statistic_of_v("model", lambda v: [self._mean(v)], 1)[0]

    def means(self) -> list[float]:
        """Return v̄ of each tensor for the gates: 1 before the first push."""
        tensors = self._layout.tensors
        return self._statistic_of_v(
            "tensor", lambda v: [self._mean(x.reshape(-1)) for x in self._layout.split(v).values()], len(tensors)
        )

    def _statistic_of_v(self, kind: str, measure: Callable[[Array], list[float]], count: int) -> list[float]:
        """Return a statistic of v, computed only once per timestamp."""
        known = self._statistics.get(kind)
        if known is None or known[0] != self.timestamp:
            if not self.timestamp:
                values = [1.0] * count
            elif not self.contract.built_in:
                values = measure(checked_array(self, self.get("v", None), self._size, "v"))
            else:
                values = measure(self._inner.v)
            known = self.timestamp, values
            self._statistics[kind] = known
        return known[1]

    def proxies(self, client: int, timestamp: int, iteration: int, taken: Set[str]) -> dict[str, float]:
        """Return the server's own estimates of a gradient's B-staleness, by name; no name may be in `taken`."""
        if not self.contract.proxies:
            return {}
        self.set_event(client, iteration)
        found = self.guard("proxies", lambda: self._inner.proxies(client, timestamp))
        numbers = check_proxies(self, found, taken, self._proxies)
        self._proxies = list(numbers)
        return numbers

    def push(self, grad: Array, client: int, timestamp: int, iteration: int, *, needed: bool = False) -> PushResult:
        """Give the server a push (P,). Raises SimulationError if the server fails or breaks its contract.

        `needed`: the client needs the array afterwards; a user's server, which may write into it, then gets a copy.
        """
        self.set_event(client, iteration)
        server = self._inner
        if not self._checked:
            reply = self.guard("apply_update", lambda: server.apply_update(grad, client, timestamp))
            return self._result(reply, client)
        self._before_reply()
        given = grad if self.contract.derived else np.asarray(grad)  # others get a NumPy array always
        given = given.copy() if needed else given
        reply = self.lend(given, "grad", "apply_update", lambda: server.apply_update(given, client, timestamp))
        return self._result(reply, client)

    def given_up(self, client: int, timestamp: int, iteration: int) -> PushResult:
        """Tell the server that a client's task was given up; without a method `given_up` the client just continues.

        Raises SimulationError if the server fails or breaks its contract.
        """
        if not self.contract.given_up:
            return PushResult((client,), (), finite=True)
        self.set_event(client, iteration)
        if self._checked:
            self._before_reply()
        return self._result(
            self.guard("given_up", lambda: self._inner.given_up(client, timestamp)), client, pushed=False
        )

    def _before_reply(self) -> None:
        """Ask how many pushes, this one included, are certain to come before any client is released."""
        if self.contract.holds:
            self.pushes_until_release()
            self._certain -= 1

    def _result(self, reply: Any, client: int, *, pushed: bool = True) -> PushResult:
        """Return the result of a reply, and read the server's new state. Raises SimulationError for a breach."""
        if self._checked:
            finite = self._after_update(pushed=pushed)
            released, restarted = self._check_reply(reply, client)
            return PushResult(released, restarted, finite)
        server = self._inner
        self.timestamp = server.timestamp
        if reply is None:
            return PushResult((client,), (), bool(server.finite))
        return PushResult(tuple(reply.released), tuple(reply.restarted), bool(server.finite))

    def _check_reply(self, reply: Any, client: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return which clients continue and which start over. Raises SimulationError if the reply is not valid."""
        if reply is not None and not hasattr(reply, "released"):
            raise self.error("apply_update", f"returned {said(reply)}; it must return None or a Reply")
        if reply is None and not self.contract.holds:
            return (client,), ()
        released = (client,) if reply is None else self.guard("reply", lambda: tuple(reply.released))
        restarted = self.guard("reply", lambda: tuple(getattr(reply, "restarted", ())))
        for other in (*released, *restarted):
            if not is_integer(other) or not 0 <= other < self._clients:
                raise self.error("reply", f"names client {said(other)}; ids lie in 0 … {self._clients - 1}")
        what, named = "", {*released, *restarted}
        if len(named) < len(released) + len(restarted):
            what = "names a client twice; it fetches once"
        elif restarted and not self.contract.cancels:
            what = "restarts clients; a server that may do so declares cancels = True"
        elif not self.contract.holds and client not in released:
            what = "the client was not released; a server that may hold its clients declares holds = True"
        elif self.contract.holds and self._certain and (released or restarted):
            what = f"releases clients {self._certain} pushes before the one that pushes_until_release named"
        # A NumPy id would overflow in the sums of times and ids that dispatchers work with.
        released, restarted = tuple(map(int, released)), tuple(map(int, restarted))
        self._held.add(client)
        for other in () if what else named:
            if other in released and other not in self._held:
                what = f"releases client {other}, which computes; to have it begin anew, name it in restarted"
            elif other in restarted and other in self._held:
                what = f"restarts client {other}, which waits; to let it continue, name it in released"
        if what:
            raise self.error("reply", what)
        self._held.difference_update(released)
        return released, restarted

    def _after_update(self, *, pushed: bool) -> bool:
        """Read the timestamp and check the parameters; return whether they are finite."""
        before, params = self.timestamp, self.params
        self._statistics.clear()  # v may change even if the timestamp does not
        if not self.contract.timestamp:
            self.timestamp += pushed
        else:
            now = self.get("timestamp", None)
            if not is_integer(now) or not before <= now <= before + 1:
                what = "it must be that, or one more" if is_integer(now) else "it must be an integer"
                raise self.error("timestamp", f"is {said(now)} after {before}; {what}")
            self.timestamp = int(now)
        return self.check(checked_array(self, params, self._size, "params"), new=self.timestamp > before)

    def begins(self, client: int, params: Array, timestamp: int, iteration: int) -> None:
        """Tell a server that has `begins` which parameters a client computes its next gradient from."""
        self.set_event(client, iteration)
        server = self._inner
        if not self._checked:
            self.guard("begins", lambda: server.begins(client, params, timestamp))
            return
        given = params if self.contract.derived else np.asarray(params)
        self.lend(given, "params", "begins", lambda: server.begins(client, given, timestamp))
        if not self._finite(params):
            raise self.error("begins", "writes a value into params that is not finite; a client computes from numbers")

    def tell_time(self, seconds: float) -> None:
        """Tell a server that has `tell_time` at which time, in seconds, the next push arrives."""
        self.guard("tell_time", lambda: self._inner.tell_time(seconds))

    def fetch(self, client: int, iteration: int) -> Array:
        """Return the parameters that the client gets: `params` itself, unless the server has a method `fetch`."""
        if not self.contract.fetch:
            return self.params
        self.set_event(client, iteration)
        given = self.guard("fetch", lambda: self._inner.fetch(client))
        if self._computes_params:  # perhaps into the array that `fetch` has returned
            copied: Array = checked_array(self, given, self._size, "what fetch returns").copy()
            return copied
        return given if given is self.params else checked_array(self, given, self._size, "what fetch returns")

    def changed_params(self, client: int, iteration: int) -> SimulationError:
        """Return the error for parameters that changed between two fetches at the same timestamp."""
        what = f"changed while timestamp stayed at {self.timestamp}; count every update in self.timestamp"
        self.set_event(client, iteration)
        return self.error("params", what)
