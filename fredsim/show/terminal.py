"""Writes to the terminal: the one place that does, so that nothing in a text of someone else is obeyed there.

Such a text, say the name of a folder, may have control characters or Rich's markup. Both are shown as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from fredsim.errors import visible

__all__ = ["Group", "PlainConsole", "print_table", "say", "say_lines"]


def say(text: object, *, err: bool = False) -> None:
    """Print one line to stdout, or to stderr; a line feed within it is shown as an escape."""
    typer.echo(visible(str(text)), err=err)


def say_lines(text: str) -> None:
    """Print a text of several lines, such as YAML, to stdout."""
    for line in text.removesuffix("\n").split("\n"):
        say(line)


class PlainConsole(Console):
    """A console of Rich without markup, names of emoji, and control characters in texts."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a text as it is shown: in a cell, a title or a line."""
        return super().render_str(visible(text), **how | {"markup": False, "emoji": False})


def print_table(table: Table) -> None:
    """Print a table; if the output is no terminal, it is 160 characters wide."""
    console = PlainConsole()
    (console if console.is_terminal else PlainConsole(width=160)).print(table)


class Group(TyperGroup):
    """The commands; what they say about wrong arguments has no control characters, either."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Read the arguments before the command."""
        with _visible_errors():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's arguments, and run it."""
        with _visible_errors():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):  # Click's own errors have one
            error.message = visible(message)  # type: ignore[attr-defined]
        raise
