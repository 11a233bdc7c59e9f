"""Whatever a user's class gives in the place of a number, it is that number, or the run is refused in one line."""

import random
from typing import Any

import pytest

from tests.odd_numbers import GIVEN, PLACES, SAME, changes
from tests.test_odd_arrays import outcome


def tried(place: str, what: str, small: dict[str, Any]) -> str:
    data = {"name": "digits", "train": 60, "validation": 20}
    return outcome({**small, "iterations": 10, "data": data, "backend": "numpy", **changes(place, what)})


@pytest.mark.parametrize("place", PLACES)
def test_odd_numbers(place: str, digits_experiment: dict[str, Any], request: pytest.FixtureRequest) -> None:
    odd = [what for what in GIVEN if what not in {"plain", "time", "masked"}]
    some = odd if request.config.getoption("--slow") else random.Random(place).sample(odd, 2)
    right = tried(place, "plain", digits_experiment)
    assert right.startswith("finished")
    for what in ("time", "masked", *some):
        found = tried(place, what, digits_experiment)
        right_too = SAME | ({"huge"} if place == "record" else set())
        assert found.startswith("refused: ") or (found == right and what in right_too), (what, found)
        assert "exit code" not in found, (what, found)
        assert "damaged" not in found, (what, found)
