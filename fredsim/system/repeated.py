"""Finds what stands somewhere twice, in time that grows with the number of names, not with its square."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["first_repeated"]


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that was there before, or None if each is there once."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
