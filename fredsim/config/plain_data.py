"""Plain data: numbers, strings, lists and mappings with strings as keys, of which every experiment consists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from fredsim.errors import ConfigError, shown

__all__ = ["DEEPEST", "LETTERS", "LONGEST_LIST", "REMEDY", "Key", "checked", "dotted", "wrong_with", "wrong_with_key"]

Key = tuple[int | str, ...]

DEEPEST = 50  # the most levels of lists and mappings
LETTERS = 100  # how many letters of a text that is repeated count as much as a value
DIGITS = 100  # the most digits of an integer
LONGEST_LIST = 10_000  # the most items of a list whose own lines are remembered: as many as a sweep has runs
REMEDY = "use numbers, strings, lists or mappings"

#: Characters not allowed in strings: control characters except tab and line feed, YAML's other line ends, surrogates.
UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def dotted(key: Iterable[int | str]) -> str:
    """Return a key's name in messages: its parts joined by dots."""
    return ".".join(map(str, key))


def checked(value: Any, key: Key, source: str) -> Any:
    """Return a copy of Python data as plain data. Raises ConfigError if it has anything else in it."""
    where = f"{source}: {dotted(key)}" if key else source
    if len(key) > DEEPEST:
        raise ConfigError(f"{source}: {dotted(key[:3])}… is nested more than {DEEPEST} levels deep; make it flatter")
    if isinstance(value, dict):
        result = {}
        for name, item in value.items():
            if not isinstance(name, str):
                raise ConfigError(f"{where}: key {shown(name)} must be a string")
            if wrong := wrong_with_key(name):
                raise ConfigError(f"{where}: {wrong}")
            result[name] = checked(item, (*key, name), source)
        return result
    if isinstance(value, list | tuple):
        return [checked(item, (*key, i), source) for i, item in enumerate(value)]
    if value is None or value is True or value is False:
        return value
    if isinstance(value, Integral):  # as NumPy's integers are
        value = int(value)
    elif (plain := getattr(value, "tolist", None)) is not None and not isinstance(value, type):
        return checked(plain(), key, source)  # NumPy's arrays, and other numbers of it
    kinds: tuple[type, ...] = (int, float, str)
    for kind in kinds:  # NumPy's float64 is a float, too
        if isinstance(value, kind):
            if wrong := wrong_with(value):
                raise ConfigError(f"{where} {wrong}")
            return kind(value)
    raise ConfigError(f"{where} is a {type(value).__name__}; {REMEDY}")


def wrong_with_key(name: str) -> str:
    """Return what is wrong with a key, or an empty text."""
    if not name or len(name) > 200 or not name.isprintable():
        return f"key {shown(name)} must be of 1 to 200 printable characters"
    return ""


def wrong_with(value: Any) -> str:
    """Return what is wrong with a string or a number, or an empty text."""
    if isinstance(value, str) and (found := UNWANTED.search(value)):
        return f"is {shown(value)}; it must not hold the character {found[0]!r}: use printable ones"
    if isinstance(value, int) and abs(value) >= 10**DIGITS:
        return f"is an integer of more than {DIGITS} digits; no key takes one as large"
    return ""
