"""Which runs of a table are the best, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from fredsim.runs.folder.result import Result

__all__ = ["best_of", "common_measure"]


def common_measure(results: Sequence[Result]) -> str:
    """Return the column by which runs are compared; where some have a gap and others an error, it is the gap."""
    measures = {result.measure for result in results}
    if len(measures) == 1:
        return measures.pop()
    return "gap" if "gap" in measures else "validation_error"


def best_of(results: Sequence[Result]) -> set[int]:
    """Return the numbers of the runs with the best measure of those that finished; none if all have the same."""
    column = common_measure(results)
    found = {
        number: result.outcome.get(column)
        for number, result in enumerate(results)
        if result.summary["status"] == "finished" and not result.has_diverged
    }
    values = {number: value for number, value in found.items() if value is not None}
    if len(set(values.values())) < 2:
        return set()
    choose = max if any(result.larger_is_better(column) for result in results) else min
    best = choose(values.values())
    return {number for number, value in values.items() if value == best}
