"""Writes plain data as YAML, in block style, with the innermost lists and mappings on one line each.

`dump_plain` gives exactly what ruamel.yaml gives, in a fiftieth of the time and without importing it, or nothing: then
the data have something else in them, such as a text that must be quoted. fredsim.config.yaml.plain_yaml reads what it
writes.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fredsim.config.yaml.plain_yaml import CONSTANTS, NotPlainError

__all__ = ["dump_plain"]

WIDTH = 120  # where a line is broken, as ruamel.yaml does it: within an innermost list or mapping
LONGEST = 50  # the most letters of a key, or of what a line begins with
LONGEST_WORD = 66  # the most letters of a word within a list or a mapping, so that one of them fits on the line

KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
#: A text that needs no quotes and cannot be read as a number or a date, and what it may have in brackets.
TEXT = re.compile(r"(?:[A-Za-z_]|[0-9][0-9a-f]*[acdf][0-9a-f]*$)(?:[^\s:#]|:(?=\S)|(?<! )#| (?=[^\s#]))*")
IN_BRACKETS = re.compile(r"[^][{},]*")
HIGHEST = "\ud7ff"  # of the letters beyond it, some are escaped


def dump_plain(data: dict[str, Any]) -> str:
    """Return a mapping as YAML; it must not have the same list or mapping twice. Raises NotPlainError."""
    return "".join(f"{line}\n" for line in _lines(data, 0))


def _lines(value: Any, indent: int) -> list[str]:
    """Return the lines of a mapping, or of a list, whose keys or hyphens are indented by `indent`."""
    lines: list[str] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            start = f"{' ' * indent}{_key(key)}:"
            if _is_nested(inner):
                lines += [start, *_lines(inner, indent + 2 * isinstance(inner, dict))]
            else:
                lines += _on_one_line(start, inner, indent)
        return lines
    for inner in value:
        start = f"{' ' * indent}-"
        if _is_nested(inner):
            first, *rest = _lines(inner, indent + 2)
            lines += [f"{start} {first[indent + 2 :]}", *rest]
        else:
            lines += _on_one_line(start, inner, indent)
    return lines


def _is_nested(value: Any) -> bool:
    """Return whether a value is a list or a mapping that has one within it, so that it takes lines of its own."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(one, (dict, list)) for one in inner)


def _on_one_line(start: str, value: Any, indent: int) -> list[str]:
    """Return a line that begins with `start` and ends with a value, which goes on in more lines if it is too long."""
    if len(start) > LONGEST:
        raise NotPlainError
    if not isinstance(value, (dict, list)):
        line = f"{start} {_scalar(value)}"
        if len(line) > WIDTH:
            raise NotPlainError
        return [line]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    lines, line, before = list[str](), f"{start} {opening}", opening
    for word, after in _words(value):
        line += "" if before == opening else " "
        if before == "," and len(line) > WIDTH + 1:  # the line is full, and an item begins
            lines.append(line[:-1])
            line = " " * (indent + 2)
        elif len(line) + len(word) > WIDTH:  # the space stays, except within a text that has filled the line
            lines.append(line[:-1] if before == "" and len(line) > WIDTH else line)
            line = " " * (indent + 4)
        line, before = line + word + after, after
    return [*lines, line + closing]


def _words(value: Any) -> list[tuple[str, str]]:
    """Return the words of a list or a mapping without others in it, each with what comes behind it."""
    words: list[tuple[str, str]] = []
    for key, inner in value.items() if isinstance(value, dict) else ((None, one) for one in value):
        if key is not None:
            words.append((_key(key), ":"))
        text = _scalar(inner)
        if not IN_BRACKETS.fullmatch(text):
            raise NotPlainError
        *first, last = text.split(" ")
        words += [*((word, "") for word in first), (last, ",")]
    if words:
        words[-1] = (words[-1][0], "")
    if any(len(word) > LONGEST_WORD for word, _ in words):
        raise NotPlainError
    return words


def _key(key: Any) -> str:
    if type(key) is not str or len(key) > LONGEST or key in CONSTANTS or not KEY.fullmatch(key):
        raise NotPlainError
    return key


def _scalar(value: Any) -> str:
    """Return a number, a text or a constant as it is written."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    plain = type(value) is str and value.isprintable() and TEXT.fullmatch(value) and max(value) <= HIGHEST
    if not plain or value in CONSTANTS:
        raise NotPlainError
    return str(value)
