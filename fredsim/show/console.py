"""Consoles and tables of Rich, in which nothing in a text of someone else is obeyed: fredsim.show.terminal for tables.

Such a text, say the name of a folder, may have control characters or Rich's markup. Both are shown as they are.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fredsim.errors import visible

__all__ = ["PlainConsole", "print_table", "status_text"]

#: The colours of how runs end; what is not here is red.
STATUS_STYLES = {"finished": "green", "finished, at chance level": "yellow", "interrupted": "yellow"}


class PlainConsole(Console):
    """A console of Rich without markup, names of emoji, and control characters in texts."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a text as it is shown: in a cell, a title or a line."""
        return super().render_str(visible(text), **how | {"markup": False, "emoji": False})


def print_table(table: Table) -> None:
    """Print a table; if the output is no terminal, it is 160 characters wide."""
    console = PlainConsole()
    (console if console.is_terminal else PlainConsole(width=160)).print(table)


def status_text(status: str) -> Text:
    """Return how a run ended, in its colour."""
    return Text(visible(status), style=STATUS_STYLES.get(status, "red"))
