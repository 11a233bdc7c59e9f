"""Documents: experiments as plain data, with the file and line of every key; reads, overrides and writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from fredsim.config.plain_data import DEEPEST, Key, wrong_with_key
from fredsim.config.yaml.plain_dump import dump_plain
from fredsim.config.yaml.plain_yaml import LONGEST, NotPlainError, parse_yaml
from fredsim.errors import ConfigError, shown
from fredsim.system.files import read_bytes

__all__ = [
    "MODELINE",
    "Document",
    "PlaceOf",
    "Problem",
    "Problems",
    "assign",
    "differing",
    "dump_yaml",
    "flatten",
    "has_key",
    "heading_of",
    "name_of_override",
    "overlap",
    "parse_override",
    "problems_at",
    "read_document",
    "value_at",
]

PlaceOf = Callable[[Key], str]
"""A function that returns the place of an experiment's key, such as `file.yaml:12`."""
Problem = tuple[Key, str]
"""A key of an experiment, and what is wrong with it."""
Problems = list[Problem]

MOST_PROBLEMS = 20  # the most problems that one message names
MODELINE = "# yaml-language-server: $schema="  # followed by a path relative to the file, or a URL
MOST_KEYS = 4  # the most keys that a message about a difference names
MOST_SHOWN = 60  # the most characters of a value in it


@dataclass(frozen=True)
class Document:
    """An experiment as plain data.

    `places` has the place of each key, such as `file.yaml:12`; `heading` is the comment above the experiment, `folder`
    is the folder of results that it was read from, if any, and `text` is that of the file.
    """

    data: dict[str, Any]
    source: str = "experiment"
    places: dict[Key, str] = field(default_factory=dict)
    heading: str = ""
    folder: Path | None = None
    text: str = ""

    def place(self, key: Key) -> str:
        """Return the place of a key; else that of the first key within it; else that of the nearest one around it."""
        if key and key not in self.places:
            for inner, place in self.places.items():
                if inner[: len(key)] == key:
                    return place
        for length in range(len(key), 0, -1):
            if key[:length] in self.places:
                return self.places[key[:length]]
        return self.source


def read_document(path: Path, *, follow: bool = False) -> Document:
    """Return a YAML file's content; `follow`: it is no file of results, and may be a symbolic link.

    Raises ConfigError, with line and column if the file does not parse.
    """
    try:
        content = read_bytes(path, follow=follow, most=4 * LONGEST)
        text = StringIO(content.decode(), newline=None).read()  # with any line ends
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a YAML file, or a run's folder") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); save it as UTF-8") from None
    places: dict[Key, str] = {}
    loaded = parse_yaml(text, str(path), places)
    if not isinstance(loaded, dict):
        found = "is empty" if loaded is None else f"holds a {'list' if isinstance(loaded, list) else 'single value'}"
        raise ConfigError(f"{path}: {found}; it must hold a mapping of keys to values, such as `name: example`")
    return Document(loaded, str(path), places, heading_of(text), text=text)


def heading_of(text: str) -> str:
    """Return the comment that a YAML file begins with, without the line that names the schema for editors."""
    heading = takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return "".join(line for line in heading if not line.startswith(MODELINE))


def parse_override(text: str) -> tuple[str, Any]:
    """Return the dotted key and the value of KEY=VALUE; the value is YAML. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key.isprintable() or any(not part for part in key.split(".")):
        form = "KEY=VALUE, without spaces around =, such as server.lr=0.01"
        raise ConfigError(f"{name_of_override(text)}: must have the form {form}")
    parts = key.split(".")
    if len(parts) > DEEPEST:
        what = f"its key has {len(parts)} parts; {DEEPEST} are the most"
        raise ConfigError(f"{name_of_override(text)}: {what}, and no key of an experiment has as many")
    if wrong := next(filter(None, map(wrong_with_key, parts)), ""):
        raise ConfigError(f"{name_of_override(text)}: {wrong}")
    return key, parse_yaml(value, name_of_override(text))


def name_of_override(text: str) -> str:
    """Return an override's name in messages."""
    return f"override '{text}'" if len(text) <= 160 and text.isprintable() else f"override {shown(text)}"


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML in block style, with keys in their order."""
    # Data without a list or mapping goes on one line, and one that stands at two places is written once: as a whole.
    nested = [value for value in data.values() if isinstance(value, (dict, list))]
    if not nested or not _all_apart(nested) or not all(isinstance(key, str) for key in data):
        return _dumped(data)
    return "".join(_lines(key, value) for key, value in data.items())


def _all_apart(values: Iterable[Any]) -> bool:
    """Return whether no list or mapping within these values is at two places."""
    seen: set[int] = set()
    left = [*values]
    while left:
        value = left.pop()
        if id(value) in seen:
            return False
        seen.add(id(value))
        inner = value.values() if isinstance(value, dict) else value
        left += [one for one in inner if isinstance(one, (dict, list))]
    return True


def _lines(key: str, value: Any) -> str:
    """Return the lines of a key and its value in a mapping in block style, which it is beside a nested list."""
    try:
        return dump_plain({key: value})
    except NotPlainError:
        after = "y" if key == "z" else "z"
        return _dumped({key: value, after: [[]]}).removesuffix(f"{after}:\n- []\n")


def _dumped(data: Mapping[str, Any]) -> str:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None  # writes innermost lists and mappings on one line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel infers None
    yaml.width = 120
    text = StringIO()
    yaml.dump(dict(data), text)
    return text.getvalue()


def assign(data: dict[str, Any], key: str, value: Any, place: str = "experiment") -> None:
    """Set a dotted key in nested mappings.

    Raises ConfigError, naming the key's `place`, if a value on the way to it is not a mapping.
    """
    *parents, last = key.split(".")
    at: Any = data
    for depth, parent in enumerate(parents):
        if at.get(parent) is None:
            at[parent] = {}
        at = at[parent]
        if not isinstance(at, dict):
            around = ".".join(parents[: depth + 1])
            raise ConfigError(f"{place}: {key}: {around} is {shown(at)}; it must be a mapping to have keys below it")
    at[last] = value


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as a single one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def has_key(flat: Mapping[str, Any], key: str) -> bool:
    """Return whether a flattened mapping has a dotted key, or keys within it."""
    return key in flat or any(one.startswith(f"{key}.") for one in flat)


def value_at(flat: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key of a flattened mapping; the keys within it, if it has such; otherwise None."""
    within = {one.removeprefix(f"{key}."): value for one, value in flat.items() if one.startswith(f"{key}.")}
    return flat.get(key, within or None)


def overlap(one: str, other: str) -> bool:
    """Return whether two dotted keys are the same, or one lies within the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def differing(one: Mapping[str, Any], other: Mapping[str, Any], form: str) -> str:
    """Say which dotted keys differ, the first few, each as `form.format(key, its value in one, its value in other)`."""
    left, right = flatten(one), flatten(other)
    keys = [key for key in left | right if key not in left or key not in right or not _equal(left[key], right[key])]
    texts = ([_as_yaml(side[key]) if key in side else "nothing" for side in (left, right)] for key in keys[:MOST_KEYS])
    found = [form.format(key, *values) for key, values in zip(keys, texts, strict=False)]
    return "; ".join([*found, *([f"and {len(keys) - MOST_KEYS} more"] if len(keys) > MOST_KEYS else [])])


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values of a key are the same; NaN is NaN."""
    return bool(one == other) or repr(one) == repr(other)


def _as_yaml(value: Any) -> str:
    """Return a value approximately as in YAML, shortened to MOST_SHOWN characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = value if isinstance(value, str) and value.isprintable() else shown(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN // 2]}…{text[-MOST_SHOWN // 2 :]}"


def problems_at(problems: Iterable[Problem], place: PlaceOf) -> ConfigError:
    """Return one error for many problems, each preceded by its place."""
    lines, problems = [], list(problems)
    for at, text in problems[:MOST_PROBLEMS]:
        key = ".".join(str(part) for part in at if part != "")
        lines.append(f"{place(at)}: {key}{': ' if key else ''}{text}")
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"{place(())}: and {len(problems) - MOST_PROBLEMS} more")
    return ConfigError(*lines)
