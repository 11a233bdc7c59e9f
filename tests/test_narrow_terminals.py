"""Tables in terminals that are narrower than they are."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.table import Table as RichTable

from fredsim.show.console import PlainConsole, fitted, print_table
from fredsim.show.tables import Table

ROWS = [
    {
        "run": name, "status": "finished", "iterations": 2480, "sim. seconds": 200.0, "valid. error": 0.064,
        "test error": 0.1033, "iter./s": 2119, "digest": "8941d17395bf",
    }
    for name in ("ASGD, λ = 64, α = 0.003", "server=sync-lr0.4-with-a-long-name")
]  # fmt: skip


def drawn(table: RichTable, width: int) -> list[str]:
    """Return the lines of a table in a console of this width."""
    console = PlainConsole(file=StringIO(), width=width, color_system=None)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [68, 72, 80, 100, 160])
def test_words_and_numbers_stay_whole(width: int) -> None:
    """What is shown fits into the terminal; names of columns, statuses and numbers are not broken within."""
    shown, left_out = fitted(Table(ROWS).printed(), width)
    lines = drawn(shown, width)
    assert max(map(len, lines)) <= width
    kept = [name for name in ROWS[0] if name not in left_out]
    assert [str(column.header) for column in shown.columns] == kept
    for name in kept:
        assert name in lines[0]
    for whole in ("finished", "2,480", "0.0640") + (("8941d17395bf",) if "digest" in kept else ()):
        assert sum(whole in line for line in lines) == len(ROWS)
    name = "".join(line[: shown.columns[0].width] for line in lines[1:])
    assert "".join(name.split()).endswith("server=sync-lr0.4-with-a-long-name")


def test_what_is_needed_least_goes_first() -> None:
    """A column is left out only if folding the name of the run is not enough, and the rate goes before the digest."""
    table = Table(ROWS).printed()
    assert [fitted(table, width)[1] for width in (160, 116, 80, 70)] == [
        [], [], ["iter./s", "digest"], ["iter./s", "digest", "test error"],
    ]  # fmt: skip


def test_styles_and_titles_stay() -> None:
    """The best run stays bold, and the title above."""
    shown, left_out = fitted(Table(ROWS, title="best lr").printed(best={1}), 60)
    assert left_out
    assert shown.title == "best lr"
    assert [row.style for row in shown.rows] == [None, "bold"]


def test_a_terminal_too_narrow_breaks_lines_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where even folding is not enough, lines are longer than the terminal, and no letter is lost."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    print_table(Table(ROWS).printed())
    printed = capsys.readouterr().out
    for text in (
        "sim. seconds",
        "valid. error",
        "200.0000",
        "not shown, for want of width: iter./s, digest, test error",
    ):
        assert text in printed
