"""Reads any YAML text into plain data, with anchors, merge keys and every style, and says what is wrong with one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner, ScannerError

from fredsim.config.plain_data import DEEPEST, LETTERS, LONGEST_LIST, REMEDY, Key, dotted, wrong_with, wrong_with_key
from fredsim.errors import ConfigError, shown

__all__ = ["read_any"]

REPEATED = 100_000  # the most values that aliases may repeat: a few nested aliases would give billions


def read_any(text: str, source: str, places: dict[Key, str]) -> Any:
    """Return the plain data of a YAML text, as `parse_yaml` does. Raises ConfigError."""
    return _Reader(source, places).read(text)


#: What to do about an error of YAML, by what its text contains; the first that does.
REMEDIES = {
    "mapping values are not allowed": (
        "indent the keys of a mapping alike, put a space after each colon, and quotes around a text that has ': '"
    ),
    "'\\t' that cannot start": "indent with spaces, not with tabs",
    "that cannot start any token": "put quotes around the text that begins with it",
    "unexpected end of stream": "close the quotes",
    "',' or '}', but got '['": "put a space after each colon, and close every bracket",
    "',' or '}', but got '{'": "put a space after each colon, and close every bracket",
    "',' or ']'": "close the bracket, ]",
    "',' or '}'": "close the bracket, }",
    "expected ':'": "write KEY: VALUE, with a space after the colon",
    "expected <block end>": "indent the keys of a mapping alike, and close every bracket once",
    "duplicate key": "keep one",
    "undefined alias": "put quotes around the text",
    "escape character": "use single quotes, in which a backslash is only that",
    "another document": "keep one document a file",
}


#: Characters that look like others, which mean something in YAML.
LOOKALIKES = {"\u00a0": "space", "\u2007": "space", "\u202f": "space", "\u3000": "space", "\uff1a": "colon"}


def _remedy(problem: str, text: str = "", mark: Any = None) -> str:
    """Return the remedy for an error of YAML at a mark of a text, after a semicolon; nothing if none is known."""
    lines = text.split("\n")[: mark.line + 1] if mark else []
    for number, line in list(enumerate(lines, 1))[-2:]:
        if odd := next((one for one in line if one in LOOKALIKES), None):
            what = f"U+{ord(odd):04X}, which looks like a {LOOKALIKES[odd]} and is none"
            return f"; line {number} has the character {what}: type it anew"
    return next((f"; {remedy}" for part, remedy in REMEDIES.items() if part in problem), "")


class _Scanner(Scanner):
    """Refuses too deeply nested brackets as soon as they are found; ruamel would first look for their ends."""

    def fetch_flow_collection_start(self, *arguments: Any, **options: Any) -> None:
        if self.flow_level > DEEPEST:
            what = f"lists and mappings are nested more than {DEEPEST} levels deep; make it flatter"
            raise ScannerError(None, None, what, self.reader.get_mark())
        super().fetch_flow_collection_start(*arguments, **options)


class _Reader:
    """Turns the nodes of one YAML text into plain data."""

    def __init__(self, source: str, places: dict[Key, str]) -> None:
        self._source, self._places = source, places
        self._seen: set[int] = set()  # the ids of nodes seen so far: an alias refers to the same node again
        self._around: list[Node] = []
        self._repeated = 0
        self._repeating = 0

    def read(self, text: str) -> Any:
        yaml, source = YAML(typ="safe", pure=True), self._source
        yaml.Scanner = _Scanner
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about numbers that YAML 1.1 reads differently
                root = yaml.compose(text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = str(error.problem or error.context)
            raise ConfigError(f"{self._at(mark)}: not valid YAML: {problem}{_remedy(problem, text, mark)}") from None
        except ReaderError as error:
            before = text[: error.position]
            at = f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
            raise ConfigError(f"{source}{at}: not valid YAML: {error.reason}") from None
        except RecursionError:
            raise ConfigError(f"{source}: is nested more than {DEEPEST} levels deep; make it flatter") from None
        except YAMLError as error:
            raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
        except Exception as error:  # for some damaged texts ruamel raises all kinds of exceptions
            raise ConfigError(f"{source}: not valid YAML ({type(error).__name__}: {error})") from None
        self._yaml = yaml
        return None if root is None else self._value(root, ())

    def _at(self, mark: Any) -> str:
        return f"{self._source}:{mark.line + 1}:{mark.column + 1}" if mark else self._source

    def _error(self, node: Node, key: Key, what: str, *, of_key: bool = False) -> ConfigError:
        """Return an error that names the node's line, unless the source is an override."""
        place = self._source if self._source.startswith("override") else f"{self._source}:{node.start_mark.line + 1}"
        where = f"{dotted(key)}{': ' if of_key else ' '}" if key else "" if of_key else "it "
        return ConfigError(f"{place}: {where}{what}")

    def _value(self, node: Node, key: Key) -> Any:
        known = id(node) in self._seen
        self._seen.add(id(node))
        self._repeating += known
        if self._repeating:
            self._repeated += 1 + (len(node.value) // LETTERS if isinstance(node, ScalarNode) else 0)
        if self._repeated > REPEATED:
            outer = self._around[1] if len(self._around) > 1 else node
            raise self._error(outer, key[:1], f"repeats more than {REPEATED:,} values by aliases; write fewer")
        if any(node is outer for outer in self._around):
            raise self._error(node, key, "holds itself, by an alias; write out what it should hold")
        if len(self._around) > DEEPEST:
            raise self._error(node, key[:3], f"is nested more than {DEEPEST} levels deep; make it flatter")
        self._around.append(node)
        result = self._content(node, key)
        self._around.pop()
        self._repeating -= known
        return result

    def _content(self, node: Node, key: Key) -> Any:
        tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if isinstance(node, MappingNode) and tag == "map":
            result: dict[str, Any] = {}
            for name, value, place in self._pairs(node, key):
                self._places[*key, name] = place
                result[name] = self._value(value, (*key, name))
            return result
        if isinstance(node, SequenceNode) and tag == "seq":
            for i, item in enumerate(node.value if len(node.value) <= LONGEST_LIST else ()):
                self._places[*key, i] = f"{self._source}:{item.start_mark.line + 1}"
            return [self._value(item, (*key, i)) for i, item in enumerate(node.value)]
        if not isinstance(node, ScalarNode) or tag not in {"null", "bool", "int", "float", "str", "value", "merge"}:
            raise self._error(node, key, f"is {TAG_NAMES.get(tag, f'tagged {tag}')}; {REMEDY}")
        if tag in {"str", "value", "merge"}:  # = and << have a meaning only as keys
            found: Any = str(node.value)
        else:
            if tag in {"int", "float"} and "_" in str(node.value):  # which YAML 1.2 no longer takes for a number
                raise self._error(node, key, f"is {shown(node.value)}; write a number without _")
            try:
                found = self._yaml.constructor.construct_object(node)
            except Exception:  # for instance !!int fast, or more digits than Python converts
                raise self._error(node, key, f"is {shown(node.value)}; it is no {tag} that can be read") from None
        if wrong := wrong_with(found):
            raise self._error(node, key, wrong)
        return found

    def _pairs(self, node: MappingNode, key: Key) -> Iterator[tuple[str, Node, str]]:
        """Yield (key, value, place of the key) of a mapping; merged keys are yielded at the place of <<."""
        names = [self._name(one, key) for one, _ in node.value]
        own: set[str] = set()
        for name, (one, _) in zip(names, node.value, strict=True):
            if name in own:
                what = f'found duplicate key "{one.value}"'
                raise ConfigError(f"{self._at(one.start_mark)}: not valid YAML: {what}{_remedy(what)}")
            own.add(name)
        for name, (one, value) in zip(names, node.value, strict=True):
            if name != MERGE:
                yield name, value, f"{self._source}:{one.start_mark.line + 1}"
                continue
            merged: dict[str, tuple[Node, str]] = {}
            for mapping in self._merged(value, key):
                if any(mapping is outer for outer in self._around):
                    raise self._error(value, key, "holds itself, by a merge key; write out what it should hold")
                self._around.append(mapping)
                pairs = islice(self._pairs(mapping, key), REPEATED)
                merged = {inner: (item, place) for inner, item, place in pairs} | merged  # the first mapping counts
                self._around.pop()
                self._repeated += len(mapping.value)
                if self._repeated > REPEATED or len(self._around) > DEEPEST:
                    raise self._error(value, key, f"merges more than {REPEATED:,} keys; write fewer")
            yield from ((inner, *found) for inner, found in merged.items() if inner not in own)

    def _merged(self, value: Node, key: Key) -> list[MappingNode]:
        """Return the mappings that a merge key refers to."""
        found = value.value if isinstance(value, SequenceNode) else [value]
        mappings = [one for one in found if isinstance(one, MappingNode)]
        if len(mappings) < len(found):
            raise self._error(value, (*key, "<<"), "must name a mapping, or a list of mappings: such as *anchor")
        return mappings

    def _name(self, node: Node, key: Key) -> str:
        """Return a key as a string. Raises ConfigError for a key that is a number or the like and not quoted."""
        tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if tag == "merge":
            return MERGE
        if not isinstance(node, ScalarNode) or tag not in {"str", "value"}:
            kind = "that is a list" if isinstance(node, SequenceNode) else "that is a mapping"
            value = str(node.value)[:100] if isinstance(node, ScalarNode) else kind
            what = f"key {value} must be a string; quote it, or give the key's name (a decimal number has a point: 0.1)"
            raise self._error(node, key, what, of_key=True)
        if wrong := wrong_with_key(str(node.value)):
            raise self._error(node, key, wrong, of_key=True)
        return str(node.value)


MERGE = "\0<<"  # stands for a merge key: no other key can be this
#: The names of YAML's other types in messages.
TAG_NAMES = {"timestamp": "a date", "binary": "binary", "set": "a set", "omap": "an ordered mapping", "pairs": "pairs"}
