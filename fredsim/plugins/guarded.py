"""An object of a user's, and what is said of it when it fails.

Whatever goes wrong inside, the error names the class, the client, the iteration, the stage, and the user's line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fredsim.errors import FredsimError, SimulationError
from fredsim.plugins.source_lines import line_of, where_defined
from fredsim.plugins.states import State, Stateful, part_of, put_state, says_all, take_state

__all__ = ["INTEGER", "REAL", "Guarded"]

INTEGER = (int, np.integer)
REAL = (int, float, np.integer, np.floating)


class Guarded(Stateful):
    """An object whose methods may fail, and what to say then."""

    #: The arguments of its methods, which are given by place; the error of a wrong signature names them.
    signatures: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, inner: Any, users: Any = None) -> None:
        """Take an object; `users` is the one that is a user's, where another of fredsim's is around it."""
        self._inner = inner
        self._users = inner if users is None else users
        self._name = type(self._users).__name__
        self._event: tuple[int | None, int] | str = ""

    @property
    def inner(self) -> Any:
        """The object itself."""
        return self._inner

    @property
    def where(self) -> str:
        """What is at hand in words, as errors name it: a client and an iteration, or what was set."""
        return self._event if isinstance(self._event, str) else self._in_words(*self._event)

    @where.setter
    def where(self, text: str) -> None:
        self._event = text

    def _in_words(self, client: int | None, iteration: int) -> str:
        return f"iteration {iteration}" if client is None else f"client {client}, iteration {iteration}"

    def at(self, client: int | None, iteration: int) -> None:
        """Take note of the event at hand; it is put into words where something fails."""
        self._event = client, iteration

    def call(self, stage: str, /, *arguments: Any) -> Any:
        """Call a method. Raises SimulationError, naming the stage and the line, where it fails."""
        try:
            return getattr(self._inner, stage)(*arguments)
        except (FredsimError, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit, too, ends its run and nothing else
            wrong = self._wrong_signature(stage, arguments) if isinstance(error, TypeError) else ""
            raise self._failed(stage, error, wrong) from error

    def lend(self, array: Any, stage: str, /, *arguments: Any) -> Any:
        """Call a method with an array among its arguments that is overwritten later on.

        Raises SimulationError where an object of a user's keeps it, or a view of it.
        """
        owner = array if getattr(array, "base", None) is None else array.base
        before = sys.getrefcount(array), sys.getrefcount(owner)
        result = self.call(stage, *arguments)
        returned = sum(item is array for item in result) if isinstance(result, tuple) else int(result is array)
        if (sys.getrefcount(array) - returned, sys.getrefcount(owner)) > before:
            names = zip(self.signatures[stage], arguments, strict=True)
            (name,) = (name for name, value in names if value is array)
            raise self.broken(stage, f"keeps {name}, or a view of it, which is overwritten; keep {name}.copy()")
        return result

    def guard(self, stage: str, do: Callable[[], Any]) -> Any:
        """Do something with the object. Raises SimulationError, naming the stage and the line, where it fails."""
        try:
            return do()
        except (FredsimError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._failed(stage, error) from error

    def _failed(self, stage: str, error: BaseException, what: str = "") -> SimulationError:
        return self.broken(stage, what or f"{type(error).__name__}: {error}{line_of(error)}")

    @property
    def says_its_state(self) -> bool:
        """Whether the object says itself what its state is, and so does a user's that another is around."""
        return says_all(self._inner) and says_all(self._users)

    def take_state(self) -> State:
        """Return the state, and the object's own. Raises SimulationError where that cannot be had."""
        own = self.guard("take_state", lambda: take_state(self._inner))
        return super().take_state() | {f"own.{name}": value for name, value in own.items()}

    def put_state(self, state: State) -> None:
        """Go on from a state."""
        super().put_state(state)
        self.guard("put_state", lambda: put_state(self._inner, part_of(state, "own")))

    def has(self, attribute: str) -> bool:
        """Return whether there is such an attribute, which may be a property that fails."""
        return bool(self.guard(attribute, lambda: hasattr(self._inner, attribute)))

    def get(self, attribute: str, otherwise: Any) -> Any:
        """Return an attribute, which may be a property that fails, or something else where there is none."""
        try:
            return getattr(self._inner, attribute, otherwise)
        except (FredsimError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._failed(attribute, error) from error

    def _wrong_signature(self, stage: str, arguments: Sequence[Any]) -> str:
        """Return what is wrong with a method that cannot take these arguments, nothing where it can."""
        method = getattr(self._users, stage, None)
        try:
            signature = inspect.signature(method)  # type: ignore[arg-type]  # what is no callable has none
        except (TypeError, ValueError):
            return ""
        try:
            signature.bind(*arguments)
        except TypeError:
            names = self.signatures[stage]
            found, wanted = (f"{stage}({', '.join(['self', *names])})" for names in (signature.parameters, names))
            return f"is {found}{where_defined(method)}; it must be {wanted}"
        return ""

    def broken(self, stage: str, what: str) -> SimulationError:
        """Return the error that says what is wrong, and at which event."""
        return SimulationError(f"{', '.join(part for part in (self._name, self.where, stage) if part)}: {what}")

    def _check_array(self, array: Any, size: int, what: str) -> None:
        if type(array) is np.ndarray and array.dtype == np.float32 and array.shape == (size,):
            return
        is_array = hasattr(array, "__array_ufunc__") and hasattr(array, "shape") and hasattr(array, "dtype")
        if not is_array or array.dtype != np.float32 or array.shape != (size,):
            found = f"{array.dtype} {array.shape}" if is_array else type(array).__name__
            raise self.broken(what, f"is {found}; it must be float32 ({size},)")

    def _check_number(self, value: Any, what: str) -> None:
        """Refuse what is no real number ≥ 0; ∞ is one, and ends a run by its own means."""
        if not isinstance(value, REAL) or isinstance(value, bool | np.bool_) or not value >= 0:
            raise self.broken(what, f"is {value!r}; it must be a number, 0 at least")

    def check_count(self, value: Any, what: str) -> None:
        """Refuse what is no integer ≥ 1."""
        if not isinstance(value, INTEGER) or isinstance(value, bool) or value <= 0:
            raise self.broken(what, f"is {value!r}; it must be an integer, 1 at least")
