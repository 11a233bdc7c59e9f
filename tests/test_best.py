"""Which runs a terminal and a notebook mark as the best."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import fredsim
from fredsim.runs.folder.result import Result
from fredsim.show.best import best_of
from fredsim.show.tables import Table


def ended(
    measure: str, *, status: str = "finished", infinite: bool = False, larger: str = "", **values: float
) -> Result:
    """Return what is asked of the result of a run."""
    made = SimpleNamespace(
        measure=measure, outcome=values, summary={"status": status}, has_diverged=infinite or status == "diverged",
        larger_is_better=lambda column: column == larger,
    )  # fmt: skip
    return cast(Result, made)


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([("gap", {"gap": 2.0}), ("gap", {"gap": 1.0}), ("gap", {"gap": 1.0})], {1, 2}),  # all of them
        ([("gap", {"gap": 1.0}), ("gap", {"gap": 1.0})], set()),  # no choice
        ([("gap", {"gap": 1.0})], set()),
        ([], set()),
        ([("gap", {"gap": 1.0, "status": "interrupted"}), ("gap", {"gap": 2.0}), ("gap", {"gap": 3.0})], {1}),
        ([("gap", {"gap": 1.0, "infinite": True}), ("gap", {"gap": 2.0}), ("gap", {"gap": 3.0})], {1}),
        ([("gap", {"gap": 1.0, "status": "diverged"}), ("gap", {"gap": 2.0})], set()),
        ([("reward", {"reward": 1.0, "larger": "reward"}), ("reward", {"reward": 2.0, "larger": "reward"})], {1}),
        # By what some lack.
        ([("validation_error", {"validation_error": 0.1}), ("gap", {"gap": 2.0}), ("gap", {"gap": 3.0})], {1}),
        ([("validation_error", {"validation_error": 0.2}), ("validation_loss", {"validation_error": 0.1})], {1}),
    ],
)
def test_the_best(results: list[tuple[str, dict[str, Any]]], best: set[int]) -> None:
    assert best_of([ended(measure, **values) for measure, values in results]) == best


def test_a_terminal_and_a_notebook_mark_the_same(digits_experiment: dict[str, Any], tmp_path: Path) -> None:
    results = fredsim.sweep(digits_experiment | {"sweep": {"seed": [0, 1, 2]}}, out=tmp_path / "sweep")
    errors = [run.summary["validation_error"] for run in results]
    expected = {number for number, error in enumerate(errors) if error == min(errors)}
    assert best_of(list(results)) == expected != {0, 1, 2}
    rows = [{"run": "some"} for _ in results]
    table = Table(rows).printed(best_of(list(results)))
    assert {number for number, row in enumerate(table.rows) if row.style == "bold"} == expected
    lines = results._repr_html_().split("<tr>")[2:]
    assert {number for number, line in enumerate(lines) if "<b>" in line} == expected
