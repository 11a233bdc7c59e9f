"""Reads YAML text into plain data: numbers, strings, lists and mappings, and the line of each key.

Tags, dates, sets, keys that are not strings, and aliases that expand to millions of values are refused. So every later
message can name a key that the user can find in the file.
"""

from __future__ import annotations

from typing import Any

from fredsim.config.plain_data import Key
from fredsim.config.plain_yaml import NotPlainError, read_plain
from fredsim.errors import ConfigError

__all__ = ["LONGEST", "parse_yaml"]

LONGEST = 4_000_000  # the most characters of a YAML text: enough for a scripted order of 500,000 entries


def parse_yaml(text: str, source: str, places: dict[Key, str] | None = None) -> Any:
    """Return the plain data of a YAML text, None for an empty one.

    `source`, such as the file's name, begins every message; `places` is filled with the places of keys, such as
    `source:12`. Raises ConfigError if the text does not parse (with line and column), or is not plain data.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"{source}: has {len(text):,} characters; an experiment has {LONGEST:,} at most")
    places = {} if places is None else places
    try:
        return read_plain(text, source, places)
    except NotPlainError:
        from fredsim.config.any_yaml import read_any  # which takes much longer, and imports ruamel.yaml

        return read_any(text, source, places)
