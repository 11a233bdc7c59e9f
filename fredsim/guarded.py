"""An object of a user's, and what is said of it when it fails.

Whatever goes wrong inside, the error names the class, the client, the iteration, the stage, and the user's line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from fredsim.errors import FredsimError, SimulationError
from fredsim.own_lines import line_of, where_defined

__all__ = ["REAL", "Adapted"]

REAL = (int, float, np.integer, np.floating)


class Adapted:
    """An object whose methods may fail, and what to say then."""

    def __init__(self, inner: Any, users: Any = None) -> None:
        """Take an object; `users` is the one that is a user's, where another of fredsim's is around it."""
        self._inner = inner
        self._users = inner if users is None else users
        self._name = type(self._users).__name__
        self.where = ""  # the client and the iteration at hand

    def call(self, stage: str, where: str, /, **arguments: Any) -> Any:
        """Call a method, its arguments by place; their names are those of the contract, which an error shows.

        Raises SimulationError, naming the stage and the line, where it fails.
        """
        return self.guard(stage, lambda: getattr(self._inner, stage)(*arguments.values()), where, arguments)

    def _read(self, attribute: str) -> Any:
        """Return an attribute, which may be a property that fails."""
        return self.guard(attribute, lambda: getattr(self._inner, attribute))

    def has(self, attribute: str) -> bool:
        """Return whether there is such an attribute, which may be a property that fails."""
        return bool(self.guard(attribute, lambda: hasattr(self._inner, attribute)))

    def at(self, client: int, iteration: int) -> str:
        """Take note of the event at hand, which errors name; return it in words."""
        self.where = f"client {client}, iteration {iteration}"
        return self.where

    def get(self, attribute: str, otherwise: Any) -> Any:
        """Return an attribute, or something else where there is none."""
        return self._read(attribute) if self.has(attribute) else otherwise

    def guard(
        self,
        stage: str,
        do: Callable[[], Any],
        where: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do something with the object. Raises SimulationError, naming the stage and the line, where it fails.

        `arguments` are those of a method that is called. It warns of no overflow: the run diverges, and says so.
        """
        try:
            with nullcontext() if arguments is None else np.errstate(all="ignore"):
                return do()
        except (FredsimError, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit, too, ends its run and nothing else
            wrong = (
                self._wrong_signature(stage, arguments)
                if isinstance(error, TypeError) and arguments is not None
                else ""
            )
            what = wrong or f"{type(error).__name__}: {error}{line_of(error)}"
            raise self.broken(self.where if where is None else where, stage, what) from error

    def _wrong_signature(self, stage: str, arguments: Mapping[str, Any]) -> str:
        """Return what is wrong with a method that cannot take these arguments, nothing where it can."""
        method = getattr(self._users, stage, None)
        try:
            signature = inspect.signature(method)  # type: ignore[arg-type]  # what is no callable has none
        except (TypeError, ValueError):
            return ""
        try:
            signature.bind(*arguments.values())
        except TypeError:
            found, wanted = (f"{stage}({', '.join(['self', *names])})" for names in (signature.parameters, arguments))
            return f"is {found}{where_defined(method)}; it must be {wanted}"
        return ""

    def broken(self, where: str, stage: str, what: str) -> SimulationError:
        """Return the error that says what is wrong, and where."""
        return SimulationError(f"{', '.join(part for part in (self._name, where, stage) if part)}: {what}")

    def _check_array(self, array: Any, size: int, where: str, what: str) -> None:
        is_array = hasattr(array, "__array_ufunc__") and hasattr(array, "shape") and hasattr(array, "dtype")
        if not is_array or array.dtype != np.float32 or array.shape != (size,):
            found = f"{array.dtype} {array.shape}" if is_array else type(array).__name__
            raise self.broken(where, what, f"is {found}; it must be float32 ({size},)")

    def _check_number(self, value: Any, where: str, what: str) -> None:
        """Refuse what is no real number ≥ 0; ∞ is one, and ends a run by its own means."""
        if not isinstance(value, REAL) or isinstance(value, bool | np.bool_) or not value >= 0:
            raise self.broken(where, what, f"is {value!r}; it must be a number, 0 at least")

    def check_count(self, value: Any, where: str, what: str) -> None:
        """Refuse what is no integer ≥ 1."""
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value <= 0:
            raise self.broken(where, what, f"is {value!r}; it must be an integer, 1 at least")
