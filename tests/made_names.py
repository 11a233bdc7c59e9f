"""Modules whose classes and functions are made when they are first named, as experiments and pickles name them."""

from collections.abc import Callable
from typing import Any

__all__ = ["made_names"]


def made_names(module: str, make: Callable[[str, str], Any]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, in which `one__other` is what `make(one, other)` made the first time.

    `make` raises KeyError for names that there are not.
    """
    known: dict[str, Any] = {}

    def named(name: str) -> Any:
        if name not in known:
            one, _, other = name.partition("__")
            try:
                made = make(one, other)
            except KeyError:
                raise AttributeError(name) from None
            made.__module__, made.__qualname__ = module, name
            known[name] = made
        return known[name]

    return named
