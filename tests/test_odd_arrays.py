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
from tests.odd_functions import BENT, PLACES, RAISED, USUAL, changes

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


def odd(experiment: Mapping[str, Any], how: str, place: str) -> dict[str, Any]:
    """Return a small experiment in which something odd is done at a place."""
    found = {**experiment, "iterations": 12, "data": {"name": "digits", "train": 60, "validation": 20}}
    for key, value in changes(how, place).items():
        found[key] = value if key == "server" else {**found.get(key, {}), **value}
    return found


@pytest.mark.parametrize("place", [place for place in PLACES if place != "schedule"])
def test_what_is_lent_is_given_back_as_it_was(place: str, digits_experiment: dict[str, Any]) -> None:
    """Whoever computes a run, it is refused; or what was changed is a copy, and it has the bits that it has else."""
    usual = outcome({**odd(digits_experiment, "fixed", "server"), "server": digits_experiment["server"]})
    for how in BENT:
        found = [outcome({**odd(digits_experiment, how, place), **way}) for way in WAYS]
        assert found == found[:1] * len(WAYS), (how, found)
        assert found[0].startswith("refused") or (place in {"augment", "metric"} and found[0] == usual), (how, found)


@pytest.mark.parametrize("place", PLACES)
def test_whatever_code_raises_is_an_error(place: str, digits_experiment: dict[str, Any]) -> None:
    """Also what means more to Python: an interrupt of its own, an exit, or an exception without a message."""
    for how, (_, said) in RAISED.items():
        found = outcome(odd(digits_experiment, how, place))
        assert found.startswith("refused"), (how, found)
        assert said in found, (how, found)


@pytest.mark.parametrize("place", PLACES)
def test_what_it_takes_need_not_be_known(place: str, digits_experiment: dict[str, Any]) -> None:
    """Of a class of C++ or Cython Python cannot tell it; the run has the bits that it has else."""
    found = [outcome(odd(digits_experiment, how, place)) for how in USUAL]
    assert found[0].startswith("finished")
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_thousand(digits_experiment: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    ended = Counter(compare(number, digits_experiment) for number in range(1000))
    with capsys.disabled():
        print(f"\n{ended.total()} cases: {dict(ended)}")  # noqa: T201
    assert ended["finished"] > 300 < ended["refused"] + 300
