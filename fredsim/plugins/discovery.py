"""Finds the classes of a package by the names of their files, so that adding a class only takes a new file."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["class_named", "find_classes", "is_built_in"]

T = TypeVar("T")


def find_classes(package: str, base: type[T]) -> dict[str, type[T]]:
    """Import all modules of a package; return their subclasses of `base`, by the name of the file, alphabetically.

    A class is found if its own body sets `idea` to a text that is not empty.
    """
    found = {}
    for file in pkgutil.iter_modules(import_module(package).__path__):
        module = import_module(f"{package}.{file.name}")
        for value in vars(module).values():
            defined_here = isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
            if defined_here and vars(value).get("idea"):
                found[file.name] = value
    return found


def is_built_in(cls: type) -> bool:
    """Return whether a class itself, not only a base of it, comes with fredsim."""
    return cls.__module__.partition(".")[0] == "fredsim"


def class_named(name: str, package: str, classes: Mapping[str, type]) -> Any:
    """Return the one of these classes whose class name is `name`, for a package's module-level `__getattr__`.

    Raises AttributeError if there is none.
    """
    for found in classes.values():
        if found.__name__ == name:
            return found
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
