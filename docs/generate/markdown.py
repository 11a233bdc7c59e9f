"""Pieces of Markdown that both the repository's site and the manual show correctly."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from fredsim.config.sections import Section

__all__ = ["NOTE", "flow", "linked", "one_line", "table"]

NOTE = "<!-- Made from the code by `python -m docs.generate`; change the code, not this page. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a `|` within a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[one_line(cell).replace("\\|", "|").replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in cells)


def one_line(text: str) -> str:
    """Return a text with single spaces between its words."""
    return " ".join(text.split())


def linked(text: str, up: str) -> str:
    """Return a text in which pages, written `docs/NAME.md`, and arXiv numbers are links; `up` is the path to docs/.

    Parentheses around a page, `(docs/NAME.md)`, are kept.
    """
    parts = re.split(r"(`[^`]*`)", text)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            part = re.sub(r"docs/([\w/]+\.md)", rf"[\1]({up}\1)", part)
            parts[number] = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", part)
    return "".join(parts)


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, BaseModel):  # of a section also the keys that it leaves out of configurations
        value = dict(value) if isinstance(value, Section) else value.model_dump()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, repr(value))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{flow(key)}: {flow(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow, value))}]"
    text = str(value)
    plain = re.fullmatch(r"[\w./+][\w ./+-]*", text) if isinstance(value, str) else True
    if plain and text not in {"null", "true", "false"} and not _reads_as_number(value):
        return text
    return f"'{text}'" if "\\" in text else f'"{text}"'


def _reads_as_number(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True
