"""Lines that would hide one another, because their values are the same: they are drawn once, and counted."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

__all__ = ["coinciding", "merged_name"]

MOST_NAMED = 3  # the most lines that coincide whose names are all given
LONG = 60  # the most letters of these names


def coinciding(shapes: Mapping[str, Hashable]) -> dict[str, list[str]]:
    """Return the labels of lines that are drawn, each with those that coincide with it, itself first."""
    first: dict[Hashable, str] = {}
    found: dict[str, list[str]] = {}
    for label, shape in shapes.items():
        found.setdefault(first.setdefault(shape, label), []).append(label)
    return found


def merged_name(names: Sequence[str]) -> str:
    """Return what the legend calls lines that coincide: all of their names if they are few, else how many."""
    if len(names) == 1:
        return names[0]
    if len(names) == 2 and len(" and ".join(names)) <= LONG:
        return f"{names[0]} and {names[1]} (2 lines coincide)"
    text = "; ".join(names)
    if len(names) <= MOST_NAMED and len(text) <= LONG:
        return f"{len(names)} lines coincide: {text}"
    shown = f"{names[0]}; {names[1]}; …" if len(names[0]) + len(names[1]) < LONG else f"{names[0]}; …"
    return f"{len(names)} lines coincide: {shown}"
