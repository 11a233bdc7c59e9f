"""A problem of a user's own, in place of data and a network: a class with initial parameters, gradients, evaluation.

docs/problems.md says what such a class has. Whatever it gives is checked, and copied at once; it is given copies.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError, SimulationError, shown
from fredsim.networks.layout import Layout
from fredsim.networks.network import MeasuredBy, Network, Numerics
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.draws import Draws
from fredsim.numerics.streams import Stream, Streams
from fredsim.plugins.failures import described, failing
from fredsim.plugins.generators import generator_states
from fredsim.plugins.guarded import Guarded, array_of, is_integer, python_number
from fredsim.plugins.modules import import_callable, parameters_of
from fredsim.plugins.named_files import own_files
from fredsim.plugins.seeding import seeded
from fredsim.system.files import digests_of_files, files_named

__all__ = ["COLUMNS_OF", "Declared", "Draw", "OwnProblem", "declared", "find_problem"]

FORM = "package.module:Class"
METHODS = ("initial", "gradient", "evaluate")
NEEDED = "a problem has initial(rng), gradient(params, draw) and evaluate(params)"
#: Names of what `evaluate` returns that are columns of every run.
COLUMNS_OF = {"loss": "validation_loss", "error": "validation_error"}
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,99}")
TENSOR = re.compile(r"[A-Za-z_][\w.\-]{0,199}", re.ASCII)
#: Kinds of attributes that an object may count with.
PLAIN = (bool, int, float, complex, str, bytes, np.generic, np.random.Generator, np.random.RandomState, random.Random)
#: What a generator is for, where a gradient has the third word of its counter.
GRADIENT, INITIAL = 0, 1


class Draw(np.random.Generator):
    """A generator of NumPy's, of which all numbers follow from the run's seed, a client, and a number of its gradients.

    Its bit generator is Philox4x64-10 with key (seed, stream) and counter (0, purpose, number, client).
    """

    def __init__(self, seed: int, client: int = 0, number: int = 0, purpose: int = GRADIENT) -> None:
        counter = np.array([0, purpose, number, client], np.uint64)
        super().__init__(np.random.Philox(counter=counter, key=np.array([seed, Stream.PROBLEM], np.uint64)))
        self.client, self.number = client, number
        """The client whose gradient it is for, and which of the client's gradients that is, from 0."""


class Declared(NamedTuple):
    """What a class says of itself besides its methods."""

    measured_by: str | None
    """The name that `evaluate` gives to what tells how good parameters are; None: the first one."""
    larger_is_better: tuple[str, ...]
    """The names of which more is better."""
    portable: bool
    """Whether its bits are the same on every machine."""
    takes_current: bool
    """Whether `gradient` also takes the server's parameters at the arrival."""


def _as_array(given: Any) -> NDArray[Any]:
    """Return what a class gives as an array of NumPy's. Raises TypeError for a masked one."""
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError("a masked array, of which some values mean nothing; give .filled(…)")
    return array_of(given)


def _as_value(given: Any) -> NDArray[Any]:
    """Return what a class gives for a number as an array of NumPy's. Raises TypeError for a masked one."""
    number = python_number(given)
    return _as_array(given if number is None else number)


def _is_number(array: NDArray[Any]) -> bool:
    """Return whether an array is one real number."""
    return array.shape == () and array.dtype.kind in "fiu"


def _named(array: NDArray[Any]) -> str:
    """Return what an array is, for a message: its type and shape, or the type of what it holds beside numbers."""
    if array.shape == () and not _is_number(array):
        return f"a {type(array.item()).__name__}"
    return f"{array.dtype} {array.shape}"


def find_problem(name: str) -> Any:
    """Return the class, or function that makes a problem, of this name. Raises ConfigError if there is none."""
    if name.startswith("python:"):
        raise ConfigError(f"problem.name is {shown(name)}; leave python: out, as in {shown(name[7:])}")
    return import_callable(name, FORM, "problem.name", "a class, or a function that returns a problem")


def declared(name: str, problem: Any) -> Declared:
    """Return what a class, or an object of it, declares. Raises ConfigError if that makes no sense."""

    def refused(what: str, given: Any, wanted: str) -> ConfigError:
        return ConfigError(f"problem.name: {name}: its {what} is {shown(given)}; it must be {wanted}")

    measure, larger = getattr(problem, "measured_by", None), getattr(problem, "larger_is_better", ())
    if not isinstance(measure, str | None):
        raise refused("measured_by", measure, "a name that evaluate returns")
    if not isinstance(larger, tuple | list) or not all(isinstance(one, str) for one in larger):
        raise refused("larger_is_better", larger, 'a tuple of names that evaluate returns, such as ("reward",)')
    portable = getattr(problem, "portable", False)
    if not isinstance(portable, bool):
        raise refused("portable", portable, "True or False")
    takes = "current" in (parameters_of(getattr(problem, "gradient", None)) or ())  # a function has none
    return Declared(measure, tuple(larger), portable, takes)


class GuardedProblem(Guarded):
    """The user's object, called with checks."""

    signatures = {  # noqa: RUF012
        "initial": ("rng",), "gradient": ("params", "draw"), "evaluate": ("params",),
    }  # fmt: skip

    def _in_words(self, client: int | None, iteration: int) -> str:
        return f"client {client}, its gradient {iteration}"


class OwnProblem(Network):
    """A problem of a user's class; gradients at the same parameters differ by what is drawn."""

    def __init__(self, name: str, arguments: Mapping[str, Any], seed: int) -> None:
        """Make an object of the class, with these keyword arguments, and its initial parameters.

        Raises ConfigError if it cannot be made or has not what a problem needs, SimulationError if `initial` fails.
        """
        self.name, self.seed = name, seed
        made = self._made(find_problem(name), arguments)
        for method in METHODS:
            if not callable(getattr(made, method, None)):
                raise ConfigError(f"problem.name: {name} has no method {method}; {NEEDED}")
        self.declared = declared(name, made)
        self._guarded = GuardedProblem(made)

        def refused(what: str) -> ConfigError:
            return ConfigError(f"problem.name: {name}: {what}")

        self._files = digests_of_files([*files_named(arguments), *own_files(made, refused)], refused)
        #: Whether it draws from the generators that everybody in the process shares.
        self.draws_shared = False
        #: Whether `gradient` also returns a loss; None: not known yet.
        self.has_losses: bool | None = None
        self._names: list[str] | None = None  # those that `evaluate` returns
        self._initial = self._begin()
        self._plain = [name for name, value in getattr(made, "__dict__", {}).items() if isinstance(value, PLAIN)]
        self._layout = self._layout_of(made)

    def _made(self, found: Any, arguments: Mapping[str, Any]) -> Any:
        called = f"problem.name: {self.name}({', '.join(arguments)})"
        with (
            failing(lambda error: ConfigError(f"{called} failed: {described(error)}"), ConfigError, MemoryError),
            np.errstate(all="ignore"),
            seeded(self.seed),
        ):
            return found(**arguments)

    def _begin(self) -> Array:
        """Return the initial parameters (P,). Raises SimulationError unless they are the same twice, and finite."""
        found = []
        for _ in range(2):
            with seeded(self.seed):
                given = self._guarded.guard("initial", self._initial_once)
            found.append(self._flat(given, None, "initial", "what it returns"))
        if found[0].tobytes() != found[1].tobytes():
            what = "returned other parameters the second time; draw from rng alone, which has the same numbers then"
            raise self._guarded.error("initial", what)
        if not len(found[0]):
            raise self._guarded.error("initial", "returned no parameters; there must be one at least")
        if not np.isfinite(found[0]).all():
            raise self._guarded.error("initial", "returned parameters that are not finite")
        return found[0]

    def _initial_once(self) -> Any:
        return _as_array(self._guarded.inner.initial(Draw(self.seed, purpose=INITIAL)))

    def _flat(self, array: Any, size: int | None, stage: str, what: str) -> Array:
        """Return a copy of an array of the class's. Raises SimulationError unless it is float32 (size,)."""
        wanted = (size,) if size is not None else array.shape if array.ndim == 1 else ("P",)
        if array.dtype == np.float32 and array.shape == wanted:
            return np.array(array)
        hint = "; give .astype(np.float32)" if array.dtype.kind in "fiub" and array.shape == wanted else ""
        if array.dtype == np.float32 and size is not None and array.size == size:
            hint = "; give .ravel(): parameters and gradients are flat"
        expected = f"({', '.join(map(str, wanted))},)"
        raise self._guarded.error(stage, f"{what} is {_named(array)}; it must be float32 {expected}{hint}")

    def _layout_of(self, made: Any) -> Layout:
        """Return the tensors that the class names in `parameters`, else one for all. Raises ConfigError."""
        size, given = len(self._initial), getattr(made, "parameters", None)
        if given is None:
            return Layout((("params", (size,)),))
        tensors = []
        for tensor, shape in given.items() if isinstance(given, dict) else [(None, None)]:
            of = (shape,) if is_integer(shape) else shape
            whole = isinstance(of, tuple | list) and all(is_integer(one) and one > 0 for one in of)
            if not (isinstance(tensor, str) and TENSOR.fullmatch(tensor) and isinstance(of, tuple | list) and whole):
                wanted = 'a dict of names to shapes, such as {"weight": (3, 4), "bias": (3,)}'
                raise ConfigError(f"problem.name: {self.name}: its parameters are {shown(given)}; it must be {wanted}")
            tensors.append((tensor, tuple(map(int, of))))
        found = Layout(tuple(tensors))
        if found.size != size:
            what = f"its parameters have {found.size} numbers, and initial(rng) returns {size}; they must agree"
            raise ConfigError(f"problem.name: {self.name}: {what}")
        return found

    def kept(self) -> dict[str, Any]:
        """Return the attributes of the object that are numbers, texts or generators; arrays may be room for results."""
        made = self._guarded.inner
        return {
            f"the attribute {name} of problem.name: {self.name}": value
            for name in self._plain
            if isinstance(value := getattr(made, name, None), PLAIN)
        }

    @property
    def layout(self) -> Layout:
        """The tensors that the class names, or one for all parameters."""
        return self._layout

    @property
    def graph(self) -> None:
        """None: only the class computes it."""

    @property
    def numerics(self) -> Numerics:
        """What the class says."""
        return "portable" if self.declared.portable else "native"

    @property
    def measured_by(self) -> MeasuredBy:
        """What the class says: see `measure`."""
        return "own"

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of the files that keys and class name."""
        return self._files

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters, float32 (P,)."""
        return self._initial.copy()

    def gradient(
        self, params: Array, draws: Draws, current: Callable[[], Array] | None = None
    ) -> tuple[Array, np.float32]:
        """Return a gradient (P,) at parameters (P,), and its loss, NaN if the class gives none.

        `current` returns the server's parameters, if the class asks for them. Raises SimulationError.
        """
        self._guarded.set_event(draws.client, draws.number)
        draw = Draw(draws.seed, draws.client, draws.number)
        more = {} if not self.declared.takes_current else {"current": None if current is None else current()}
        inner = self._guarded.inner

        def call() -> tuple[Any, Any, bool]:
            found = inner.gradient(params.copy(), draw, **more)
            pair = isinstance(found, tuple | list) and len(found) == 2
            if isinstance(found, tuple) and not pair:
                raise TypeError(f"a tuple of {len(found)}; return the gradient, or the gradient and its loss")
            grad, loss = found if pair else (found, math.nan)
            return _as_array(grad), _as_value(loss), pair

        if self.draws_shared:
            with seeded(self._words(draws)):
                grad, loss, pair = self._guarded.guard("gradient", call)
        else:
            grad, loss, pair = self._guarded.guard("gradient", call)
        if self.has_losses is None:
            self.has_losses = pair
        elif self.has_losses != pair:
            raise self._guarded.error("gradient", "returned a loss beside the gradient at some times only")
        if pair and grad.shape == () and loss.shape == self._initial.shape:
            raise self._guarded.error("gradient", "returned a number before the gradient; give the gradient, its loss")
        found = self._flat(grad, len(self._initial), "gradient", "the gradient")
        if not _is_number(loss):
            what = f"its loss is {_named(loss)}; it must be one real number, beside the gradient"
            raise self._guarded.error("gradient", what)
        with np.errstate(over="ignore"):
            return found, np.float32(loss)

    @staticmethod
    def _words(draws: Draws) -> list[int]:
        """Return the words by which the shared generators are seeded for a gradient."""
        return list(Streams(draws.seed).block(Stream.PROBLEM, 0, draws.number, draws.client))

    def evaluate(self, params: Array) -> dict[str, float]:
        """Return what the class says of parameters (P,): numbers by name, always the same names in the same order.

        Raises SimulationError.
        """
        self._guarded.where = ""
        inner = self._guarded.inner

        def call() -> Any:
            found = inner.evaluate(params.copy())
            if isinstance(found, dict):
                found = {name: _as_value(value) for name, value in found.items()}
            return found

        with seeded(self.seed):
            found = self._guarded.guard("evaluate", call)
        if not isinstance(found, dict) or not found:
            what = f"returned {shown(found)}; it must return a dict of names to numbers, one at least"
            raise self._guarded.error("evaluate", what)
        for name, value in found.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                what = f"names {shown(name)}; a name has letters, digits and _, 100 at most, and begins with no digit"
                raise self._guarded.error("evaluate", what)
            if not _is_number(value):
                what = f"gave {name} as {_named(value)}; it must be one real number"
                raise self._guarded.error("evaluate", what)
        if self._names is None:
            self._names = list(found)
        elif self._names != list(found):
            what = f"named {', '.join(found)} after {', '.join(self._names)}; the names must stay the same"
            raise self._guarded.error("evaluate", what)
        return {name: float(value) for name, value in found.items()}

    def try_out(self) -> None:
        """Compute gradients and an evaluation twice, at the initial parameters; no later call is the first one.

        Raises SimulationError if something is not finite, or is not the same the second time.
        """
        params, first, other = self._initial, Draws(self.seed, 0, 0), Draws(self.seed, 1, 1)
        current = params.copy if self.declared.takes_current else None
        with seeded(self.seed):
            before = generator_states()
            grad, _ = self.gradient(params, first, current)
            self.draws_shared = generator_states() != before
        if self.draws_shared:
            grad, _ = self.gradient(params, first, current)
        if not np.isfinite(grad).all():
            what = "the gradient at the initial parameters is not finite; it must be, at the beginning"
            raise self._guarded.error("gradient", what)
        measured = self.evaluate(params)
        with np.errstate(all="ignore"):
            self.gradient(params - np.float32(1e-3) * grad, other, current)
        self.repeat(params, first, grad, current)
        for name, value in self.evaluate(params).items():
            if not math.isfinite(value):
                raise self._guarded.error("evaluate", f"{name} is {value} at the initial parameters; it must be finite")
            if value != measured[name]:
                what = f"gave {name} as {measured[name]}, and then as {value}, of the same parameters; evaluate must "
                raise self._guarded.error("evaluate", f"{what}depend on them alone: draw from a generator made in it")
        _ = self.measure

    def repeat(self, params: Array, draws: Draws, grad: Array, current: Callable[[], Array] | None = None) -> None:
        """Compute a gradient once more. Raises SimulationError if it is another one than `grad`."""
        again, _ = self.gradient(params, draws, current)
        if again.tobytes() != grad.tobytes():
            what = "returned another gradient the second time; it must depend on params and draw alone, and on nothing "
            raise self._guarded.error("gradient", f"{what}that the object keeps from call to call")

    def drawn_late(self) -> SimulationError:
        """Return the error for a gradient that draws from shared generators, though the first one did not."""
        what = "draws from a generator of random, np.random or torch at some times alone, so it is not seeded; use draw"
        return self._guarded.error("gradient", what)

    @cached_property
    def names(self) -> list[str]:
        """The names that `evaluate` returns; it is called if it never was."""
        if self._names is None:
            self.evaluate(self._initial)
        return list(self._names or ())

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv that it adds."""
        return tuple(name for name in self.names if name not in COLUMNS_OF)

    @property
    def all_columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv that have what `evaluate` returns."""
        return tuple(COLUMNS_OF.get(name, name) for name in self.names)

    @property
    def measure(self) -> str:
        """The column that tells how good parameters are. Raises SimulationError if the class declares other names."""
        for what, given in (
            *(("measured_by", name) for name in [self.declared.measured_by] if name is not None),
            *(("larger_is_better", name) for name in self.declared.larger_is_better),
        ):
            if given not in self.names:
                known = ", ".join(self.names)
                raise self._guarded.error(what, f"names {given!r}, and evaluate returns {known}; give one of these")
        found = self.declared.measured_by or self.names[0]
        return COLUMNS_OF.get(found, found)

    @property
    def larger_is_better(self) -> list[str]:
        """The columns of which more is better."""
        return [COLUMNS_OF.get(name, name) for name in self.names if name in self.declared.larger_is_better]
