"""What a terminal shows: statuses in colour, the best run in bold, long lines broken between words."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fredsim.show.catalogue.names import list_text

Command = Callable[..., tuple[int, str, str]]
CODES = r"\x1b\[([\d;]*)m"
GREEN, YELLOW, RED = "32", "33", "31"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Rich take every stream for a terminal of 60 columns, or one that is told to."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "FORCE_COLOR": "1", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)


@dataclass
class Row:
    """A run's row of the table: its text, and the codes of the styles of its cells."""

    text: str
    styles: list[set[str]]

    @property
    def error(self) -> float:
        """The validation error."""
        return float(re.findall(r" (0\.\d{4}) ", self.text)[0])


@pytest.fixture
def rows(small_yaml: Path, command: Command) -> Callable[[], list[Row]]:
    """Do four runs, of which the first learns nothing and the last diverges; return the rows of their table."""

    def call() -> list[Row]:
        sweep = "sweep={server.lr: [1.0e-9, 0.1, 0.2, 1.0e+30]}"
        code, output, messages = command("run", small_yaml, sweep, "backend=numpy", "--out", "here")
        assert code == 0
        assert messages.endswith("\x1b[1A\x1b[2K") == ("\x1b[2K" in messages)  # a live table is taken away at last
        lines = output.splitlines()[1:5]
        return [
            Row(re.sub(CODES, "", line), [set(codes.split(";")) for codes in re.findall(CODES, line)]) for line in lines
        ]

    return call


def test_statuses_have_colours_and_the_best_run_is_bold(terminal: None, rows: Callable[[], list[Row]]) -> None:
    del terminal
    found = rows()
    shown = [[code for code in (GREEN, YELLOW, RED) if any(code in one for one in row.styles)] for row in found]
    assert shown == [[YELLOW], [GREEN], [GREEN], [RED]]
    assert ["at chance level" in row.text for row in found] == [True, False, False, False]
    bold = [row for row in found if any("1" in one for one in row.styles)]
    assert bold == [min(found[1:3], key=lambda row: row.error)]


def test_nothing_but_a_terminal_gets_colours(
    terminal: None, rows: Callable[[], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del terminal
    monkeypatch.delenv("FORCE_COLOR")
    found = rows()
    assert [row.styles for row in found] == [[]] * 4
    assert ["at chance level" in row.text for row in found] == [True, False, False, False]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert {GREEN, YELLOW, RED} & set().union(*(one for row in rows() for one in row.styles)) == set()


@pytest.mark.usefixtures("terminal")
def test_lines_are_broken_between_words(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, output, _ = command("list", "servers")
    lines = output.splitlines()
    assert (code, max(map(len, lines)) <= 60) == (0, True)
    assert output.split() == list_text("servers").split()
    assert all(line[:20].strip() == "" or line[0] != " " for line in lines)  # later lines are below the text
    code, output, messages = command("run", "no/such/file/that/anybody/would/have/written/down/here.yaml")
    plain = re.sub(r"\x1b\[[\d;]*m", "", messages)
    assert (code, output) == (2, "")
    assert messages.startswith("\x1b[1;31merror:\x1b[0m")
    assert plain.splitlines()[1].startswith(" " * 7)
    assert "no/such/file/that/anybody/would/have/written/down/here.yaml: no such file" in " ".join(plain.split())


def test_an_error_of_many_runs_is_said_once(small_yaml: Path, command: Command, own_server: Callable[..., str]) -> None:
    lines = "if client_id >= 0:\n    raise ValueError('the moon is full')\n"
    small_yaml.with_name("moons.py").write_text(own_server(lines), encoding="utf-8")
    words = (
        "server={name: 'moons:Plain', lr: 0.1}",
        "dispatcher={name: round_robin}",
        "sweep={seed: [0, 1, 2, 3, 4, 5]}",
    )
    code, _, messages = command("run", small_yaml, *words, "--quiet", "--out", "here")
    (line,) = messages.splitlines()
    assert code == 2
    assert line.startswith("error: seed=0-")
    assert "the moon is full" in line
    assert re.search(r"\(and so did seed=1-\w+, seed=2-\w+, seed=3-\w+ and 2 more\)$", line)
