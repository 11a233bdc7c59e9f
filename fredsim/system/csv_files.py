"""Reads the CSV files of results; a damaged file raises an error that names the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from fredsim.errors import OutputError, shown
from fredsim.system.files import read_bytes
from fredsim.system.memory import machine_memory
from fredsim.system.repeated import first_repeated

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COUNT",
    "DIGEST",
    "FINITE",
    "LARGEST_INTEGER",
    "NUMBER",
    "OPTIONAL",
    "TEXT",
    "CellCheck",
    "read_cells",
    "read_lines",
    "read_table",
]

MISSING = ["", "nan"]  # what is no value; other words of pandas', such as None and NA, are texts
CELLS_TAKE = 16  # how many bytes of memory a byte of a table takes while it is read, about

CellCheck = Callable[[str], object]  # returns a true value for the cells that a column may have


#: Integers that are written are below this: they have less than 64 bits.
LARGEST_INTEGER = 10**18
#: A number that is finite, as Python and NumPy write it, such an integer among them.
FINITE_NUMBER = r"-?[0-9]{1,18}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,3})?"

COUNT: CellCheck = re.compile(r"[0-9]{1,18}").fullmatch
DIGEST: CellCheck = re.compile(r"[0-9a-f]{64}").fullmatch
FINITE: CellCheck = re.compile(FINITE_NUMBER).fullmatch
NUMBER: CellCheck = re.compile(rf"{FINITE_NUMBER}|nan|-?inf").fullmatch
OPTIONAL: CellCheck = re.compile(rf"(?:{FINITE_NUMBER}|nan|-?inf)?").fullmatch
TEXT: CellCheck = bool


def read_table(
    path: Path, columns: Mapping[str, CellCheck], increasing: Sequence[str] = (), others: CellCheck | None = None
) -> pd.DataFrame:
    """Return the rows of a CSV file, which must have `columns`, each with its check of every cell.

    It may have other columns, of which `others` is the check. From row to row no number in the columns `increasing` may
    fall, and at least one of them must grow. Raises OutputError if the file cannot be read, or does not satisfy this.
    """
    import pandas as pd

    with _read_errors(path):
        text = _text(path)
        for wrong in _faults(_lines(text), text.endswith("\n"), columns, increasing, others):
            raise OutputError(f"{path}: is damaged ({wrong}); run the experiment again")
        return pd.read_csv(StringIO(text), keep_default_na=False, na_values=MISSING)


def read_cells(path: Path) -> list[dict[str, str]]:
    """Return a CSV file's rows as unchecked text, by column. Raises OutputError if it cannot be read."""
    with _read_errors(path):
        (_, header), *rows = _lines(_text(path)) or [(0, [])]
        return [dict(zip(header, row, strict=False)) for _, row in rows]


def read_lines(path: Path) -> list[str]:
    """Return a file's lines without their line feeds, and what follows the last of these. Raises OutputError."""
    with _read_errors(path):
        return _text(path).split("\n")


def _text(path: Path) -> str:
    return read_bytes(path, most=machine_memory() // CELLS_TAKE).decode()


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV text, the header first, each with the number of its last line."""
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    return [(reader.line_num, line) for line in reader]


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn any error that reading a file raises into an OutputError with a remedy."""
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"{path}: cannot be read ({reason}); run the experiment again") from None


def _faults(
    lines: list[tuple[int, list[str]]],
    whole: bool,
    columns: Mapping[str, CellCheck],
    increasing: Sequence[str],
    others: CellCheck | None,
) -> Iterator[str]:
    """Yield what is wrong with a table; `whole` is whether its text ends in a line feed."""
    if not lines:
        return  # pandas raises an error about an empty file
    (_, header), *rows = lines
    for column in columns:
        if column not in header:
            yield f"it has no column '{column}'"
    if (twice := first_repeated(header)) is not None:
        yield f"it has several columns {twice!r}"
    if others is not None:
        columns = dict.fromkeys(header, others) | dict(columns)
    if not whole:
        yield f"line {lines[-1][0]} is cut off"
    before = [-1.0] * len(increasing)
    for number, row in rows:
        if len(row) != len(header):
            yield f"line {number} has {len(row)} values, the header {len(header)}"
        cells = dict(zip(header, row, strict=True))
        for column, fits in columns.items():
            if not fits(cells[column]):
                yield f"line {number}: {column} is {shown(cells[column])}"
        now = [float(cells[column]) for column in increasing]
        falls = [column for column, value, last in zip(increasing, now, before, strict=True) if value < last]
        if falls or (increasing and now == before):
            column = (falls or increasing)[0]
            last = before[increasing.index(column)]
            yield f"line {number}: {column} is {cells[column]} after {last:.17g}"
        before = now
