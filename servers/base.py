"""The contract between the event loop and a parameter server, and the base of every server whose rule is elementwise.

A server needs no base class. This one is complete, and runs under `server: {name: "mymodule:Plain", lr: 0.1}`:

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
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fredsim.hyper import Configurable
from fredsim.numerics.rules import Rule

if TYPE_CHECKING:
    from fredsim.layout import Layout

__all__ = ["ElementwiseServer", "Reply", "Server"]

Array = NDArray[np.float32]
Kernel = Callable[..., bool]


def apply_in_numpy(rule: Rule) -> Kernel:
    """Return update(theta, *state, g, begin, end, *coefficients) that runs the rule on NumPy arrays."""

    def update(*arguments: Any) -> bool:
        arrays = arguments[: 2 + len(rule.state)]
        begin, end, *coefficients = arguments[2 + len(rule.state) :]
        parts = [array[begin:end] for array in arrays]
        with np.errstate(all="ignore"):
            result = rule.function(*parts, *coefficients)
        results = result if rule.state else (result,)
        for part, new in zip(parts, results, strict=False):
            part[...] = new
        return bool(np.isfinite(parts[0]).all())

    return update


@dataclass(frozen=True, slots=True)
class Reply:
    """What a push brought about: the ids of the clients that may fetch and go on (FRED's unblock)."""

    released: Iterable[int] = ()


class Server(Configurable):
    """Base of the servers that come with fredsim; `init` and `apply_update` alone are enough for a user's own.

    Attributes:
        params: the parameters, float32 (P,). They change only when `timestamp` does.
        timestamp: how many updates were applied.
        holds: whether a reply may fail to release the client that pushed. A server that never holds may have its
            whole order of clients drawn ahead.
        finite: whether every parameter was finite after the last update.

    """

    idea: ClassVar[str] = ""
    citation: ClassVar[str] = ""

    params: Array
    timestamp: int = 0
    holds: bool = False
    finite: bool = True

    #: Turns a rule into the function that applies it; the loop puts its backend's compiler here.
    compile_rule: Callable[[Rule], Kernel] = staticmethod(apply_in_numpy)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters, float32 (P,); ids of clients are 0 … clients − 1."""
        del layout
        self.params = np.array(params, np.float32)
        self.clients = clients
        self.timestamp = 0
        self.finite = True

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Take the push of a gradient, float32 (P,), computed from the parameters of `timestamp`.

        Returns None to release the pushing client, or a Reply. `grad` may be overwritten after the call.
        """
        raise NotImplementedError

    def fetch(self, client_id: int) -> Array:
        """Return what this client gets when it fetches, float32 (P,); the caller copies it."""
        del client_id
        return self.params

    def pushes_until_release(self) -> int:
        """Return how many pushes are certain to come before any held client is released, for a server that holds.

        Each of these but the last leaves its client held, whichever clients they come from; the gradients of that many
        arrivals can be computed together. 1 is always right.
        """
        return 1


class ElementwiseServer(Server):
    """A server that applies one elementwise rule on every push, with coefficients known from the push alone."""

    #: What `coefficients` returns for the rule of this instance.
    rule: Rule

    def initial_state(self) -> dict[str, float]:
        """Return the value that each array of the rule's state starts with: 0 unless overridden."""
        return dict.fromkeys(self.rule.state, 0.0)

    def coefficients(self, client_id: int, timestamp: int) -> tuple[np.float32, ...]:
        """Return the rule's coefficients for this push, in the rule's order."""
        raise NotImplementedError

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters and compile the rule."""
        super().init(params, clients, layout)
        initial = self.initial_state()
        self.state: dict[str, Array] = {
            name: np.full(self.params.shape, initial[name], np.float32) for name in self.rule.state
        }
        self._update = self.compile_rule(self.rule)
        self._state = tuple(self.state.values())
        # Compile on nothing now: a run's clock leaves compilation out.
        none = [np.float32(1)] * len(self.rule.coefficients)
        self._update(self.params, *self._state, self.params, 0, 0, *none)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Apply the rule in place and advance the timestamp; the pushing client is released."""
        self._apply(grad, *self.coefficients(client_id, timestamp))
        return None

    def _apply(self, grad: Array, *coefficients: np.float32) -> None:
        size = self.params.size
        self.finite = bool(self._update(self.params, *self._state, grad, 0, size, *coefficients))
        self.timestamp += 1
