"""What several attributes of an object share: a list, a generator or a helper, or the memory of arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from operator import itemgetter
from typing import Any

import numpy as np

from fredsim.plugins.state.fingerprints import Known, is_users_object, with_paths
from fredsim.plugins.state.packing import MAPPINGS
from fredsim.plugins.state.state_arrays import span

__all__ = ["Shared", "overlapping", "shared"]

#: What is shared: for each path, that of an attribute before, where an array begins in that one's memory, and whether
#: it is the same object; each with the names of the two attributes.
Shared = dict[tuple[str, str, int, bool], tuple[str, str]]
CHANGING = (*MAPPINGS.values(), list, deque, set, bytearray, np.ndarray)


def shared(values: Mapping[str, Any], known: Known) -> Shared:
    """Return what attributes have in common, besides what is `known`, and what cannot change."""
    places: dict[int, dict[str, tuple[str, Any]]] = {}  # by object or memory, and by attribute: the first one there
    found: Shared = {}
    for name, value in sorted(values.items(), key=itemgetter(0)):
        for path, part in _changing(name, value, known):
            for key in {id(part), id(_memory(part))}:
                owners = places.setdefault(key, {})
                for owner, (other, before) in owners.items():
                    found[path, other, _begin(part) - _begin(before), part is before] = name, owner
                owners.setdefault(name, (path, part))
    return found


def overlapping(values: Mapping[str, Any], changed: Collection[str], known: Known) -> set[str]:
    """Return the names of attributes that have arrays in the memory of those that have changed, but for whole ones.

    An array that has another one within it stays where it is, and the other one becomes a view of it again. One that
    has memory of what is `known` is refused, whatever else has that.
    """
    beside: dict[int, list[tuple[str, tuple[int, int, bool]]]] = {}  # by the memory that they are views of
    for name, value in values.items():
        for _, part in _changing(name, value, known):
            if isinstance(part, np.ndarray) and not known.within(part):
                beside.setdefault(id(_memory(part)), []).append((name, (*span(part), part.flags.forc)))
    found, left = set[str](), [*changed]
    while left:
        name = left.pop()
        for arrays in beside.values():
            spans = [one for owner, one in arrays if owner == name]
            others = ((owner, other) for owner, other in arrays if owner not in found and owner not in changed)
            new = {owner for owner, other in others if any(_overlap(one, other) for one in spans)}
            left += new
            found |= new
    return found


def _overlap(one: tuple[int, int, bool], other: tuple[int, int, bool]) -> bool:
    """Return whether an array overlaps with another one, unless that is whole, and has the first within it."""
    (begin, end, _), (first, last, dense) = one, other
    return begin < last and first < end and not (dense and first <= begin and end <= last)


def _changing(name: str, value: Any, known: Known) -> Iterator[tuple[str, Any]]:
    """Yield what is in an attribute, with its path, and may change; without what is `known`, and empty arrays."""
    changing = (*CHANGING, np.random.Generator, np.random.BitGenerator)
    for path, part in with_paths(value, name, set()):
        changes = issubclass(type(part), changing) or (is_users_object(part) and not isinstance(part, Enum))
        empty = isinstance(part, np.ndarray) and not part.size
        if changes and not empty and known.place_of(part) is None:
            yield path, part


def _begin(value: Any) -> int:
    return value.ctypes.data if isinstance(value, np.ndarray) else 0


def _memory(value: Any) -> Any:
    """Return the array that has the memory of one; any other value itself."""
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return value
