"""Follows the manual's pages as a reader would: saves the files that they show, and runs their commands."""

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from docs.generate.links import ROOT
from fredsim.config.document import dump_yaml
from fredsim.config.yaml.plain_yaml import parse_yaml

Command = Callable[..., tuple[int, str, str]]

#: The experiment that a part of an experiment on a page is added to.
BASE: dict[str, Any] = {
    "iterations": 20,
    "data": {"name": "digits"},
    "model": {"hidden": []},
    "clients": {"count": 2, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.1},
}
FILES = {"yaml": r"`([\w.-]+\.yaml)`", "python": r"`([\w.-]+\.py)`", "csv": r"`([\w.-]+\.csv)`"}


@dataclass(frozen=True)
class Item:
    """A command with what it prints, or a block of another language, which may be saved as `file`."""

    page: str
    line: int
    language: str
    text: str
    prints: tuple[str, ...] = ()
    file: str | None = None


def pages() -> list[str]:
    """Return the pages that are written by hand; those of the reference are generated, except that about Python."""
    return [
        "README.md",
        *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
        "docs/reference/python.md",
    ]


@cache
def items(page: str) -> tuple[Item, ...]:
    """Return the items of a page, in order."""
    return tuple(_items(page))


def _items(page: str) -> Iterator[Item]:
    before = ""
    for token in MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type == "inline":
            before = token.content
        if token.type not in {"fence", "code_block"} or token.info.startswith("{"):  # Sphinx runs its directives
            continue
        assert token.map is not None
        line = token.map[0] + 1
        if token.info == "console":
            yield from _commands(page, line, token.content)
        else:
            names = re.findall(FILES.get(token.info, "$^"), before)
            yield Item(page, line, token.info, token.content, file=names[-1] if names else None)
        before = ""


def _commands(page: str, line: int, text: str) -> Iterator[Item]:
    text = text.replace("\\\n", "")
    assert text.startswith("$ "), (page, line)
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        typed, *prints = part.rstrip("\n").split("\n")
        yield Item(page, line, "console", typed, tuple(prints))


def spans(page: str) -> set[str]:
    """Return the commands of fredsim within a page's sentences and tables."""
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
    inner = [one for token in tokens for one in token.children or () if one.type == "code_inline"]
    return {one.content for one in inner if one.content.startswith("fredsim ")}


@dataclass
class Reader:
    """A reader who does what a page says in the current folder. `command` calls `fredsim` in this process."""

    command: Command
    changes: dict[str, str] = field(default_factory=dict)  # arguments added to a command to make it faster
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})  # for the Python code
    printed: str = ""  # the output of its last Python block
    code: int = 0  # the exit code of the last command, which must be 0 unless the page shows `echo $?`
    failed: str = ""  # the last command and its messages
    experiments: list[str] = field(default_factory=list)  # the files of complete experiments
    used: str = ""  # all code and commands that ran

    def do(self, item: Item) -> None:
        """Do one item. Raises AssertionError if it does not work, or prints something else."""
        where = f"{item.page}:{item.line}"
        if item.language == "text":
            _compare(where, item.text.rstrip("\n").split("\n"), self.printed)
        elif item.language == "yaml":
            self._save_experiment(item)
        elif item.file is not None:
            with Path(item.file).open("a", encoding="utf-8") as file:  # a second block for a file is appended
                file.write(item.text)
            sys.modules.pop(Path(item.file).stem, None)  # a reader's commands are separate processes
            importlib.invalidate_caches()
        elif item.language == "python":
            self.used += item.text
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(item.text, where, "exec"), self.names)
            self.printed = output.getvalue()
        else:
            assert item.language == "console", f"{where}: a block of the language '{item.language}'"
            self._type(item, where)

    def _shorter(self, typed: str) -> list[str]:
        return [word for part, words in self.changes.items() if part in typed for word in words.split()]

    def end(self) -> None:
        """Raise AssertionError if the last command failed, and the page does not say so."""
        assert self.code == 0, self.failed

    def _save_experiment(self, item: Item) -> None:
        """Save a complete experiment under its name; complete a part of one by BASE, and run it."""
        found = parse_yaml(item.text, item.page)
        whole = {"clients", "server"} <= found.keys()
        path = Path(item.file or "shown.yaml")
        path.write_text(item.text if whole else dump_yaml(BASE | found), encoding="utf-8")
        self.experiments += [str(path)] if whole else []
        words = ["show", path] if whole else ["run", path, "--quiet"]
        code, _, messages = self.command(*words)
        assert code == 0, (item.page, item.line, messages)

    def _type(self, item: Item, where: str) -> None:
        self.used += item.text
        if item.text == "echo $?":
            assert item.prints == (str(self.code),), where
            self.code = 0
            return
        self.end()
        if item.text.startswith("cd "):
            os.chdir(item.text[3:])
            return
        typed, _, file = item.text.partition(" > ")
        words = shlex.split(typed, comments=True)
        if words[0] == "fredsim":
            self.code, output, messages = self.command(*words[1:], *self._shorter(item.text))
        else:
            self.code, output, messages = _shell(typed)
        if file:
            Path(file).write_text(output, encoding="utf-8")
        self.failed = f"{where}: {item.text}: {messages}"
        _compare(f"{where}: {item.text}", item.prints, output + messages)


def _shell(typed: str) -> tuple[int, str, str]:
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": here, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(["bash", "-c", typed], env=environment, capture_output=True, text=True, timeout=400)
    return ran.returncode, ran.stdout, ran.stderr


def _compare(where: str, expected: list[str] | tuple[str, ...], output: str) -> None:
    """Check that these lines were printed, in order; … matches any text, and lines in between are ignored."""
    printed = iter(line.rstrip() for line in output.splitlines())
    for line in expected:
        pattern = re.escape(line.rstrip()).replace("…", ".*")
        assert any(re.fullmatch(pattern, one) for one in printed), f"{where} prints no '{line}' there:\n{output}"
