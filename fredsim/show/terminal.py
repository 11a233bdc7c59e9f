"""Writes lines to the terminal, so that nothing in a text of someone else is obeyed there (tables: show.console).

Such a text, say the name of a folder, may have control characters. They are shown as they are. Rich is only imported
for a terminal, since it takes as long as the rest of a command such as `fredsim list`.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from fredsim.errors import visible

if TYPE_CHECKING:
    from fredsim.show.console import PlainConsole

__all__ = ["INTERRUPTED", "NOT_READ", "Group", "print_error", "say", "say_lines", "say_message", "say_wrapped"]

#: The exit codes after an interrupt and after SIGPIPE, by the shells' convention; 1 would say that runs differ.
INTERRUPTED, NOT_READ = 130, 141
#: Variables by which a user tells Rich that a stream is a terminal.
TOLD = ("FORCE_COLOR", "TTY_COMPATIBLE")


def say(text: object, *, err: bool = False) -> None:
    """Print one line to stdout, or to stderr; a line feed within it is shown as an escape."""
    typer.echo(visible(str(text)), err=err)


def say_lines(text: str) -> None:
    """Print a text of several lines, such as YAML, to stdout."""
    for line in text.removesuffix("\n").split("\n"):
        say(line)


def say_wrapped(text: str) -> None:
    """Print a text of several lines, such as a list; on a terminal, wrap long lines between words."""
    console = _terminal()
    for line in text.removesuffix("\n").split("\n"):
        for part in _wrapped(visible(line), console.width) if console else [line]:
            say(part)


def say_message(kind: str, text: str) -> None:
    """Print a message to stderr, after its kind, `error` or `note`; on a terminal in colour, wrapped between words."""
    console = _terminal(err=True)
    if console is None:
        say(f"{kind}: {text}", err=True)
        return
    from rich.text import Text

    message = "\n".join(_wrapped(f"{kind}: {visible(text)}", console.width, indent=len(kind) + 2))
    shown = Text(message)
    shown.stylize("bold red" if kind == "error" else "yellow", 0, len(kind) + 1)
    console.print(shown, highlight=False, soft_wrap=True)


def print_error(*lines: object) -> None:
    """Print the lines of an error message to stderr, each with `error: ` before it."""
    for line in lines:
        say_message("error", str(line))


def _terminal(*, err: bool = False) -> PlainConsole | None:
    """Return Rich's console of stdout or stderr if that is a terminal; Rich is only imported where it may be one."""
    stream = sys.stderr if err else sys.stdout
    if stream is None or not (stream.isatty() or any(name in os.environ for name in TOLD)):
        return None
    from fredsim.show.console import PlainConsole

    console = PlainConsole(stderr=err)
    return console if console.is_terminal else None


def _wrapped(line: str, width: int, indent: int | None = None) -> list[str]:
    """Return a line in parts of up to `width` letters; the later ones are indented, as far as its last column."""
    if len(line) <= width:
        return [line]
    if indent is None:
        columns = [found.end() for found in re.finditer("  +", line) if found.end() <= width // 2]
        indent = columns[-1] if columns else 4
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip


class Group(TyperGroup):
    """The commands; what they say about wrong arguments has no control characters, either."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Read the arguments before the command."""
        with _visible_errors():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's arguments, and run it."""
        with _visible_errors():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        # Whoever reads the output has read enough; Typer would end with 1, and so does Rich, which prints the help.
        if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
            raise SystemExit(NOT_READ) from None
        raise
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):  # Click's own errors have one
            error.message = visible(message)  # type: ignore[attr-defined]
        raise
