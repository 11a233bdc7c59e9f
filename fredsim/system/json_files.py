"""Reads JSON strictly: text that Python's own reader takes in its own way, or that has no bounds, is an error."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from fredsim.system.repeated import first_repeated

__all__ = ["MOST_BYTES", "parse_json"]

MOST_BYTES = 2**26  # far more than any summary.json has
LARGEST = 2**64  # no count that is recorded reaches it


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, which says what is wrong.

    Besides what is no JSON, these are errors: bytes that are not UTF-8, a key that a mapping has twice, integers beyond
    64 bits, numbers that are not finite, and text that is nested too deep.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
        return json.loads(
            text, object_pairs_hook=_mapping, parse_int=_integer, parse_float=_float, parse_constant=_refuse
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it has the key {first_repeated(name for name, _ in pairs)!r} twice")
    return found


def _integer(text: str) -> int:
    if len(text) > len(str(LARGEST)) or abs(int(text)) >= LARGEST:
        _refuse(text)
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return value


def _refuse(text: str) -> NoReturn:
    shown = text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"
    raise ValueError(f"it has the number {shown}, which is out of range")
