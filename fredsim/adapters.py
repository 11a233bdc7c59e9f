"""One face for every server and dispatcher, fredsim's own or a user's, and one place where their mistakes are caught.

A user's server needs `init`, `apply_update` and `params` only; what it lacks of the optional rest is supplied here.
Whatever goes wrong inside, the error names the class, the client, the iteration, the stage, and the line.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import FredsimError, SimulationError
from fredsim.layout import Layout
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Server

__all__ = ["AdaptedDispatcher", "AdaptedServer"]

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


class AdaptedServer(Adapted):
    """A server as the loop sees it."""

    def __init__(
        self, server: Any, params: Array, clients: int, layout: Layout, compile_rule: Callable[[Rule], Any]
    ) -> None:
        """Start the server. Raises SimulationError where its `init` fails or its params are not float32 (P,)."""
        super().__init__(server)
        self._clients = clients
        self._size = layout.size
        self._own = isinstance(server, Server)
        if self._own:
            server.compile_rule = compile_rule
            server.init(params, clients, layout=layout)
        else:
            self._call("init", "", params.copy(), clients)
            self._check_params("init")
        self.holds = bool(getattr(server, "holds", False))
        self._counts_itself = hasattr(server, "timestamp")
        self._hands_out = hasattr(server, "fetch")
        self.pushes_until_release: Callable[[], int] = getattr(server, "pushes_until_release", lambda: 1)
        self.timestamp = 0

    @property
    def params(self) -> Array:
        """The server's parameters, float32 (P,)."""
        params: Array = self._inner.params
        return params

    def push(self, grad: Array, client: int, timestamp: int, iteration: int) -> tuple[tuple[int, ...], bool]:
        """Push a gradient; return the clients released, and whether the parameters are still finite."""
        where = f"client {client}, iteration {iteration}"
        reply = self._call("apply_update", where, grad, client, timestamp)
        self.timestamp = self._inner.timestamp if self._counts_itself else self.timestamp + 1
        if self._own:
            finite = bool(self._inner.finite)
        else:
            self._check_params(where)
            finite = bool(np.isfinite(self.params).all())
        if reply is None:
            return (client,), finite
        if not hasattr(reply, "released"):
            raise self._broken(where, "apply_update", f"returned {reply!r}; it must return None or a Reply")
        released = tuple(reply.released)
        for other in released:
            if not isinstance(other, int | np.integer) or not 0 <= other < self._clients:
                raise self._broken(where, "reply", f"releases client {other!r}; ids lie in 0 … {self._clients - 1}")
        if not self.holds and client not in released:
            what = "the client was not released; a server that may hold its clients declares holds = True"
            raise self._broken(where, "reply", what)
        return released, finite

    def fetch(self, client: int, iteration: int) -> Array:
        """Return what the client gets: `params` itself unless the server says otherwise."""
        if not self._hands_out:
            return self.params
        given: Array = self._call("fetch", f"client {client}, iteration {iteration}", client)
        if given is not self._inner.params:
            self._check(given, f"client {client}, iteration {iteration}", "what fetch returns")
        return given

    def _check_params(self, where: str) -> None:
        self._check(getattr(self._inner, "params", None), where, "params")

    def _check(self, array: object, where: str, what: str) -> None:
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != (self._size,):
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise self._broken(where, what, f"is {found}; it must be float32 ({self._size},)")


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
