"""Any order of clients, from a list or a column of a CSV file, repeated from its start when it ends."""

from __future__ import annotations

import csv
import re
from io import TextIOWrapper
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator

from fredsim.dispatchers.base import Dispatcher, all_held_error
from fredsim.errors import ConfigError, SimulationError, shown
from fredsim.hyper import HyperParameters, Printable
from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Streams
from fredsim.system.files import irregular_kind, open_whole
from fredsim.system.given import separator_remedy, why_unread

__all__ = ["Scripted"]

LONGEST = 500_000  # the most entries of an order, which becomes part of the run's experiment


class Column(HyperParameters):
    """A column of a CSV file with a header line; the path is relative to the current folder."""

    csv: Printable
    """The CSV file; its path is relative to the current folder."""
    column: Printable = "client"
    """The column that has client ids."""


class Scripted(Dispatcher):
    """Follows the given order; an entry whose client is held is skipped."""

    idea = "any order, from a list or a CSV column"
    state_names = ("_next",)

    class Hyper(HyperParameters):
        """`order`: client ids, or {csv: PATH, column: NAME}."""

        order: Annotated[
            Annotated[list[int], Field(min_length=1, max_length=LONGEST)] | Column,
            Field(examples=[{"csv": "order.csv", "column": "client"}]),
        ]
        """Client ids in the order of arrival, repeated, or a column of a CSV file."""

        @field_validator("order")
        @classmethod
        def read(cls, order: list[int] | Column) -> list[int]:
            """Replace a column by its ids, so that the experiment itself has them and depends on no file."""
            return read_column(order) if isinstance(order, Column) else order

    def expect(self, clients: int) -> None:
        """Raise ConfigError for an id outside 0 … clients − 1."""
        outside = [c for c in self.hyper.order if not 0 <= c < clients]
        if outside:
            ids = f"ids lie in 0 … {clients - 1} (clients.count)"
            raise ConfigError(f"dispatcher.order names client {outside[0]}; {ids}")

    def init(self, clients: int, streams: Streams) -> None:
        """Start over with the first entry."""
        self._order: list[int] = self.hyper.order
        self._clients = clients
        self._held: set[int] = set()
        self._next = 0

    def choose(self, step: int) -> int:
        """Return the next entry whose client is not held."""
        for _ in range(len(self._order)):
            client = self._order[self._next]
            self._next = (self._next + 1) % len(self._order)
            if client not in self._held:
                return client
        if (named := len(set(self._order))) == self._clients:
            raise all_held_error(step)
        what = f"dispatcher.order names {named} of the {self._clients} clients, and these wait"
        why = "the server holds them, or clients.fraction has drawn others"
        raise SimulationError(f"iteration {step}: {what}: {why}; name all clients")

    def order(self, begin: int, count: int) -> Integers:
        """Return these entries of the given order, repeated."""
        return np.array(self._order, np.int64)[np.arange(begin, begin + count) % len(self._order)]

    def hold(self, client: int) -> None:
        """Exclude the client from the choice."""
        self._held.add(client)

    def release(self, client: int) -> None:
        """Make the client eligible again."""
        self._held.discard(client)


def read_column(source: Column) -> list[int]:
    """Return a CSV column as integers. Raises ConfigError naming the file and the line."""
    order: list[int] = []
    try:
        if found := irregular_kind(source.csv):
            raise ConfigError(f"cannot read {source.csv}: it is {found}; name a CSV file")
        with (
            open_whole(source.csv, follow=True) as content,
            TextIOWrapper(content, newline="", encoding="utf-8-sig") as file,  # spreadsheets write a byte order mark
        ):
            reader = csv.reader(file)
            known = next(reader, [])
            if source.column not in known:
                columns = shown(", ".join(known))[1:-1] or "none"
                missing = f"{source.csv} has no column '{source.column}' (columns: {columns})"
                remedy = f"; give the name of one: {{csv: {source.csv}, column: NAME}}"
                raise ConfigError(f"{missing}{separator_remedy(known) or remedy}")
            if known.count(source.column) > 1:
                many = f"{known.count(source.column)} columns '{source.column}'"
                raise ConfigError(f"{source.csv} has {many}; keep one of them")
            place = known.index(source.column)
            for row in filter(None, reader):
                if len(order) == LONGEST:
                    raise ConfigError(f"{source.csv} has more than {LONGEST:,} rows; leave some out")
                cell = row[place] if place < len(row) else None
                order.append(_client(cell, f"{source.csv}:{reader.line_num}: {source.column}"))
    except OSError as error:
        raise ConfigError(f"cannot read {source.csv}: {why_unread(source.csv, error)}; name a CSV file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{source.csv} is not a CSV file in UTF-8 ({error}); save it as one") from None
    if not order:
        raise ConfigError(f"{source.csv}: column '{source.column}' is empty; name clients")
    return order


def _client(text: str | None, where: str) -> int:
    """Return the client id in a cell, which is None if its row is too short. Raises ConfigError if there is none."""
    if text is None or not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):  # `int` takes 1_0 and other digits, too
        raise ConfigError(f"{where} is {shown(text)}; it must be a client id, an integer")
    return int(text)
