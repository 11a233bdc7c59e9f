"""Wrappers through which a run calls dispatchers, gates, compressors and optimizers, and which check what they return.

As in guarded_server, a mistake in a user's class becomes one clear SimulationError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compressors.base import Remembering
from fredsim.dispatchers.base import Dispatcher, Order
from fredsim.dispatchers.gates import Gate, Statistics
from fredsim.dispatchers.gates.bandwidth_aware import BandwidthAware
from fredsim.dispatchers.gates.budget import Budget
from fredsim.errors import SimulationError
from fredsim.numerics.arrays import Array
from fredsim.numerics.given_arrays import readable
from fredsim.numerics.streams import Stream
from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.failures import said
from fredsim.plugins.guarded import BOOLEAN, MOST_COUNTED, Guarded, is_integer
from fredsim.plugins.state.states import State, Stateful, take_state
from fredsim.simulation.plugins.run_context import RunContext

__all__ = ["GuardedCompressor", "GuardedDispatcher", "GuardedGate", "GuardedOptimizer", "checked_array"]

#: How many choices a user's dispatcher is asked for at a time: it may be slow.
OWN_CHOICES = 256


def checked_array(guarded: Guarded, array: Any, size: int, what: str) -> NDArray[np.float32]:
    """Return an array of the object's, named `what` in errors, as kernels can read it.

    Raises SimulationError unless it is float32 (size,).
    """
    is_array = hasattr(array, "__array_ufunc__") and hasattr(array, "shape") and hasattr(array, "dtype")
    if not is_array or array.dtype != np.float32 or array.shape != (size,):
        found = f"{array.dtype} {array.shape}" if is_array else type(array).__name__
        hint = ": nothing has set it" if array is None else ""
        if is_array and array.dtype == np.float64 and array.shape == (size,):
            hint = "; a float64 took part: give np.float32 numbers, or .astype(np.float32)"
        raise guarded.error(what, f"is {found}; it must be float32 ({size},){hint}")
    try:
        return readable(array, size)
    except (TypeError, ValueError) as error:
        raise guarded.error(what, str(error).removeprefix("the array ")) from None


class GuardedDispatcher(Guarded):
    """A dispatcher, called with checks."""

    #: Whether arrivals have times, as those of a clock have (fredsim.simulation.schedule.guarded_clock).
    timed = False
    #: Whether it is a clock on which tasks may be given up.
    may_give_up = False
    state_names = ("_held",)
    _inner: Dispatcher
    signatures = {  # noqa: RUF012
        "expect": ("clients",), "init": ("clients", "streams"), "choose": ("step",), "hold": ("client",),
        "release": ("client",),
    }  # fmt: skip

    def __init__(self, dispatcher: Any, clients: int) -> None:
        """Tell the dispatcher how many clients there will be. Raises ConfigError if it refuses so many."""
        super().__init__(dispatcher)
        self._clients = clients
        self._held: set[int] = set()  # the clients that are held
        self._step = 0  # the iteration of the last choice
        #: Whether the class itself comes with fredsim: a user's class derived from one may choose differently.
        self._built_in = is_built_in(type(dispatcher))
        if self.has("expect"):
            self.guard("expect", lambda: self._inner.expect(clients))

    @property
    def own(self) -> bool:
        """Whether its class is a user's, or derived from one of fredsim's."""
        return not is_built_in(type(self._user_object))

    def choose(self, step: int) -> int:
        """Return the client that arrives at an iteration."""
        self._step = step
        self.set_event(None, step)
        client = self.guard("choose", lambda: self._inner.choose(step))
        if not is_integer(client) or not 0 <= client < self._clients:
            raise self.error("choose", f"returned {said(client)}; ids lie in 0 … {self._clients - 1}")
        if client in self._held:
            what = f"returned client {client}, which is held; hold(client) takes it out of the choice until release"
            raise self.error("choose", what)
        return int(client)

    @property
    def held(self) -> Set[int]:
        """The clients that have arrived and are not released yet; empty unless the server may hold clients."""
        return self._held

    def hold(self, client: int) -> None:
        """Exclude a client from the choice until it is released."""
        self._held.add(client)
        if self._built_in:
            self._inner.hold(client)
            return
        self.set_event(client, self._step)
        self.guard("hold", lambda: self._inner.hold(client))

    def release(self, client: int, *size: int) -> None:
        """Let a held client be chosen again; on a clock it fetches `size` bytes first."""
        self._held.discard(client)
        if self._built_in:
            self._inner.release(client, *size)
            return
        self.set_event(client, self._step)
        self.guard("release", lambda: self._inner.release(client, *size))

    def put_state(self, state: State) -> None:
        """Restore the state; what comes with fredsim of the dispatcher then holds the clients that were held.

        These dispatchers have no state for that. What a user's `hold` changes is in the state.
        """
        Stateful.put_state(self, state)
        bases = [cls for cls in type(self._inner).__mro__ if is_built_in(cls) and "hold" in vars(cls)]
        if bases and bases[0] is not Dispatcher:
            for client in sorted(self._held):
                bases[0].hold(self._inner, client)  # type: ignore[attr-defined]
        super().put_state(state)

    def orders(self, count: int | None, until: int | None) -> Iterator[Order]:
        """Yield, in pieces, the first `count` arrivals of a run in which no client is ever held, without times."""
        assert count is not None  # only a clock can end a run
        if self._built_in:
            yield Order(self.choose_many(0, count))
            return
        for begin in range(0, count, OWN_CHOICES):
            yield Order(self.choose_many(begin, min(OWN_CHOICES, count - begin)))

    def choose_many(self, begin: int, count: int) -> NDArray[np.int64]:
        """Return the clients that arrive at `count` iterations from `begin` on, if no client is ever held."""
        if self._built_in:
            order: NDArray[np.int64] = self._inner.order(begin, count)
            return order
        return np.array([self.choose(step) for step in range(begin, begin + count)], np.int64)


class GuardedGate(Guarded):
    """A gate, called with checks."""

    signatures = {  # noqa: RUF012
        "init": ("clients", "tensors", "streams", "stream"), "passes": ("step", "client", "statistics"),
    }  # fmt: skip

    def __init__(self, gate: Any, stream: Stream) -> None:
        """Wrap a gate; its random draws come from `stream`."""
        super().__init__(gate)
        self._stream = stream
        self.needs_statistics = bool(getattr(gate, "needs_statistics", False))
        self.per_tensor = isinstance(gate, Budget) or (isinstance(gate, BandwidthAware) and gate.hyper.per == "tensor")
        self._tensors = 0
        self._undeclared = UndeclaredStatistics(self)

    def start(self, context: RunContext) -> None:
        """Start the gate."""
        self._tensors = len(context.tensors)
        context.call_init(self, stream=self._stream)

    def look_ahead(self, begin: int, clients: Sequence[int]) -> None:
        """Tell one of fredsim's gates who arrives from iteration `begin` on, so that it draws many numbers at once."""
        if isinstance(self._inner, Gate):
            self._inner.look_ahead(begin, clients)

    def bounds(self, begin: int, clients: Sequence[int]) -> NDArray[np.float64]:
        """Return the gate's bounds (n, 2) on v̄ for n iterations from `begin` on.

        A copy is refused if v̄ is below the first bound, and passes if it is above the second; (−∞, ∞) if the gate
        has to be asked each time.
        """
        built_in = is_built_in(type(self._inner))  # a user's class derived from one may decide differently
        found = self._inner.bounds(begin, clients) if built_in else None
        return np.tile([-np.inf, np.inf], (len(clients), 1)) if found is None else found

    def passes(self, step: int, client: int, statistics: Statistics) -> bool | list[bool]:
        """Return whether a copy passes; a list of one bool per tensor if the gate decides tensor by tensor."""
        self.set_event(client, step)
        given = statistics if self.needs_statistics else self._undeclared
        passes = self.guard("passes", lambda: self._inner.passes(step, client, given))
        if isinstance(passes, BOOLEAN):
            return bool(passes)
        is_list = isinstance(passes, Sequence) or (isinstance(passes, np.ndarray) and passes.ndim == 1)
        mask = [*passes] if is_list else []
        if len(mask) != self._tensors or not all(isinstance(part, BOOLEAN) for part in mask):
            what = f"returned {said(passes)}; it must return a bool, or a list of {self._tensors}, one per tensor"
            raise self.error("passes", what)
        return [bool(part) for part in mask]


class UndeclaredStatistics:
    """What a gate gets as statistics if it does not declare that it needs them: using them is an error."""

    def __init__(self, gate: GuardedGate) -> None:
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        what = f"uses statistics.{name}; declare needs_statistics = True in the class (docs/own_gate.md)"
        raise self._gate.error("passes", what)


class GuardedCompressor(Guarded):
    """A compressor, called with checks."""

    signatures = {  # noqa: RUF012
        "init": ("layout", "streams"), "compress": ("push", "client", "step"), "cancelled": ("client",),
    }  # fmt: skip

    @property
    def _built_in(self) -> bool:
        return is_built_in(type(self._inner))

    @property
    def has_memory(self) -> bool:
        """Whether the result for a push may depend on earlier pushes; assumed so for a user's compressor."""
        return not self._built_in or self._inner.keeps_residual

    @property
    def adds_earlier(self) -> bool:
        """Whether a client's earlier pushes are known to be in what is decoded."""
        return bool(getattr(self._inner, "keeps_residual", False))

    def start(self, context: RunContext) -> None:
        """Start the compressor."""
        self._size = context.layout.size
        if isinstance(self._inner, Remembering):
            self._inner.may_cancel = context.may_cancel
        context.call_init(self)

    def cancelled(self, client: int, iteration: int) -> None:
        """Tell the compressor that a client's last push was cancelled on its way, so that it never arrives.

        Raises SimulationError if a user's class keeps something from push to push, and cannot take it back.
        """
        self.set_event(client, iteration)
        if self.has("cancelled"):
            self.guard("cancelled", lambda: self._inner.cancelled(client))
        elif not self._built_in and self._has_changed():
            what = "the server cancelled a push on its way, and the class keeps something from push to push; give it a "
            raise self.error("cancelled", f"{what}method cancelled(client) that takes back what that push changed")

    def _has_changed(self) -> bool:
        """Return whether a user's object has a state by now, or one that cannot be told."""
        try:
            return bool(take_state(self._inner))
        except SimulationError:
            return True

    def compress(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Compress a push, float32 (P,); return what the server decodes, float32 (P,), and the bytes transferred."""
        self.set_event(client, step)
        on_device = self._built_in and self._inner.on_device
        given = push if on_device else np.asarray(push)
        if not (on_device or self._built_in):
            given = given.view()
            given.flags.writeable = False  # it is the client's gradient, which the loop may still need
        try:
            result = self.lend(given, "push", "compress", lambda: self._inner.compress(given, client, step))
        except SimulationError as error:
            if "read-only" not in str(error):
                raise
            remedy = "; compress must leave the push as it is: return a new array, or begin with push = push.copy()"
            raise SimulationError(f"{error}{remedy}") from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self.error("compress", f"returned {type(result).__name__}; it must return (array, bytes)")
        decoded, size = result
        decoded = checked_array(self, decoded, self._size, "what compress returns")
        if not is_integer(size) or not 0 < size <= MOST_COUNTED:
            raise self.error("compress", f"returned {said(size)} bytes; it must be a positive integer, 2⁴⁰ at most")
        if isinstance(decoded, np.ndarray) and not self._built_in:
            decoded = decoded.copy()  # it may be the push itself, or kept, and a server may write into what it gets
        return decoded, int(size)


class GuardedOptimizer(Guarded):
    """A user's optimizer of local steps, called with checks."""

    signatures = {  # noqa: RUF012
        "begin": ("client", "params"), "step": ("client", "params", "grad", "k"),
    }  # fmt: skip

    def _in_words(self, client: int | None, iteration: int) -> str:
        return f"client {client}, its gradient {iteration}"

    def begin(self, client: int, params: Array) -> None:
        """Tell it that a client begins a task from `params` (P,), which it must neither keep nor change."""
        before = params.copy()
        self.lend(params, "params", "begin", lambda: self._inner.begin(client, params))
        if before.tobytes() != params.tobytes():
            raise self.error("begin", "changes params; local steps are what may: do that in step")

    def step(self, client: int, params: Array, grad: Array, k: int) -> None:
        """Let it take a client's local step `k`, from 0, of a task: `params` (P,) become those after the step.

        Raises SimulationError if it keeps an array, or returns anything but None (it changed `params`) or a float32
        array (P,), or if a NaN arises from finite numbers.
        """

        def take() -> None:
            found: Any = self._inner.step(client, params, grad, k)
            if found is not None:
                params[...] = checked_array(self, found, len(params), "what step returns")

        finite = bool(np.isfinite(grad).all())
        self.lend(params, "params", "step", lambda: self.lend(grad, "grad", "step", take))
        if finite and np.isnan(params).any():
            raise self.error("step", "gave parameters that are NaN, from finite ones and a finite gradient")
