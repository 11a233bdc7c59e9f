"""Consoles and tables of Rich, in which nothing in a text of someone else is obeyed: fredsim.show.terminal for tables.

Such a text, say the name of a folder, may have control characters or Rich's markup. Both are shown as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.status import Status
from rich.table import Column, Table
from rich.text import Text

from fredsim.errors import visible

__all__ = ["PlainConsole", "fitted", "print_table", "status_text"]

#: The columns that a table can do without where the terminal is narrow; the first goes first.
LESS_NEEDED = ("iter./s", "when", "fetched", "pushed", "live", "digest", "test error", "rows", "path", "candidates")
#: To how many letters the first column, which names its row, may be folded.
FOLDED_NAME = 16
GAP = 2  # between two columns

#: The colours of how runs end; what is not here is red.
STATUS_STYLES = {"finished": "green", "finished, at chance level": "yellow", "interrupted": "yellow"}


class PlainConsole(Console):
    """A console of Rich without markup, names of emoji, and control characters in texts."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a text as it is shown: in a cell, a title or a line."""
        return super().render_str(visible(text), **how | {"markup": False, "emoji": False})

    def status(self, status: RenderableType, **how: Any) -> Status:
        """Return a line that says what is being done, beside a spinner."""
        return PlainStatus(_plain(status), console=self, **how)


class PlainStatus(Status):
    """A line of Rich that says what is being done, without markup and control characters: no console renders it."""

    def update(self, status: RenderableType | None = None, **how: Any) -> None:
        """Change what it says."""
        super().update(None if status is None else _plain(status), **how)


def _plain(text: RenderableType) -> RenderableType:
    return Text(visible(text)) if isinstance(text, str) else text


def print_table(table: Table) -> None:
    """Print a table, in a narrow terminal without its less needed columns, which the line below it names.

    If the output is no terminal, it is 160 characters wide, or as wide as the table needs.
    """
    console = PlainConsole()
    if not console.is_terminal:
        console = PlainConsole(width=160)
    shown, left_out = fitted(table, console.width)
    if (needed := _width([column.width or 0 for column in shown.columns])) > console.width:
        console = PlainConsole(width=needed)  # the terminal breaks its lines, and no letter is lost
    console.print(shown)
    if left_out:
        console.print(f"not shown, for want of width: {', '.join(left_out)}", highlight=False, soft_wrap=True)


def fitted(table: Table, width: int) -> tuple[Table, list[str]]:
    """Return a table with columns as wide as they need, up to a total width, and the names of those left out for it.

    Columns that may be broken are broken between words first, and only then are columns left out.
    """
    columns, left_out = list(table.columns), list[str]()
    for name in LESS_NEEDED:
        if _width(_least(columns)) <= width:
            break
        if kept := [column for column in columns if str(column.header) != name]:
            left_out += [name] * (len(kept) < len(columns))
            columns = kept
    shown = Table(box=None, header_style="bold", pad_edge=False, title=table.title, title_justify=table.title_justify)
    for column, wide in zip(columns, _widths(columns, width), strict=True):
        shown.add_column(column.header, justify=column.justify, overflow="fold", no_wrap=column.no_wrap, width=wide)
    for cells, row in zip(zip(*(column.cells for column in columns), strict=True), table.rows, strict=True):
        shown.add_row(*cells, style=row.style)
    return shown, left_out


def _texts(column: Column) -> list[str]:
    """Return what stands in a column, as it is shown."""
    return [visible(str(cell)) for cell in (column.header, *column.cells)]


def _least(columns: Sequence[Column]) -> list[int]:
    """Return the widths to which columns may be folded: to the longest word, and a run's name within a word."""
    least = []
    for number, column in enumerate(columns):
        parts = _texts(column) if column.no_wrap else [word for text in _texts(column) for word in text.split()]
        longest = max(map(cell_len, parts), default=1)
        is_name = number == 0 or str(column.header) == "run"
        least.append(min(longest, FOLDED_NAME) if is_name and not column.no_wrap else longest)
    return least


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return the widths of columns: what they need, less what has to be folded, the widest first."""
    least = _least(columns)
    widths = [max(map(cell_len, _texts(column))) for column in columns]
    while _width(widths) > width and (free := [n for n, wide in enumerate(widths) if wide > least[n]]):
        widths[max(free, key=lambda n: widths[n])] -= 1
    return widths


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def status_text(status: str) -> Text:
    """Return how a run ended, in its colour."""
    return Text(visible(status), style=STATUS_STYLES.get(status, "red"))
