"""The names that an experiment may use, and its keys, from names.json: nothing that they name is imported.

`python -m docs.generate` makes that file from fredsim.show.catalogue.listing and the models of the keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["keys_of_experiments", "keys_of_name", "list_text", "names_by_kind", "pages_of"]

#: The meaning of a key, and values that it may have, as YAML.
Known = tuple[str, list[str]]


@cache
def _content() -> Mapping[str, Any]:
    text = Path(__file__).with_name("names.json").read_text(encoding="utf-8")
    content: Mapping[str, Any] = json.loads(text)
    return content


def names_by_kind() -> dict[str, dict[str, str]]:
    """Return the names of each kind, such as `servers`, each with its idea."""
    return {
        kind: {name: entry["lines"][0] for name, entry in names.items()} for kind, names in _content()["kinds"].items()
    }


def keys_of_name(kind: str, name: str) -> dict[str, Known]:
    """Return the hyper-parameters of a name of a kind."""
    entry = _content()["kinds"][kind].get(name, {"keys": {}})
    return {key: (meaning, values) for key, (meaning, values) in entry["keys"].items()}


def keys_of_experiments() -> dict[str, Known]:
    """Return the keys of an experiment, dotted, without the hyper-parameters of classes that are chosen by name."""
    return {key: (meaning, values) for key, (meaning, values) in _content()["keys"].items()}


def pages_of(name: str) -> list[str]:
    """Return the descriptions of a name, one for each kind that has it, as `fredsim list NAME` prints them."""
    return [names[name]["page"] for names in _content()["kinds"].values() if name in names]


def list_text(kind: str | None) -> str:
    """Return the list of all names, or of those of a kind, as `fredsim list` prints it."""
    kinds = _content()["kinds"]
    lines = []
    for one in [kind] if kind else kinds:
        lines += [] if kind else [f"{one}:"]
        for name, entry in kinds[one].items():
            for number, line in enumerate(entry["lines"]):
                lines.append(f"{'' if kind else '  '}{name if number == 0 else '':<19} {line}")
    return "\n".join(lines)
