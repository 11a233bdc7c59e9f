"""Finds the classes of a package by the names of their files, so that adding a class only takes a new file."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["Classes", "class_named", "is_built_in"]

T = TypeVar("T")


class Classes(Mapping[str, type[T]]):
    """The subclasses of `base` in the modules of a package, by the name of the file, alphabetically.

    A class is found if its own body sets `idea` to a text that is not empty. A module is imported when its class is
    first asked for: a command then loads only what its experiment uses.
    """

    def __init__(self, package: str, base: type[T]) -> None:
        self._package, self._base = package, base
        self._found: dict[str, type[T] | None] = {}  # by the name of the file; None: it has no such class
        self._files: list[str] | None = None

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._names():
            raise KeyError(name)
        if name not in self._found:
            module = import_module(f"{self._package}.{name}")
            self._found[name] = None
            for value in vars(module).values():
                defined_here = isinstance(value, type) and issubclass(value, self._base)
                if defined_here and value.__module__ == module.__name__ and vars(value).get("idea"):
                    self._found[name] = value
        found = self._found[name]
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names() if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _names(self) -> list[str]:
        if self._files is None:
            self._files = [file.name for file in pkgutil.iter_modules(import_module(self._package).__path__)]
        return self._files


def is_built_in(cls: type) -> bool:
    """Return whether a class itself, not only a base of it, comes with fredsim."""
    return cls.__module__.partition(".")[0] == "fredsim"


def class_named(name: str, package: str, classes: Mapping[str, type]) -> Any:
    """Return the one of these classes whose class name is `name`, for a package's module-level `__getattr__`.

    Raises AttributeError if there is none.
    """
    for found in classes.values() if name[:1].isupper() else ():
        if found.__name__ == name:
            return found
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
