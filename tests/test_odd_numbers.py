"""Whatever a user's class gives in the place of a number, it is that number, or the run is refused in one line."""

import random
from pathlib import Path
from typing import Any

import numpy as np
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


def ended(code: str, small: dict[str, Any], folder: Path, **changes: Any) -> set[str]:
    """Return how runs with a class `Own` of this text end on two backends."""
    text = f"import numpy as np\nfrom tests.odd_numbers import Plain\n\n\nclass Own(Plain):\n    {code}\n"
    name = f"own_{abs(hash(text))}"
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    changes = {"iterations": 12, "server": {"name": f"{name}:Own", "lr": 0.05}, **changes}
    return {outcome({**small, **changes, "backend": backend}) for backend in ("numpy", "numba")}


@pytest.mark.parametrize("flag", ["holds", "cancels", "corrects", "takes_fraction"])
def test_a_declaration_is_true_or_false(
    flag: str, digits_experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value, shown in (("'no'", "'no'"), ("np.array([1, 0])", r"array([1, 0])"), ("2", "2"), ("1.0", "1.0")):
        (found,) = ended(f"{flag} = {value}", digits_experiment, tmp_path)
        assert found == f"refused: Own, {flag}: is {shown}; it must be True or False"
    usual = ended("pass", digits_experiment, tmp_path)
    for value in ("False", "0", "np.False_", "None", *(() if flag in {"corrects", "holds"} else ("np.True_", "1"))):
        assert ended(f"{flag} = {value}", digits_experiment, tmp_path) == usual


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_client_computes_from_finite_numbers(
    value: float, digits_experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight of a pixel that is always 0 is skipped by kernels, and 0 times what is not finite is NaN elsewhere."""
    monkeypatch.chdir(tmp_path)
    code = f"def begins(self, client_id, params, timestamp):\n        params[0] = float('{value}')"
    (found,) = ended(code, digits_experiment, tmp_path)
    assert "begins: writes a value into params that is not finite" in found


def test_a_rate_of_hundreds_of_digits(
    digits_experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = {"clients": digits_experiment["clients"] | {"local_steps": 2}}
    (found,) = ended("rate = lambda self: 10**400", digits_experiment, tmp_path, **steps)
    assert found.startswith("diverged ")
