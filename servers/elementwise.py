"""The base of servers that apply an elementwise rule, and the arrays that such a rule may keep for each client.

A rule is an update of one parameter as a function of its value, its gradient, its state and a few coefficients; one
definition runs in NumPy, numba and CUDA C++ (fredsim.numerics.rules).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ClassVar, Self

import numpy as np

from fredsim.errors import ConfigError
from fredsim.networks.layout import Layout
from fredsim.numerics.operations import Update
from fredsim.numerics.rules import Rule
from fredsim.plugins.state.state_arrays import as_state
from fredsim.plugins.state.states import State, Stateful, part_of, put_state, take_state
from fredsim.servers.base import Array, Coefficients, Reply, Server, Steps
from fredsim.servers.checks import check_initial_state, form_coefficients, is_shadow, make_shadow, no_attribute

__all__ = ["ElementwiseServer", "PerClient"]


def decay(theta: Any, g: Any, share: Any) -> Any:  # noqa: ARG001  a rule has a gradient
    """θ − share·θ: decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101), before the step."""
    return theta - share * theta


def multiplied(rate: Callable[[Steps | None], Any], factor: float, t: Steps | None = None) -> Any:
    """Return a multiple of the learning rate at timestamp t."""
    return rate(t) * factor


DECAY = Rule(decay)
#: The prefix of the names under which the state of the shadow is saved in checkpoints.
SHADOW = "twin"


class PerClient(dict[int, Array], Stateful):
    """An array for each client, made when it is first used, so that clients that never push cost nothing.

    If a run gives a pool, the arrays are taken from it, as those that clients hold are: in memory up to the run's
    limit, beyond it in the pool's mapped file (fredsim.compute.storage).
    """

    def __init__(self, start: Array, pool: Callable[[], Any] | None = None) -> None:
        """Let each array be a copy of `start` (P,) at first; `pool` returns the run's pool."""
        self._start, self._pool = start, pool

    def __missing__(self, client: int) -> Array:
        return self.put(client, self._start)

    def put(self, client: int, values: Array) -> Array:
        """Copy values (P,) into a client's array, and return the array."""
        array = self.get(client)
        if array is None:
            array = self[client] = self._start.copy() if self._pool is None else self._pool().take()
        array[...] = values
        self.page_out(client)
        return array

    def page_out(self, client: int) -> None:
        """Let the pool page out a client's array, which will not be used for a while."""
        if self._pool is not None and client in self:
            self._pool().page_out(self[client])

    def clear(self) -> None:
        """Forget all arrays."""
        if self._pool is not None:
            for array in self.values():
                self._pool().give_back(array)
        super().clear()

    def take_state(self) -> State:
        """Return the arrays by client."""
        return {str(client): as_state(array) for client, array in self.items()}

    def put_state(self, state: State) -> None:
        """Restore the arrays."""
        self.clear()
        for client, values in state.items():
            self.put(int(client), values)


class ElementwiseServer(Server):
    """A server that applies one elementwise rule to every push, with coefficients that depend on the push alone.

    The arrays of the rule's state are in `arrays`, by name; those named in `per_client` are in `own`, one per client.
    """

    #: The rule of this instance.
    rule: Rule
    #: The arguments that this instance was made with.
    made_with: tuple[tuple[Any, ...], dict[str, Any]]
    state_names: ClassVar[tuple[str, ...]] = ("arrays", "own")
    #: Names of further arrays of state, which are no arguments of the rule.
    more_state: tuple[str, ...] = ()
    #: Names of the arrays of state of which each client has its own.
    per_client: tuple[str, ...] = ()
    #: Name of the array of state that is the deviation of the gradients, `v`, which gates may ask for.
    deviation: ClassVar[str] = ""
    #: Returns, for a timestamp, parts of the parameters, each with what multiplies its learning rate; the run sets it.
    rates_of_parts: Callable[[int], Sequence[tuple[slice, float]]] | None = None

    def initial_state(self) -> dict[str, float | Array]:
        """Return the initial values of the arrays of state that do not start with 0, by name."""
        return {}

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return the rule's coefficients, float32, in the rule's order, for the push that makes update t + 1.

        They depend on these two arguments alone. Servers that come with fredsim also take int64 arrays (n,) for n
        pushes, and then return for each coefficient a number or an array (n,); a user's are called push by push.
        """
        raise NotImplementedError

    def __new__(cls, /, *arguments: Any, **keywords: Any) -> Self:
        """Keep the arguments, with which a shadow can be made."""
        server = super().__new__(cls)
        server.made_with = arguments, keywords
        return server

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property that failed: its own error says more
            return object.__getattribute__(self, name)
        raise no_attribute(self, name)

    def all_state(self) -> tuple[str, ...]:
        """Return the names of all arrays of state: the rule's, and those of `more_state`."""
        return (*self.rule.state, *self.more_state)

    @property
    def v(self) -> Array:
        """The deviation of the gradients that gates may ask for. Raises AttributeError if the class names none."""
        if not self.deviation:
            raise AttributeError(f"{type(self).__name__} has no attribute 'v'", name="v", obj=self)
        return self.arrays[self.deviation]

    def expect(self, clients: int) -> None:
        """Note the number of clients. Raises ConfigError if `deviation` names no array of the rule's state."""
        super().expect(clients)
        arrays = [name for name in self.rule.state if name not in self.per_client] if self.deviation else []
        if self.deviation and self.deviation not in arrays:
            raise ConfigError(
                f"server.name: {type(self).__name__} has deviation = {self.deviation!r}; it must name an array of the "
                f"rule's state ({', '.join(arrays) or 'there is none'})"
            )

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters and compile the rule."""
        super().init(params, clients, layout)
        initial = self.initial_state()
        if not self._built_in:
            check_initial_state(self, initial)
        starts: dict[str, Array] = {name: self.operations.zeros(len(self.params)) for name in self.all_state()}
        for name, start in starts.items():
            start[...] = initial.get(name, 0.0)
        self.arrays = {name: start for name, start in starts.items() if name not in self.per_client}
        pool = self._given_pool
        self.own = {name: PerClient(start, pool) for name, start in starts.items() if name in self.per_client}
        self.update = self._compile(self.rule)
        self.compiled = self.rule, self.update
        self._decay = self._compile(DECAY)
        begin = None if self._built_in else np.array(params)
        self._find_shadow = cache(partial(make_shadow, self, ElementwiseServer, begin, clients))

    @property
    def shadow(self) -> ElementwiseServer:
        """The object that computes the coefficients: this server, or its shadow (servers.checks.make_shadow)."""
        shadow: ElementwiseServer = self._find_shadow()  # not called before `init` of the user's class has ended
        return shadow

    def checked_coefficients(self, t: int, staleness: int) -> Sequence[np.float32]:
        """Return the coefficients of the push that makes update t + 1. Raises SimulationError if a user's fail."""
        formed: Sequence[np.float32]
        formed = self.coefficients(t, staleness) if self._built_in else form_coefficients(self, t, staleness)
        return formed

    def take_state(self) -> State:
        """Return the state, including that of the shadow."""
        state = super().take_state()
        if self._has_shadow:
            state |= {f"{SHADOW}.{name}": value for name, value in take_state(self.shadow).items()}
        return state

    def put_state(self, state: State) -> None:
        """Restore the state, including that of the shadow."""
        its_state = part_of(state, SHADOW)
        super().put_state({name: value for name, value in state.items() if not name.startswith(f"{SHADOW}.")})
        if self._has_shadow:
            put_state(self.shadow, its_state)

    @property
    def _has_shadow(self) -> bool:
        """Whether another object computes the coefficients; a shadow has none itself."""
        return not is_shadow(self) and self.shadow is not self

    def _compile(self, rule: Rule) -> Update:
        """Compile a rule and call it on empty arrays, so that compilation is not counted in the run's time."""
        update = self.operations.compile_rule(rule)
        nothing = [self.params[:0]] * (2 + len(rule.state))
        update(*nothing, 0, 0, *[np.float32(1)] * len(rule.coefficients))
        return update

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Apply the rule in place and advance the timestamp; the client that pushed is released."""
        staleness = self.timestamp - timestamp
        if self.rates_of_parts is not None:
            self._apply_by_parts(self.rates_of_parts(self.timestamp), grad, client_id, staleness)
            return None
        self._apply(grad, client_id, *self.checked_coefficients(self.timestamp, staleness))
        return None

    def _apply_by_parts(
        self, parts: Sequence[tuple[slice, float]], grad: Array, client_id: int, staleness: int
    ) -> None:
        """Apply the rule to each part of the parameters, with its own multiple of the learning rate."""
        state, finite = self.state_of(client_id), True
        for part, factor in parts:
            self.rate = partial(multiplied, self.rate, factor)  # type: ignore[method-assign]
            try:
                coefficients = self.checked_coefficients(self.timestamp, staleness)
                self.decay(self.params, part)
            finally:
                del self.rate  # that of the class again
            finite &= bool(self.update(self.params, *state, grad, part.start, part.stop, *coefficients))
        self._applied(client_id, finite=finite)

    def _apply(self, grad: Array, client_id: int, *coefficients: np.float32) -> None:
        size = self.params.size
        self.decay(self.params)
        finite = bool(self.update(self.params, *self.state_of(client_id), grad, 0, size, *coefficients))
        self._applied(client_id, finite=finite)

    def _applied(self, client_id: int, *, finite: bool) -> None:
        self.finite = finite
        for name in self.per_client:
            self.own[name].page_out(client_id)
        self.timestamp += 1

    def decay(self, params: Array, part: slice | None = None) -> None:
        """Apply decoupled weight decay to a part of the parameters, or all, in place, as before each step."""
        share = getattr(self.hyper, "weight_decay", 0.0)
        if share:
            begin, end = (0, params.size) if part is None else (part.start, part.stop)
            self._decay(params, params, begin, end, np.float32(self.rate() * share))

    def state_of(self, client_id: int) -> list[Array]:
        """Return the arrays of the rule's state for a push of this client, in the rule's order."""
        return [self.arrays[n] if n in self.arrays else self.own[n][client_id] for n in self.rule.state]
