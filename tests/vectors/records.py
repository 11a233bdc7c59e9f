"""Writes the records of tests/vectors/answers.txt and operators.txt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.vectors.ieee import Number

__all__ = ["record", "sealed"]

COLUMNS = {"f32": 12, "f64": 6, "u32": 12, "u8": 36, "ints": 30, "int": 1, "word": 1}


def record(kernel: str, name: str, given: dict[str, Any], answers: dict[str, Any]) -> str:
    lines = [f"{kernel} {name}"]
    for mark, arrays in (("", given), ("= ", answers)):
        for key, value in arrays.items():
            kind, words = encoded(value)
            count = COLUMNS[kind]
            rows = (words[begin : begin + count] for begin in range(0, len(words), count))
            lines += [f"{mark}{key} {kind} {' '.join(row)}" for row in rows]
    return "\n".join(lines) + "\n"


def sealed(header: str, records: Iterable[str]) -> str:
    """Return a file of records; its header also has the digests of the records, and of the programs that make them."""
    text, folder = "\n".join(records), Path(__file__).parent
    names = sorted(path.name for path in folder.glob("*.py") if not path.name.startswith(("drive_", "test_")))
    programs = "".join(f"{name}\n{(folder / name).read_text(encoding='utf-8')}" for name in names)
    of_records, of_programs = (hashlib.sha256(one.encode()).hexdigest() for one in (text, programs))
    return f"{header}#\n# SHA-256 of the records:  {of_records}\n# SHA-256 of the programs: {of_programs}\n\n{text}"


def encoded(value: Any) -> tuple[str, list[str]]:
    """Return the type and the texts of a value: an array of numbers, integers or encodings, or a single word."""
    match value:
        case str():
            return "word", [value]
        case int():
            return "int", [str(value)]
        case Number():
            return encoded([value])
        case [Number() as first, *_]:
            bits = first.kind.bits
            return f"f{bits}", [f"{x.bits():0{bits // 4}x}" for x in value]
        case ("u32" | "u8" as kind, integers):
            return kind, [f"{integer:0{8 if kind == 'u32' else 2}x}" for integer in integers]
    return "ints", [str(integer) for integer in value]
