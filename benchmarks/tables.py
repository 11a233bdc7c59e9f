"""The tables of benchmarks, on the terminal and as Markdown, with what a reader needs to judge them."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec

import rich.table
from rich.console import Console

from benchmarks.rounds import MAX_RATIO
from fredsim.system.limits import default_threads
from fredsim.system.machine import processor_name

__all__ = ["Table", "heading", "markdown", "say", "show"]

CONSOLE = Console(width=160, highlight=False, markup=False, soft_wrap=True)  # tables are never cut
PACKAGES = ("fredsim", "torch", "jax", "numpy", "numba")


@dataclass(frozen=True)
class Table:
    """A table; the first column is text, the others are numbers."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def say(line: str) -> None:
    """Print a line of progress."""
    CONSOLE.print(line)


def show(table: Table) -> None:
    """Print a table."""
    drawn = rich.table.Table(box=None, pad_edge=False)
    for place, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*row)
    CONSOLE.print("", table.title, table.note, sep="\n")
    CONSOLE.print(drawn)


def markdown(head: Sequence[str], tables: Sequence[Table]) -> str:
    """Return the heading and the tables as Markdown."""
    parts = list(head)
    for table in tables:
        rows = [table.columns, ("---", *["---:"] * (len(table.columns) - 1)), *table.rows]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        parts += [f"## {table.title}", table.note, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def heading(threads: int, peer_threads: int) -> Iterator[str]:
    """Yield paragraphs that say how the tables were made: the machine, the versions, the date."""
    yield (
        "784-200-10 on MNIST. All sides have the same initial parameters and the same order of clients and "
        "minibatches. *: disturbed, to be run again: the slowest round of one side took more than "
        f"{MAX_RATIO} times as long as its fastest."
    )
    peers = f"; of its peers: {peer_threads}" if peer_threads != threads else ", and of its peers"
    cores = f"{default_threads()} cores used, {platform.system()}"
    yield f"{processor_name()}, {cores}; threads of fredsim: {threads}{peers}."
    versions = (f"{package} {version(package)}" for package in PACKAGES if find_spec(package))
    yield f"Python {platform.python_version()}, {', '.join(versions)}; {datetime.now(UTC):%Y-%m-%d}."
