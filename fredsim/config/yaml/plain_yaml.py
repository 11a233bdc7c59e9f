"""Reads YAML text into plain data: numbers, strings, lists and mappings, and the line of each key.

Here it is read as fredsim writes it: mappings, lists and scalars, each scalar on one line, without anchors or tags.
`read_plain` gives exactly what `any_yaml` gives, in a hundredth of the time, or nothing: then the text has something
else in it, or a mistake, and `any_yaml` reads it or says what is wrong. It refuses tags, dates, sets, keys that are
not strings, and aliases that expand to millions of values. So every later message can name a key that the user can
find in the file.
"""

from __future__ import annotations

import re
from typing import Any

from fredsim.config.plain_data import LONGEST_LIST, Key
from fredsim.errors import ConfigError

__all__ = ["LONGEST", "NotPlainError", "parse_yaml", "read_plain"]

LONGEST = 4_000_000  # the most characters of a YAML text: enough for a scripted order of 500,000 entries
DEEPEST = 20  # the most levels of lists and mappings, of which any_yaml allows more

KEY = re.compile(r"([A-Za-z_][\w.-]{0,199}):(?= |\n)")
NUMBER = re.compile(
    r"(-?(?:0|[1-9][0-9]{0,17}))((?:\.[0-9]{1,40})?(?:e[+-][0-9]{1,3})?)(?= *(?:\n|,|]|}| #))"
    r"|(-?)\.(inf)(?= *(?:\n|,|]|}| #))"
)
QUOTED = re.compile(r"\"([^\"\\\n]*)\"|'((?:[^'\n]|'')*)'")
#: The beginning of a text without quotes that is no number, date or time, and the rest of one: in a line, in brackets.
BEGINNING = r"(?:[A-Za-z_]|[0-9]+\.[A-Za-z]{2})"
WORDS = re.compile(BEGINNING + r"(?:[^:#\n]|:(?=[\w/.]))*")
WORDS_IN_BRACKETS = re.compile(BEGINNING + r"(?:[\w./()+*=-]|:(?=[\w/.])| (?=[\w./()+*=-]))*")
NAMED = {"true": True, "false": False, "null": None}
CONSTANTS = {form: value for name, value in NAMED.items() for form in (name, name.capitalize(), name.upper())}

INDENT = re.compile(r"(?: *(?:#[^\n]*)?\n)*( *)")  # after lines that are empty, or comments
REST = re.compile(r" *(?: #[^\n]*)?\n")  # of a line: nothing, or a comment
GAP = re.compile(r"(?:[ \n]|(?<=[ \n])#[^\n]*)*")  # between the parts of a bracket


class NotPlainError(Exception):
    """The text has something that is not read here."""


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
        from fredsim.config.yaml.any_yaml import read_any  # which takes much longer, and imports ruamel.yaml

        return read_any(text, source, places)


def read_plain(text: str, source: str, places: dict[Key, str]) -> dict[str, Any]:
    """Return the mapping that a YAML text holds, and fill `places` as `parse_yaml` does. Raises NotPlainError."""
    if not all(map(str.isprintable, text.split("\n"))):
        raise NotPlainError
    reader = _Reader(f"{text}\n")
    if reader.indent() != 0:
        raise NotPlainError
    tree = reader.mapping(0, 0)
    if reader.at < len(reader.text):
        raise NotPlainError
    found: dict[str, Any] = _plain(tree, (), source, places)
    return found


class _Reader:
    """Reads a text from its beginning into a tree.

    A mapping is a dict of (line, node) by key, a list is one of (line, node), and a scalar is itself.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0  # where reading goes on: at the beginning of a line, wherever `indent` is asked
        self._line, self._counted = 1, 0

    def line(self) -> int:
        """Return the number of the line that is being read, from 1."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def indent(self) -> int:
        """Go to the beginning of the next line that holds something; return its indentation, -1 at the text's end."""
        found = INDENT.match(self.text, self.at)
        if found is None or found.end() == len(self.text):
            self.at = len(self.text)
            return -1
        self.at = found.start(1)
        return len(found[1])

    def block(self, around: int, depth: int) -> Any:
        """Return the lines that belong to a key, or to an item, which is indented by `around`."""
        indent = self.indent()
        if self.text.startswith("- ", self.at + indent) and indent >= around:
            return self.items(indent, depth)
        if indent <= around:
            raise NotPlainError  # nothing belongs to it
        return self.mapping(indent, depth)

    def mapping(self, indent: int, depth: int) -> dict[str, Any]:
        """Return the mapping whose keys are indented by `indent`; the first one's line is the next."""
        result: dict[str, Any] = {}
        after = indent
        while after == indent:
            self.at += indent
            if not (found := KEY.match(self.text, self.at)) or found[1] in result or found[1] in CONSTANTS:
                raise NotPlainError
            line, self.at = self.line(), found.end()
            result[found[1]] = (line, self.value(indent, depth + 1))
            after = self.indent()
        if after > indent:
            raise NotPlainError
        return result

    def items(self, indent: int, depth: int) -> list[Any]:
        """Return the list whose hyphens are indented by `indent`; the first one's line is the next."""
        result: list[Any] = []
        while self.indent() == indent and self.text.startswith("- ", self.at + indent):
            line = self.line()
            if KEY.match(self.text, self.at + indent + 2):
                result.append((line, self.mapping(indent + 2, depth + 1)))
            else:
                self.at += indent + 1
                result.append((line, self.value(indent, depth + 1, of_item=True)))
        if self.indent() > indent or len(result) > LONGEST_LIST:
            raise NotPlainError
        return result

    def value(self, indent: int, depth: int, *, of_item: bool = False) -> Any:
        """Return what stands after a key or a hyphen, up to the end of its line or of the lines that belong to it."""
        if depth > DEEPEST:
            raise NotPlainError
        if found := REST.match(self.text, self.at):
            self.at = found.end()
            if of_item:
                raise NotPlainError
            return self.block(indent, depth)
        while self.text.startswith(" ", self.at):
            self.at += 1
        if self.text[self.at] in "[{":
            result = self.bracket(depth)
        else:
            result = self.scalar(WORDS)
        if not (rest := REST.match(self.text, self.at)):
            raise NotPlainError
        self.at = rest.end()
        return result

    def scalar(self, words: re.Pattern[str]) -> Any:
        """Return the scalar at this place."""
        if found := NUMBER.match(self.text, self.at):
            self.at = found.end()
            number = "".join(filter(None, found.groups()))
            return float(number) if found[2] or found[4] else int(number)
        if found := QUOTED.match(self.text, self.at):
            self.at = found.end()
            return found[2].replace("''", "'") if found[1] is None else found[1]
        if not (found := words.match(self.text, self.at)):
            raise NotPlainError
        word = found[0].rstrip(" ")
        self.at += len(word)
        return CONSTANTS.get(word, word)

    def bracket(self, depth: int) -> Any:
        """Return the list or mapping in brackets at this place."""
        if depth > DEEPEST:
            raise NotPlainError
        is_list, result, pairs = self.text[self.at] == "[", [], {}
        self.at += 1
        self._gap()
        while not self.text.startswith("]" if is_list else "}", self.at):
            line, name = self.line(), None
            if not is_list:
                if not (found := KEY.match(self.text, self.at)) or found[1] in pairs or found[1] in CONSTANTS:
                    raise NotPlainError
                name, self.at = found[1], found.end()
                self._gap()
            opened = self.text.startswith(("[", "{"), self.at)
            node = self.bracket(depth + 1) if opened else self.scalar(WORDS_IN_BRACKETS)
            if name is None:
                result.append((line, node))
            else:
                pairs[name] = (line, node)
            self._gap()
            if self.text.startswith(",", self.at):
                self.at += 1
                self._gap()
            elif not self.text.startswith("]" if is_list else "}", self.at):
                raise NotPlainError
        self.at += 1
        if len(result) > LONGEST_LIST:
            raise NotPlainError
        return result if is_list else pairs

    def _gap(self) -> None:
        if found := GAP.match(self.text, self.at):
            self.at = found.end()


def _plain(node: Any, key: Key, source: str, places: dict[Key, str]) -> Any:
    """Return a node as plain data, and note the places of its keys and items in the order of any_yaml."""
    if isinstance(node, dict):
        result = {}
        for name, (line, value) in node.items():
            places[*key, name] = f"{source}:{line}"
            result[name] = _plain(value, (*key, name), source, places)
        return result
    if isinstance(node, list):
        places.update({(*key, i): f"{source}:{line}" for i, (line, _) in enumerate(node)})
        return [_plain(value, (*key, i), source, places) for i, (_, value) in enumerate(node)]
    return node
