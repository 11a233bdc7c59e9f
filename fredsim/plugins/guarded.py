"""A wrapper around a user's object, which turns any exception that it raises into one clear SimulationError.

The error names the class, the client, the iteration, the stage (the method or attribute), and the line of user code.
"""

from __future__ import annotations

import gc
import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import DeviceMemoryError, FredsimError, SimulationError
from fredsim.plugins.failures import described, is_interrupt, said, where_defined
from fredsim.plugins.state.states import State, Stateful, declares_state, note_start, part_of, put_state, take_state

__all__ = ["BOOLEAN", "MOST_COUNTED", "Guarded", "array_of", "is_integer", "is_real", "python_number"]

Result = TypeVar("Result")

#: The types of true and false, Python's and NumPy's.
BOOLEAN = (bool, np.bool_)
#: What the bytes of a push and of a fetch may be at most, so that those of a run can be counted.
MOST_COUNTED = 2**40

UNSTARTED = (CoroutineType, AsyncGeneratorType, GeneratorType)  # what a call returns that has done nothing yet
#: Waits, in seconds, before an array counts as kept by the object. A profiler in another thread, such as that of Dask's
#: workers, may hold a method's frame, and with it the method's arguments, for a moment after its return.
PAUSES = (0, 0.001, 0.01, 0.1, 1.0, 0)


def is_integer(value: Any) -> TypeGuard[int]:
    """Return whether a value of a user's is an integer, Python's or NumPy's; true and false are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def is_real(value: Any) -> TypeGuard[float]:
    """Return whether a value of a user's is a real number, Python's or NumPy's."""
    return is_integer(value) or isinstance(value, float | np.floating)


def python_number(value: Any) -> float | None:
    """Return a real number of Python's, such as an int of any size or a Fraction, as a float; None for anything else.

    One that is too large for a float is infinite.
    """
    number: Any = value
    if isinstance(value, bool | np.generic) or not isinstance(value, Real):
        return None
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def array_of(given: Any) -> NDArray[Any]:
    """Return what a user's code gives as an array of NumPy's.

    Raises TypeError for a tensor that NumPy cannot have, with what to give instead.
    """
    try:
        return np.asarray(given)
    except (TypeError, RuntimeError) as error:
        if not hasattr(given, "detach"):
            raise
        kind = f"{given.dtype} tensor{' that needs a gradient' if given.requires_grad else ''}"
        raise TypeError(f"NumPy cannot have a {kind}; give .detach().cpu().float()") from error


def _form(array: Any) -> Any:
    """Return how an array's memory is read; None for one on a device."""
    return (array.dtype, array.shape, array.strides, array.flags.writeable) if isinstance(array, np.ndarray) else None


class Guarded(Stateful):
    """Wraps an object whose methods and attributes may fail."""

    #: The positional arguments of its methods, named by the error about a wrong signature.
    signatures: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, inner: Any, user_object: Any = None) -> None:
        """Wrap `inner`; `user_object` is the user's object, if `inner` is one of fredsim's that wraps it."""
        self._inner = inner
        self._user_object = inner if user_object is None else user_object
        self._name = type(self._user_object).__name__
        self._event: tuple[int | None, int] | str = ""

    @property
    def inner(self) -> Any:
        """The object itself."""
        return self._inner

    @property
    def where(self) -> str:
        """The event, or the phase of the run, in which the object is used, as error messages say it."""
        return self._event if isinstance(self._event, str) else self._in_words(*self._event)

    @where.setter
    def where(self, text: str) -> None:
        self._event = text

    def _in_words(self, client: int | None, iteration: int) -> str:
        return f"iteration {iteration}" if client is None else f"client {client}, iteration {iteration}"

    def set_event(self, client: int | None, iteration: int) -> None:
        """Note which event the following calls belong to, for error messages; `client` may be None."""
        self._event = client, iteration

    def lend(self, array: Any, name: str, stage: str, do: Callable[[], Result]) -> Result:
        """Call `do` as `guard` does; its argument `name`, `array`, may be used only meanwhile: it is overwritten later.

        Raises SimulationError if the object keeps a reference to the array or to a view of it, or gives the array
        itself, which will be used again, another type, shape or flag.
        """
        owner = array if getattr(array, "base", None) is None else array.base
        form = _form(array)
        before = sys.getrefcount(array), sys.getrefcount(owner)
        result = self.guard(stage, do)
        if _form(array) != form:
            raise self.error(stage, f"changes the dtype, shape, strides or flags of {name} itself; use {name}.copy()")
        returned = sum(item is array for item in result) if isinstance(result, tuple) else int(result is array)
        for pause in PAUSES:
            if (sys.getrefcount(array) - returned, sys.getrefcount(owner)) <= before:
                return result
            time.sleep(pause)
            gc.collect(2 if pause else 0)  # a function inside the method that calls itself is in a circle of references
        raise self.error(stage, f"keeps {name}, or a view of it, which is overwritten; keep {name}.copy()")

    def guard(self, stage: str, do: Callable[[], Result]) -> Result:
        """Call `do`, which uses the object's method or attribute `stage`.

        Raises SimulationError, naming the stage and the line, if it fails.
        """
        try:
            result = do()
        except (FredsimError, DeviceMemoryError):  # a user's object has no arrays on a device
            raise
        except BaseException as error:  # even sys.exit only fails this run
            if is_interrupt(error):
                raise
            wrong = self._wrong_signature(stage) if isinstance(error, TypeError) else ""
            raise self.error(stage, wrong or described(error)) from error
        if isinstance(result, UNSTARTED):
            self._check_started(stage, result)
        return result

    def give(self, name: str, value: object) -> None:
        """Set an attribute of the user's object, for it to use. Raises SimulationError if it does not let it be set."""
        try:
            setattr(self._user_object, name, value)
        except BaseException as error:  # a property or a `__setattr__` of the user's may raise anything
            if is_interrupt(error):
                raise
            why = f"fredsim cannot set it ({described(error)})"
            raise self.error(name, f"{why}; if the class has __slots__, add {name!r} to them") from error

    def _check_started(self, stage: str, result: Any) -> None:
        """Raise SimulationError if the method itself is async or a generator, so that its call has done nothing."""
        if not isinstance(result, GeneratorType):
            if isinstance(result, CoroutineType):
                result.close()  # or Python warns that nobody awaits it
            raise self.error(stage, "must not be async: fredsim calls it and needs its result at once; use def alone")
        method = getattr(self._user_object, stage, None)
        if result.gi_code is getattr(method, "__code__", None):  # not one that it returns
            raise self.error(
                stage, "must not be a generator, which does nothing when it is called; leave out its yield"
            )

    @property
    def declares_state(self) -> bool:
        """Whether the user's object itself says what its state is."""
        return declares_state(self._user_object)

    def note_start(self) -> None:
        """Note what the user's object is, now that it is started: what changes from here on is its state."""
        self.guard("init", lambda: note_start(self._user_object))

    def take_state(self) -> State:
        """Return this wrapper's state and the object's, whose names begin with `own.`. Raises SimulationError."""
        own = self.guard("take_state", lambda: take_state(self._inner))
        return super().take_state() | {f"own.{name}": value for name, value in own.items()}

    def put_state(self, state: State) -> None:
        """Restore this wrapper's state and the object's."""
        super().put_state(state)
        self.guard("put_state", lambda: put_state(self._inner, part_of(state, "own")))

    def has(self, attribute: str) -> bool:
        """Return whether the object has this attribute. Raises SimulationError if it is a property that fails."""
        return bool(self.guard(attribute, lambda: hasattr(self._inner, attribute)))

    def get(self, attribute: str, otherwise: Any) -> Any:
        """Return an attribute, or `otherwise`. Raises SimulationError if it is a property that fails."""
        return self.guard(attribute, partial(getattr, self._inner, attribute, otherwise))

    def _wrong_signature(self, stage: str) -> str:
        """Return what is wrong with a method if it cannot take its arguments; else an empty text."""
        if stage not in self.signatures:
            return ""
        method = getattr(self._user_object, stage, None)
        try:
            signature = inspect.signature(method)  # type: ignore[arg-type]  # raises TypeError if it is not callable
        except (TypeError, ValueError):
            return ""
        try:
            signature.bind(*self.signatures[stage])
        except TypeError:
            found, wanted = (
                f"{stage}({', '.join(['self', *names])})" for names in (signature.parameters, self.signatures[stage])
            )
            return f"is {found}{where_defined(method)}; it must be {wanted}"
        return ""

    def error(self, stage: str, what: str) -> SimulationError:
        """Return a SimulationError that says what is wrong, in which class and stage, and at which event."""
        return SimulationError(f"{', '.join(part for part in (self._name, self.where, stage) if part)}: {what}")

    def check_count(self, value: Any, what: str) -> None:
        """Raise SimulationError if the value is not an integer from 1 to 2⁴⁰."""
        if not is_integer(value) or value <= 0:
            raise self.error(what, f"is {said(value)}; it must be an integer, 1 at least")
        if value > MOST_COUNTED:
            raise self.error(what, f"is {said(value)}; it must be an integer, 2⁴⁰ at most")
