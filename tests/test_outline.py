"""How many runs a recorded sweep has, found out the quick way: as if each were made, with the same errors."""

import re
from pathlib import Path
from typing import Any

import pytest

from fredsim.config.document import Document, dump_yaml, read_document
from fredsim.config.sweep.expansion import expand
from fredsim.config.sweep.outline import count_runs, outline_of
from fredsim.errors import ConfigError

REFERENCE = sorted((Path(__file__).parents[1] / "results" / "reference").glob("**/sweep.yaml"))
GRID = {"seed": [0, 1, 2], "server.lr": [0.1, 0.2]}


def both(document: Document) -> list[Any]:
    """Return the number of runs, or the error, found out either way."""
    found: list[Any] = []
    for count in (count_runs, lambda one: len(outline_of(one).runs)):
        try:
            found.append(count(document))
        except ConfigError as error:
            found.append(str(error))
    return found


def test_recorded_sweeps() -> None:
    assert len(REFERENCE) > 40
    for path in REFERENCE:
        quick, whole = both(read_document(path))
        assert quick == whole > 0, path


SEEDS = list(range(10_000))
LONG = [0.5] * 500_000


#: Each run has `iterations`, its seed, and what is given here, in which each list and mapping is a value, too.
MUCH: dict[str, tuple[dict[str, Any], str | int]] = {
    "of all": ({"order": LONG, "sweep": {"seed": SEEDS}}, "makes 10,000 runs, which have 5,000,030,000 values in all"),
    "inside": ({"order": {"x": LONG}, "sweep": {"seed": SEEDS}}, "10,000 runs, which have 5,000,040,000 values in all"),
    "axis": ({"sweep": {"order": [LONG], "seed": SEEDS}}, "10,000 runs, which have 5,000,030,000 values in all"),
    "case": ({"cases": [{"order": LONG}], "sweep": {"seed": SEEDS}}, "runs, which have 5,000,030,000 values in all"),
    "override": ({"sweep": {"seed": SEEDS}, "overrides": {"order": LONG}}, "which have 5,000,030,000 values in all"),
    "text": ({"name": "x" * 10**6, "sweep": {"seed": SEEDS}}, "10,000 runs, which have 100,030,000 values in all"),
    "cases": ({"order": LONG, "cases": [{"seed": n} for n in SEEDS]}, "10,000 runs, which have 5,000,030,000 values"),
    "a little too much": ({"order": LONG, "sweep": {"seed": SEEDS[:40]}}, "have 20,000,120 values in all; 20,000,000 "),
    "just enough": ({"order": LONG[:199_996], "sweep": {"seed": SEEDS[:100]}}, 100),  # 100 · (1 + 199,997 + 1)
    "runs": ({"sweep": {"seed": [*SEEDS, 10_000]}}, "makes 10,001 runs (10001 of seed); take away values: 10,000 are"),
    "keys": ({"sweep": {f"k{n}": [0] for n in range(200_000)}}, "varies 200,000 keys; 1,000 are the most"),
    "not too many keys": ({"sweep": {f"k{n}": [0] for n in range(1000)}}, 1),
    "keys of cases": ({"cases": [{f"k{n}": 0} for n in range(1001)]}, "sweep: varies 1,001 keys"),
    "keys of overrides": ({"sweep": {"a": [0]}, "overrides": {f"k{n}": 0 for n in range(1000)}}, "varies 1,001 keys"),
}


@pytest.mark.parametrize("name", MUCH)
def test_how_much_a_file_may_ask_for(name: str) -> None:
    """A small file must not become more than the memory holds, nor take hours; `run` refuses it, too."""
    data, says = MUCH[name]
    document = Document({"iterations": 3, **data}, "x.yaml")
    if isinstance(says, int):
        assert both(document) == [says, says]
        return
    for found in both(document):
        assert found.startswith("x.yaml: sweep: ")
        assert says in found
    with pytest.raises(ConfigError, match=re.escape(says)):
        expand(document)


@pytest.mark.parametrize(
    ("data", "runs"),
    [
        ({"sweep": GRID}, 6),
        ({"cases": [{"a": 1}, {"a.b": 2}], "sweep": GRID}, 12),
        ({"cases": [{"server": {"name": "asgd"}}], "sweep": GRID}, 6),
        ({"sweep": {"server": [{"name": "asgd"}, {"name": "sasgd"}], "server.lr": [1, 2]}}, 4),
        ({"sweep": GRID, "overrides": {"server.lr": 1, "iterations": 2}}, 6),
        ({"sweep": {"server.lr": [1, 2]}, "overrides": {"server": "asgd"}}, 2),
        ({"sweep": GRID, "cases": None}, 6),
        ({"name": "one"}, 1),
        ({"sweep": GRID, "select": {"over": "server.lr"}}, 6),
        ({"sweep": GRID, "select": {"over": ["seed"], "best": "seconds_to", "error": 0.5, "per": ["a"]}}, 6),
        # What cannot be made of some runs, or of all:
        ({"seed": 1, "sweep": {"seed.x": [1, 2], "b": [1]}}, None),
        ({"cases": [{"a": 1}, {"a": 1, "a.b": 2}], "sweep": GRID}, None),
        ({"sweep": {"server": [{"name": "asgd"}, "sasgd"], "server.lr": [1, 2]}}, None),
        ({"sweep": {"server": [{"name": "asgd"}, "sasgd"]}, "overrides": {"server.lr": 1}}, None),
        ({"sweep": GRID, "overrides": {"seed.x": 1}}, None),
        ({"sweep": GRID, "overrides": [1]}, None),
        ({"sweep": {"seed": []}}, None),
        ({"sweep": [1]}, None),
        ({"cases": [1]}, None),
        ({"sweep": {"a": [0] * 200, "b": [0] * 200}}, None),
    ],
)  # fmt: skip
def test_what_any_file_may_say(tmp_path: Path, data: dict[str, Any], runs: int | None) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(dump_yaml({"iterations": 3, **data, "figures": [{"name": "error"}]}), encoding="utf-8")
    quick, whole = both(read_document(path))
    assert quick == whole
    assert quick == runs if runs else isinstance(quick, str)
