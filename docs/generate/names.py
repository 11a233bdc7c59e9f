"""The names that an experiment may use, and its keys, for what must not import them all: `fredsim list`, completion."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from docs.generate.fields import Key, keys_of
from docs.generate.keys import all_keys, meaning_of
from docs.generate.markdown import flow
from fredsim.show.catalogue.descriptions import description
from fredsim.show.catalogue.listing import LISTINGS, Entry

__all__ = ["names_text"]


def names_text() -> str:
    """Return the content of `fredsim/show/catalogue/names.json`."""
    kinds = {
        kind: {name: _named(kind, name, entry) for name, entry in listing().items()}
        for kind, listing in LISTINGS.items()
    }
    keys: dict[str, Any] = {}
    for place in all_keys():
        found = keys.setdefault(place.key.name, [meaning_of(place.key), []])
        found[1] = list(dict.fromkeys([*found[1], *_values(place.key)]))
    return json.dumps({"kinds": kinds, "keys": keys}, indent=1, ensure_ascii=False) + "\n"


def _named(kind: str, name: str, entry: Entry) -> dict[str, Any]:
    keys = keys_of(entry.model) if entry.model else []
    return {
        "lines": entry.lines,
        "page": description(kind.removesuffix("s"), name, entry),
        "keys": {key.name: [key.meaning, _values(key)] for key in keys},
    }


def _values(key: Key) -> list[str]:
    """Return values that a key may have, as YAML: all if it is one of a few words, else its default and examples."""
    kinds = [key.field.annotation, *get_args(key.field.annotation)]
    if bool in kinds:
        return ["false", "true"]
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    default = [] if key.field.is_required() else [key.field.get_default(call_default_factory=True)]
    found = choices or [value for value in (*default, *(key.field.examples or ())) if value is not None]
    return list(dict.fromkeys(flow(value) for value in found))
