"""Shared code of the bad inputs: a case, and functions that damage bytes and plain data at random."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bad_values import CELLS, PLAIN

__all__ = ["BASE", "TOKEN", "Case", "Key", "Outcome", "as_yaml", "damaged", "nodes", "of_json", "reshaped"]

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Outcome:
    """How the command ended, and in which folder it ran."""

    code: int
    output: str
    messages: str
    folder: Path


@dataclass
class Case:
    """What is tried: the command's arguments, and files in its folder.

    `key` and `value` are the key that was given a bad value, and the value's YAML, if the case is about one key.
    """

    kind: str
    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    key: Key = ()
    value: str = ""
    #: Returns what is wrong with the outcome, "" if nothing is; called if the exit code is 0, 1 or 2.
    judge: Callable[[Outcome], str] | None = None


TOKEN = "@@"  # a placeholder for a value

BASE: dict[str, Any] = {
    "iterations": 6,
    "data": {"name": "digits", "train": 12, "validation": 3},
    "model": {"hidden": [3]},
    "clients": {"count": 3, "batch_size": 2},
    "server": {"name": "fasgd", "lr": 0.01},
    "backend": "numpy",
}


def as_yaml(data: Any, value: str) -> bytes:
    """Return data as YAML, with a text in place of the token."""
    return json.dumps(data, indent=1).replace(f'"{TOKEN}"', value).encode("utf-8", "surrogatepass")


# Bytes


def _flip(rng: random.Random, content: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, content: bytearray) -> None:
    del content[rng.choice((0, 1, rng.randrange(len(content) + 1), max(0, len(content) - 1))) :]


def _zero(rng: random.Random, content: bytearray) -> None:
    """Set a block of bytes to 0, as on a disk that never wrote it."""
    begin = rng.randrange(len(content) + 1)
    content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))


def _lose(rng: random.Random, content: bytearray) -> None:
    begin = rng.randrange(len(content) + 1)
    del content[begin : begin + rng.choice((1, 2, 8, 100))]


def _insert(rng: random.Random, content: bytearray) -> None:
    begin = rng.randrange(len(content) + 1)
    content[begin:begin] = rng.choice((b"\0", b"\n", b"\xff" * 8, rng.randbytes(5), bytes(content[:40])))


def _digit(rng: random.Random, content: bytearray) -> None:
    """Change one digit, so that a table remains a table."""
    places = [i for i, byte in enumerate(content) if 48 <= byte < 58]
    if places:
        place = rng.choice(places)
        content[place] = 48 + (content[place] - 48 + rng.randrange(1, 10)) % 10


def _lines(rng: random.Random, content: bytearray) -> None:
    """Remove a line, write it twice, or move it."""
    lines = bytes(content).splitlines(keepends=True)
    if lines:
        line = lines.pop(rng.randrange(len(lines)))
        for _ in range(rng.choice((0, 1, 1, 2))):
            lines.insert(rng.randrange(len(lines) + 1), line)
    content[:] = b"".join(lines)


def _cell(rng: random.Random, content: bytearray) -> None:
    """Write something else into a cell of a table."""
    lines = bytes(content).split(b"\n")
    at = rng.randrange(len(lines))
    cells = lines[at].split(b",")
    cells[rng.randrange(len(cells))] = rng.choice(CELLS).encode("utf-8", "surrogatepass")
    lines[at] = b",".join(cells)
    content[:] = b"\n".join(lines)


def _append(rng: random.Random, content: bytearray) -> None:
    content += rng.choice((b"\n", b"\0", bytes(content), rng.randbytes(9), b"," * 9, b"PAR1"))


DAMAGES = (_flip, _flip, _flip, _cut, _cut, _zero, _lose, _insert, _append)
OF_TEXT = (_digit, _digit, _lines, _cell)


def damaged(rng: random.Random, content: bytes, *, text: bool = False) -> bytes:
    """Return damaged bytes; for a `text`, with damage that a reader may not notice."""
    result = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2))):
        rng.choice(DAMAGES + 2 * OF_TEXT if text else DAMAGES)(rng, result)
    return bytes(result)


# Plain data


def nodes(data: Any, at: Key = ()) -> list[Key]:
    """Return the keys of all values within plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [key for name, value in items for key in [(*at, name), *nodes(value, (*at, name))]]


def inside(data: Any, key: Key) -> Any:
    for part in key:
        data = data[part]
    return data


def reshaped(rng: random.Random, data: Any, others: Sequence[Any] = PLAIN) -> Any:
    """Return plain data in which one value is removed, renamed, doubled, replaced, or moved from another place."""
    data = json.loads(json.dumps(data))
    places = nodes(data)
    if not places:
        return rng.choice(others)
    # every depth is equally likely, so that long lists are not chosen almost always
    depth = rng.choice(sorted({len(place) for place in places}))
    key = rng.choice([place for place in places if len(place) == depth])
    here, last = inside(data, key[:-1]), key[-1]
    what = rng.choice(("lose", "other", "other", "move", "swap", "wrap", "name", "number"))
    if what == "lose":
        del here[last]
    elif what == "other":
        here[last] = rng.choice(others)
    elif what == "move":
        here[last] = json.loads(json.dumps(inside(data, rng.choice(places))))
    elif what == "swap":
        other = rng.choice(places)
        if other[: len(key)] != key and key[: len(other)] != other:
            there = inside(data, other[:-1])
            here[last], there[other[-1]] = there[other[-1]], here[last]
    elif what == "wrap":
        here[last] = rng.choice(([here[last]], {"x": here[last]}, [here[last], here[last]], {"": here[last]}))
    elif what == "name" and isinstance(last, str):
        here[rng.choice((f"{last}x", last[:-1], last.upper(), "..", "../x", "/etc/passwd", "\0", "x" * 300))] = here[
            last
        ]
    elif isinstance(here[last], int | float) and not isinstance(here[last], bool):
        here[last] = rng.choice((-here[last], here[last] + 1, here[last] - 1, here[last] * 2**40, here[last] + 0.5))
    return data


def of_json(rng: random.Random, content: bytes) -> bytes:
    """Return a JSON text with changed content, or with damaged bytes."""
    if rng.random() < 0.4:
        return damaged(rng, content, text=True)
    return json.dumps(reshaped(rng, json.loads(content)), indent=2).encode() + b"\n"
