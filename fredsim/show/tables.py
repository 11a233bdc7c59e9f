"""Tables: printed, or written beside a figure as CSV with all digits, and as Markdown and LaTeX with a few."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from fredsim.errors import visible
from fredsim.show.console import status_text
from fredsim.show.escaping import escape_cell, escape_latex, escape_markdown
from fredsim.system.files import write_atomic, write_errors

__all__ = ["PUBLISHED", "AllDigits", "Table", "as_given", "short", "write_files"]

WHOLE = 1000.0  # the size from which on a number is printed without decimals
PUBLISHED = "Published and here"  # title of the tables that compare with a paper


class AllDigits(float):
    """A number that an experiment gave, such as a learning rate: a table shows all of its digits."""


@dataclass(frozen=True)
class Table:
    """Rows of named values. A value is a text, an integer, a float, or None if there is none.

    `names`: by column what a figure calls its texts, for readers; programs have them as they are.
    """

    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def named(self) -> Table:
        """The table in the figure's words, for readers."""

        def called(name: str, value: Any) -> Any:
            return self.names.get(name, {}).get(value, value) if isinstance(value, str) else value

        return Table([{name: called(name, value) for name, value in row.items()} for row in self.rows], self.title)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    @property
    def text_columns(self) -> set[str]:
        """The names of the columns that have a text."""
        return {name for row in self.rows for name, value in row.items() if isinstance(value, str)}

    def printed(self, best: Collection[int] = ()) -> RichTable:
        """Return the table for a terminal, with the rows number `best` in bold, and statuses in colour."""
        table = RichTable(box=None, header_style="bold", pad_edge=False, title=self.title or None, title_justify="left")
        for number, name in enumerate(self.columns):
            text = name in self.text_columns
            table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=number > 1)
        for number, cells in enumerate(self._texts()):
            named = zip(self.columns, cells, strict=True)
            shown = (status_text(cell) if name == "status" else cell for name, cell in named)
            table.add_row(*shown, style="bold" if number in best else None)
        return table

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ["---"] * len(self.columns)]
        lines += self._texts()
        return "".join(f"| {' | '.join(map(escape_markdown, line))} |\n" for line in lines)

    def csv(self) -> str:
        """Return the table as CSV, with all digits, for spreadsheets among others."""
        rows: list[list[Any]] = [self.columns, *([row.get(name) for name in self.columns] for row in self.rows)]
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(escape_cell, row) for row in rows)
        return text.getvalue()

    def latex(self) -> str:
        """Return the table as a tabular of LaTeX, with the lines of the package booktabs."""
        sides = "".join("l" if name in self.text_columns else "r" for name in self.columns)
        rows = zip(self.rows, self._texts(), strict=True)
        lines = [
            [_set(row.get(name), text) for name, text in zip(self.columns, texts, strict=True)] for row, texts in rows
        ]
        parts = [f"\\begin{{tabular}}{{{sides}}}", "\\toprule"]
        parts += [" & ".join(map(escape_latex, self.columns)) + " \\\\", "\\midrule"]
        parts += [" & ".join(line) + " \\\\" for line in lines]
        return "\n".join([*parts, "\\bottomrule", "\\end{tabular}", ""])

    def _texts(self) -> list[list[str]]:
        """Return the cells of each row, as people read them."""
        columns = [_column([row.get(name) for row in self.rows]) for name in self.columns]
        return [[column[number] for column in columns] for number in range(len(self.rows))]


def write_files(
    figure: Path, tables: Sequence[Table], caption: str, command: str, *, latex: bool = False
) -> list[Path]:
    """Write the first table to FIGURE-table.csv, and all to FIGURE-table.md; return these paths.

    With `latex`, all are also written to FIGURE-table.tex. Raises OutputError if they cannot be written.
    """
    table, page, paper = (figure.with_name(f"{figure.stem}-table.{kind}") for kind in ("csv", "md", "tex"))
    parts = [f"```console\n$ {visible(command)}\n```\n", f"{escape_markdown(caption)}\n"]
    for one in tables:
        parts += [*([f"{one.title}:\n"] if one.title else []), one.named.markdown()]
    with write_errors(table, "choose another place for it"):
        write_atomic(table, tables[0].csv())
        write_atomic(page, "\n".join(parts))
        if latex:
            write_atomic(paper, _paper([one.named for one in tables], caption, command))
    return [table, page, *([paper] if latex else [])]


def _paper(tables: Sequence[Table], caption: str, command: str) -> str:
    """Return tables as LaTeX, with the command and the caption in comments above."""
    head = "".join(f"{_comment(line)}\n" for line in (f"$ {command}", caption, "It needs \\usepackage{booktabs}."))
    return "\n".join([head, *(f"{_comment(one.title)}\n{one.latex()}" if one.title else one.latex() for one in tables)])


def _comment(text: str) -> str:
    return f"% {visible(' '.join(text.split()))}"


def _set(value: Any, text: str) -> str:
    """Return a value's text as LaTeX: numbers with a sign or an exponent become mathematics."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        return escape_latex(text)
    number, _, power = text.replace("inf", "\\infty").replace(",", "{,}").partition("e")
    times = f" \\times 10^{{{int(power)}}}" if power else ""
    return f"${number}{times}$" if times or not number[:1].isdigit() else number.replace("{,}", ",")


def _column(values: Sequence[Any]) -> list[str]:
    """Return the values of a column with four decimals each, or with four digits if these tell more.

    That is where some of them would have no decimals, and where more of them can be told apart.
    """
    plain = [short(value) for value in values]
    sizes = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    if any(isinstance(value, AllDigits) for value in values):
        return plain
    four = [
        f"{value:.{3 - math.floor(math.log10(abs(value)))}f}"
        if isinstance(value, float) and 0.001 <= abs(value) < WHOLE
        else text
        for value, text in zip(values, plain, strict=True)
    ]
    mixed = any(size >= WHOLE for size in sizes) and not all(size >= WHOLE for size in sizes)
    return four if mixed or len({*four}) > len({*plain}) else plain


def as_given(value: float) -> str:
    """Return a number with all its digits, without the last ones that arithmetic added: 0.30000000000000004 is 0.3."""
    text = f"{value:.15g}"
    return text if abs(float(text) - value) <= 2 * math.ulp(value) else repr(value)


def short(value: Any) -> str:
    """Return a value as text with a few digits, or all if it was given; – for None."""
    if value is None:
        return "–"
    if isinstance(value, AllDigits):
        return as_given(value)
    if isinstance(value, float):
        if not 0.001 <= abs(value) < 1e15:
            return f"{value:.4g}"
        return f"{value:,.0f}" if abs(value) >= WHOLE else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
