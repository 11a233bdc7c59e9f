"""YAML that is read and written the quick way: exactly as ruamel.yaml does it, or not at all."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fredsim.config import document
from fredsim.config.document import dump_yaml
from fredsim.config.plain_data import Key
from fredsim.config.yaml.any_yaml import read_any
from fredsim.config.yaml.plain_dump import dump_plain
from fredsim.config.yaml.plain_yaml import NotPlainError, read_plain
from fredsim.errors import ConfigError

ROOT = Path(__file__).parents[1]
#: What is taken in or out of a text: the beginnings and ends of everything that YAML has.
PIECES = (
    *"\n :-#,[]{}'\"&*!|>%@`?=<~\t\\_.+0e", "\n  ", "\n    ", "\n- ", "- ", ": ", ":\n", " #", "# c\n", "&a ", "*a",
    "<<: ", "!!str ", "--- ", "\n---\n", "\n...\n", "null", "true", "No", "0x1f", "0o7", "1_0", "1e5", "3.e5", "3.eta",
    ".nan", "-.inf", "2020-01-02", "\u00e9", "\u2028", "\ufeff", "\x85", "\xa0", "''", '""', "[]", "{}", "a: 1", "a:b",
    "? ", "| \n",
)  # fmt: skip


def both(text: str) -> tuple[Any, Any]:
    """Return what each reader gives, a text for an error; the quick one gives None for what it leaves alone."""
    found: list[Any] = []
    for read in (read_plain, read_any):
        places: dict[Key, str] = {}
        try:
            data = read(text, "a", places)
        except NotPlainError:
            assert not places
            found.append(None)
        except ConfigError as error:
            found.append(f"error: {error}")
        else:
            found.append((repr(data), [*places.items()]))  # repr tells 1 from 1.0 and True, and -0.0 from 0.0
    return found[0], found[1]


def changed(text: str, draw: random.Random) -> str:
    """Return a text in which one to three pieces are put in, taken out, or doubled."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice((0, 0, 1, 1, 2, 5, 20)))
        text = text[:at] + draw.choice((*PIECES, "", "", text[at:end] * 2)) + text[end:]
    return text


def try_changed(texts: list[str], seed: int, times: int) -> int:
    """Compare the readers on changed texts; return how many of them were read the quick way."""
    draw, quick = random.Random(seed), 0
    for _ in range(times):
        text = changed(draw.choice(texts), draw)
        one, other = both(text)
        assert one in (None, other), text
        quick += one is not None
    return quick


def pieces_of(text: str) -> list[str]:
    """Return the blocks of a document that begin at its left edge, a few together, which are quick to read."""
    lines = text.splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if line[0] not in " -#\n"][::3]
    blocks = ["".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
    return [block for block in blocks if len(block) < 800]


SHIPPED = sorted((ROOT / "experiments").glob("**/*.yaml"))


def test_changed_texts() -> None:
    texts = [block for path in SHIPPED for block in pieces_of(path.read_text(encoding="utf-8"))]
    assert try_changed(texts, 0, 1000) > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_changed_texts(seed: int) -> None:
    texts = [block for path in SHIPPED for block in pieces_of(path.read_text(encoding="utf-8"))]
    assert try_changed(texts, seed, 40_000) > 2000


def test_what_fredsim_ships_is_read_the_quick_way() -> None:
    """The three with most cases need not: but an anchor is all that any of them has beyond plain YAML."""
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        one, other = both(text)
        assert one == (None if "&rule" in text else other), path


WORDS = st.sampled_from(
    ["asgd", "a b", "1", "true", "null", "", "torch:m.py:net", "a: b", "\u00b5", "- a", "3.first", ".inf"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(max_size=8)
KEYS = st.sampled_from(["name", "server.lr", "x_1", "null", "1", "a-b", "\u03bb"])
DATA = st.dictionaries(
    KEYS,
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)),
    max_size=4,
)


@given(DATA)
def test_what_fredsim_writes(data: dict[str, Any]) -> None:
    one, other = both(dump_yaml(data))
    assert one in (None, other)


@given(DATA, st.lists(st.booleans(), min_size=4, max_size=4))
def test_keys_are_written_one_by_one_as_they_are_together(data: dict[str, Any], places: list[bool]) -> None:
    """Also a list that stands at several places, which is written once, and keys that were written before."""
    shared = [1, [2]]
    data = {key: shared if there else value for (key, value), there in zip(data.items(), places, strict=False)}
    assert dump_yaml(data) == document._dumped(data) == dump_yaml(data)
    assert dump_yaml({"a": [], "b": 1}) != dump_yaml({"a": [], "b": True}) != dump_yaml({"a": [], "b": 1.0})


#: Numbers and texts; some must be quoted, or escaped, and some only in brackets.
ODD = (
    None, True, 7, 10**20, -0.0, 1e-5, 1e22, float("inf"), "asgd", "a" * 14, "b" * 70, "True", "x:y", "x: y", "x #y",
    "x#y", "\u00b5", "- a", "3.first", "0x1f", "1e3", "0b1", "5f3", f"{'0' * 63}a", "0" * 64, "{a", "a]", "a, b",
    "it's", "a?", "=", "a  b", "a ", "a\n", "a:", "\ud7ff", "\uff01", "\xa0", "a...", "nan", "12:30", "2020-01-02",
)  # fmt: skip


def drawn(draw: random.Random, depth: int) -> Any:
    """Return a value of a few levels; some of its innermost lists and mappings are longer than a line."""
    if depth == 0:
        words = ["w" * draw.randint(1, 12) for _ in range(draw.randint(1, 4))]
        return draw.choice(ODD) if draw.random() < 0.03 else " ".join(words)
    count = draw.choice((0, 1, 8, 20)) if depth == 1 else draw.randint(1, 3)
    inner = [drawn(draw, draw.randint(depth > 1, depth - 1)) for _ in range(count)]
    return inner if draw.random() < 0.5 else {f"key{'_' * draw.randint(0, 9)}{i}": one for i, one in enumerate(inner)}


def compare_written(seed: int, times: int) -> tuple[int, int]:
    """Compare what is written with what ruamel.yaml writes; return how much was so quickly, and how many lines long."""
    draw, quick, broken = random.Random(seed), 0, 0
    for _ in range(times):
        data = {"key": drawn(draw, draw.randint(0, 3)) if draw.random() < 0.8 else draw.choice(ODD)}
        try:
            text = dump_plain(data)
        except NotPlainError:
            continue
        assert f"{text}z:\n- []\n" == document._dumped({**data, "z": [[]]})
        quick += 1
        broken += any(len(line) > 100 for line in text.splitlines())
    return quick, broken


def test_lines_are_broken_as_ruamel_breaks_them() -> None:
    quick, broken = compare_written(0, 500)
    assert quick > 300
    assert broken > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_much_is_written_as_ruamel_writes_it(seed: int) -> None:
    quick, broken = compare_written(seed, 5000)
    assert quick > 2500
    assert broken > 800


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 1\n", {"a": 1}),
        ("# c\n\na: -0.0 # d\nb:\n- x\n-  y z  \nc: []\nd: {}", {"a": -0.0, "b": ["x", "y z"], "c": [], "d": {}}),
        ("a: [1, 2.5e-05,  # c\n  {b: 'it''s', c: \"# :\"}]", {"a": [1, 2.5e-05, {"b": "it's", "c": "# :"}]}),
        ("a:\n- b: 1\n  c:\n    d: 2\n- e: [x]\n", {"a": [{"b": 1, "c": {"d": 2}}, {"e": ["x"]}]}),
        ("a: .inf\nb: -.inf\nc: 3.first\n", {"a": float("inf"), "b": -float("inf"), "c": "3.first"}),
        ("a: npz:r.npz\nb: {c: npz:r.npz}\n", {"a": "npz:r.npz", "b": {"c": "npz:r.npz"}}),
        ("a: TRUE\nb: Null\nc: yes\n", {"a": True, "b": None, "c": "yes"}),
    ],
)  # fmt: skip
def test_plain_texts(text: str, data: dict[str, Any]) -> None:
    one, other = both(text)
    assert one == other
    assert one[0] == repr(data)


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "- a", " a: 1", "a:", "a: 1\na: 2", "{a: 1}", "a: &b 1", "a: *b", "a: !!str 1", "a: |\n  b",
        "a: b\n  c", "true: 1", "1: a", "a:\nb: 1", "a:\n- \n- b",
        "a:\n b: 1\n  c: 2", "a:\n- b: 1\n  - c", "a: 1_0", "a: 07", "a: 2020-01-02", "a: \"\\n\"", "a: 'b\n  c'",
        "a: b: c", "a: [b: c]", "a: {b}", "a: [1", "a: 1]", "a: [1,, 2]", "a: \t1", "a: b\x07",
        "<<: {a: 1}", "a: ? b", "---\na: 1", "a: 1\n...\n", "%YAML 1.1\n---\na: 1", f"a: {'[' * 30}{']' * 30}",
        f"{'a' * 201}: 1", "a: -", "a: - b", "a: #b", "a: '1' 2", "a: [x #y]", "a: [1 #y\n]", "a: =", "a: 3.e5",
        "a: 1234567890123456789", "a: {b: 1, b: 2}",
        "a:\n" + "".join(f"{'  ' * level}- b:\n" for level in range(30)) + f"{'  ' * 30}- 1",
    ],
)  # fmt: skip
def test_what_is_left_to_the_whole_reader(text: str) -> None:
    one, other = both(text)
    assert one in (None, other)
    assert one is None or text in ("a: [1 #y\n]",)
