"""How many runs a recorded sweep has, found out the quick way: as if each were made, with the same errors."""

from pathlib import Path
from typing import Any

import pytest

from fredsim.config.document import Document, dump_yaml, read_document
from fredsim.config.sweep.outline import count_runs, outline_of
from fredsim.errors import ConfigError

REFERENCE = sorted((Path(__file__).parents[1] / "results" / "reference").glob("**/sweep.yaml"))
GRID = {"seed": [0, 1, 2], "server.lr": [0.1, 0.2]}

#: What `select` must not be.
MORE: list[dict[str, Any]] = [
    {"best": 1}, {"best": [1]}, {"best": ""}, {"more": 1}, {"per": []}, {"per": [1]}, {"per": 1}, {"error": 0.5},
    {"best": "seconds_to"}, *({"best": "seconds_to", "error": error} for error in (1.0, True, float("nan"))),
]  # fmt: skip
WRONG: list[Any] = [1, [], {}, {"over": 1}, {"over": []}, *({"over": "a", **more} for more in MORE)]


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


@pytest.mark.parametrize(
    ("data", "runs"),
    [
        ({"sweep": GRID}, 6),
        ({"cases": [{"a": 1}, {"a.b": 2}], "sweep": GRID}, 12),
        ({"cases": [{"server": {"name": "asgd"}}], "sweep": GRID}, 6),
        ({"sweep": {"server": [{"name": "asgd"}, {"name": "sasgd"}], "server.lr": [1, 2]}}, 4),
        ({"sweep": GRID, "overrides": {"server.lr": 1, "iterations": 2}}, 6),
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
        *(({"sweep": GRID, "select": select}, None) for select in WRONG),
    ],
)  # fmt: skip
def test_what_any_file_may_say(tmp_path: Path, data: dict[str, Any], runs: int | None) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(dump_yaml({"iterations": 3, **data, "figures": [{"name": "error"}]}), encoding="utf-8")
    quick, whole = both(read_document(path))
    assert quick == whole
    assert quick == runs if runs else isinstance(quick, str)
