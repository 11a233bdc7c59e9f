"""Whatever array a user's class hands over, its run has the right bits on every backend, or is refused on each.

A few dozen here; `--slow` tries a thousand.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fredsim
from fredsim.errors import FredsimError
from fredsim.runs.folder.results import Result
from tests.odd_arrays import case

WAYS: list[dict[str, Any]] = [
    {"backend": "numpy", "path": "snapshots"},
    {"backend": "numba", "path": "snapshots", "threads": 2},
    {"backend": "numba", "path": "auto"},
]


def outcome(experiment: Mapping[str, Any]) -> str:
    """Return how a run ended, with its digest; or its error, without the line that it names."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = fredsim.run(dict(experiment), out=Path(folder) / "run")
        except FredsimError as error:
            return f"refused: {error}"
        assert isinstance(result, Result)
        return f"{result.summary['status']} {result.summary['digest']}"


def compare(number: int, small: Mapping[str, Any]) -> str:
    """Try a case in each way; return how it ended."""
    odd, usual, nonsense = case(number)
    small = {**small, "iterations": 40, "data": {"name": "digits", "train": 60, "validation": 20}}
    found = [outcome({**small, **odd, **way}) for way in WAYS]
    assert found == found[:1] * len(WAYS), (odd, found)
    if not found[0].startswith("refused"):
        assert not nonsense, odd
        assert found[0] == outcome({**small, **usual, "backend": "numpy"}), odd
    return found[0].partition(" ")[0]


@pytest.mark.parametrize("number", range(40))
def test_a_few(number: int, digits_experiment: dict[str, Any]) -> None:
    compare(number, digits_experiment)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_thousand(digits_experiment: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    ended = Counter(compare(number, digits_experiment) for number in range(1000))
    with capsys.disabled():
        print(f"\n{ended.total()} cases: {dict(ended)}")  # noqa: T201
    assert ended["finished"] > 300 < ended["refused"] + 300
