"""Reading a CSV file of results: what is damaged is said with its line, and never taken for a result."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from fredsim.errors import OutputError
from fredsim.system.files import irregular

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COUNT", "DIGEST", "NUMBER", "PERHAPS", "TEXT", "Cell", "read_cells", "read_table"]

Cell = Callable[[str], object]  # what a column's cells are: true of those that may stand there


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


COUNT: Cell = re.compile(r"\d+").fullmatch
DIGEST: Cell = re.compile(r"[0-9a-f]{64}").fullmatch
NUMBER: Cell = _is_number
PERHAPS: Cell = lambda cell: not cell or _is_number(cell)  # noqa: E731  a name beside its likes
TEXT: Cell = bool


def read_table(path: Path, columns: Mapping[str, Cell], rising: str = "") -> pd.DataFrame:
    """Return a CSV file's rows.

    `columns` must be there, with such cells; there may be others. The numbers of column `rising` rise from row to row.
    Raises OutputError where the file cannot be read, or something in it is not so.
    """
    import pandas as pd

    with _damage(path):
        text = path.read_bytes().decode()
        for wrong in _wrong(_lines(text), text.endswith("\n"), columns, rising):
            raise OutputError(f"{path}: is damaged ({wrong}); run the experiment again")
        return pd.read_csv(StringIO(text))


def read_cells(path: Path) -> list[dict[str, str]]:
    """Return a CSV file's rows as text, by column, unchecked. Raises OutputError where it cannot be read."""
    with _damage(path):
        (_, header), *rows = _lines(path.read_bytes().decode()) or [(0, [])]
        return [dict(zip(header, row, strict=False)) for _, row in rows]


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV text, the header first, each with the number of its last line."""
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    return [(reader.line_num, line) for line in reader]


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Make one OutputError, with the remedy, of what is wrong with a file that is read."""
    if kind := irregular(path):
        raise OutputError(f"{path}: is {kind}; run the experiment again")
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"{path}: cannot be read ({reason}); run the experiment again") from None


def _wrong(lines: list[tuple[int, list[str]]], whole: bool, columns: Mapping[str, Cell], rising: str) -> Iterator[str]:
    """Yield what is wrong with a table."""
    if not lines:
        return  # pandas says so
    (_, header), *rows = lines
    for column in columns:
        if column not in header:
            yield f"it has no column '{column}'"
    if not whole:
        yield f"line {lines[-1][0]} is cut off"
    before = -1.0
    for number, row in rows:
        if len(row) != len(header):
            yield f"line {number} has {len(row)} values, the header {len(header)}"
        cells = dict(zip(header, row, strict=True))
        for column, fits in columns.items():
            if not fits(cells[column]):
                yield f"line {number}: {column} is {cells[column]!r}"
        if rising:
            if float(cells[rising]) <= before:
                yield f"line {number}: {rising} is {cells[rising]} after {before:.0f}"
            before = float(cells[rising])
