"""Finds the classes that a package offers by name, the name of its file, so that adding one only takes a new file."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["class_named", "offered"]

T = TypeVar("T")


def offered(package: str, base: type[T]) -> dict[str, type[T]]:
    """Return the subclasses of `base` that define an `idea`, by the name of their file, alphabetically."""
    found = {}
    for file in pkgutil.iter_modules(import_module(package).__path__):
        module = import_module(f"{package}.{file.name}")
        for value in vars(module).values():
            ours = isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
            if ours and vars(value).get("idea"):
                found[file.name] = value
    return found


def class_named(name: str, package: str, classes: Mapping[str, type]) -> Any:
    """Return one of the classes by the class's name, for a package's `__getattr__`. Raises AttributeError."""
    for found in classes.values():
        if found.__name__ == name:
            return found
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
