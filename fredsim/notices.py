"""What takes a while and happens deep below: who shows it sets what is called here."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["compiling"]


def nothing() -> None:
    """Do nothing."""


#: Called before a kernel is compiled, which happens once on a machine.
compiling: Callable[[], None] = nothing
