"""The state of a run between two events: one flat mapping of names to arrays, numbers and texts.

Whoever keeps something from event to event takes it out by `take_state` and goes on from it by `put_state`; a
simulation of the same experiment that is given the state goes on as the one that it was taken from, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["State", "Stateful", "joined", "part_of"]

State = dict[str, Any]


class Stateful(Protocol):
    """Whoever keeps something from event to event."""

    def take_state(self) -> State:
        """Return it, as copies."""
        ...

    def put_state(self, state: State) -> None:
        """Go on from it, just after the start."""
        ...


def joined(parts: Mapping[str, State]) -> State:
    """Return the states of several owners as one, each one's names behind its own and a dot."""
    return {f"{owner}.{name}": value for owner, state in parts.items() for name, value in state.items()}


def part_of(state: State, owner: str) -> State:
    """Return the part of one owner."""
    start = f"{owner}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
