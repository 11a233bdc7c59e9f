"""Reading and writing YAML: plain data, and for every key the file and line it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from fredsim.errors import ConfigError

__all__ = ["Document", "assign", "dump_yaml", "flatten", "heading_of", "parse_override", "read_document"]

Key = tuple[int | str, ...]


@dataclass(frozen=True)
class Document:
    """Plain data, where its parts stand (the place, such as `file.yaml:12`, of each key), and the comment above it."""

    data: dict[str, Any]
    source: str = "experiment"
    places: Mapping[Key, str] = field(default_factory=dict)
    heading: str = ""

    def place(self, key: Key) -> str:
        """Return where a key stands, or the nearest part around it that stands anywhere."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.places:
                return self.places[key[:length]]
        return self.source


def read_document(path: Path) -> Document:
    """Return a YAML file's content. Raises ConfigError with line and column where it does not parse."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a YAML file, or a run's folder") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); save it as UTF-8") from None
    loaded = _parse(text, str(path))
    if not isinstance(loaded, Mapping):
        found = "is empty" if loaded is None else f"holds a {'list' if isinstance(loaded, list) else 'single value'}"
        raise ConfigError(f"{path}: {found}; it must hold a mapping of keys to values, such as `name: example`")
    places: dict[Key, str] = {}
    data = _plain(loaded, (), str(path), places)
    return Document(data, str(path), places, heading_of(text))


def heading_of(text: str) -> str:
    """Return the lines of comment that a YAML text begins with."""
    return "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))


def parse_override(text: str) -> tuple[str, Any]:
    """Return the dotted key and the value of KEY=VALUE; the value is YAML. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key or any(not part for part in key.split(".")):
        raise ConfigError(f"override '{text}': must have the form KEY=VALUE, such as server.lr=0.01")
    return key, _plain(_parse(value, f"override '{text}'"), (), "", {})


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML in block style, keys in their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None  # innermost lists and mappings on one line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel infers None
    yaml.width = 120
    text = StringIO()
    yaml.dump(dict(data), text)
    return text.getvalue()


def _parse(text: str, source: str) -> Any:
    try:
        return YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{at}: not valid YAML: {error.problem}") from None
    except ReaderError as error:
        before = text[: error.position]
        at = f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        raise ConfigError(f"{source}{at}: not valid YAML: {error.reason}") from None
    except YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from None


def _plain(value: Any, key: Key, source: str, places: dict[Key, str]) -> Any:
    """Return ruamel's value as a plain one; fill in the places of its keys."""
    if isinstance(value, Mapping):
        result = {}
        for name, item in value.items():
            if not isinstance(name, str):
                raise ConfigError(f"{source}: key {name!r} must be a string")
            places[*key, name] = f"{source}:{value.lc.key(name)[0] + 1}"  # type: ignore[attr-defined]
            result[name] = _plain(item, (*key, name), source, places)
        return result
    if isinstance(value, list):
        return [_plain(item, (*key, i), source, places) for i, item in enumerate(value)]
    if value is None or value is True or value is False:
        return value
    kinds: tuple[type, ...] = (int, float, str)
    for kind in kinds:  # ruamel's own subclasses remember how a number was written
        if isinstance(value, kind):
            return kind(value)
    place = Document({}, source, places).place(key)
    found = f"{'.'.join(map(str, key))} is a {type(value).__name__}"
    raise ConfigError(f"{place}: {found}; use numbers, strings, lists or mappings")


def assign(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested mappings. Raises ConfigError where a part on the way is not a mapping."""
    *parents, last = key.split(".")
    at: Any = data
    for depth, parent in enumerate(parents):
        if at.get(parent) is None:
            at[parent] = {}
        at = at[parent]
        if not isinstance(at, dict):
            around = ".".join(parents[: depth + 1])
            raise ConfigError(f"{key}: {around} is {at!r}; it must be a mapping to have keys below it")
    at[last] = value


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
