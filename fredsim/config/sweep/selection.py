"""Chooses among the runs of a sweep: `select: {best: validation_error, over: server.lr}`.

For each combination of the other axes, the value of `over` is chosen whose runs, over `cases` and seeds, end with the
smallest mean, as Odena (2016) chose one learning rate per server among 16. A value with fewer runs that diverged or
failed is preferred, whatever its mean. `per: server.name` chooses for each server of `cases`.

`select: {best: seconds_to, error: 0.05, over: server.lr}` compares the simulated seconds at which a run has its first
row with at most this validation error; a run that never has such a row counts as failed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import mean
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError, model_validator

from fredsim.config.document import Document, problems_at
from fredsim.config.experiment import Experiment
from fredsim.config.metrics import columns_of, is_column
from fredsim.config.registry import has_clock
from fredsim.config.sweep.grid import BEST, LOSSES, SECONDS_TO
from fredsim.errors import ConfigError, SimulationError, nearest
from fredsim.hyper import HyperParameters, Printable, explain
from fredsim.networks.network import MeasuredBy

__all__ = ["Selection", "best_rows", "check_selection", "validated"]

Row = Mapping[str, Any]
Model = TypeVar("Model", bound=HyperParameters)

#: Whose runs are measured so.
MEASURED_SO: dict[MeasuredBy, str] = {
    "own": "problem whose evaluate does not return it",
    "gap": "linear model",
    "loss": "loss without right answers",
    "error": "classifier",
}


class Selection(HyperParameters):
    """How a value of an axis is chosen for each combination of the other axes."""

    best: Annotated[Printable, Field(examples=["validation_loss"])] = "validation_error"
    """What is to be smallest: `validation_error`, `validation_loss`, `gap`, `gradient_norm` or a column of
    `evaluation.metrics` or of a problem, which may say that it is to be largest; or, with `seconds_to`, the simulated
    seconds until `error`."""
    error: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, Field(examples=[0.05])] = None
    """The validation error that is to be reached; given if, and only if, `best` is `seconds_to`."""
    over: Annotated[Annotated[list[str], Field(min_length=1)] | str, Field(examples=["server.lr"])]
    """The axis, or axes, of which a value is chosen; of an axis with mappings, the values of all keys within it."""
    per: Annotated[Annotated[list[str], Field(min_length=1)] | str | None, Field(examples=["server.name"])] = None
    """The keys of `cases`, one or several, for each of whose values there is a choice of its own; null: there is one
    choice for all cases."""

    @model_validator(mode="after")
    def check(self) -> Selection:
        """Refuse `error` without `seconds_to`, and `seconds_to` without `error`."""
        if (self.best == SECONDS_TO) != (self.error is not None):
            found = "is missing" if self.error is None else f"is {self.error}, and best is {self.best}"
            raise ValueError(f"error {found}; it goes with best: seconds_to, such as error: 0.05")
        return self

    @property
    def axes(self) -> list[str]:
        """The axes of which values are chosen."""
        return [self.over] if isinstance(self.over, str) else self.over

    @property
    def separate(self) -> list[str]:
        """The keys of `cases` that are told apart."""
        return [self.per] if isinstance(self.per, str) else self.per or []


def check_selection(selection: Selection, axes: Sequence[str], runs: Sequence[Experiment]) -> None:
    """Raise ConfigError if `over` names something that is not an axis, or if a run does not have what `best` names."""
    best, own = selection.best, _own_columns(runs, selection.best)
    evaluations = [run.evaluation.model_dump() for run in runs]
    if best not in own and best not in BEST and not all(is_column(best, one) for one in evaluations):
        names = [*(own or BEST), *dict.fromkeys(name for one in evaluations for name in columns_of(one))]
        raise ConfigError(f"select.best: is {best!r}{nearest(best, names)} (known: {', '.join(names)})")
    if best == SECONDS_TO and not all(has_clock(run.dispatcher.name) for run in runs):
        what = "is 'seconds_to', and not every run has a clock"
        raise ConfigError(f"select.best: {what}; give dispatcher: {{name: clock}}, or choose validation_error")
    if best == "gradient_norm" and not all(run.evaluation.gradient_norm for run in runs):
        what = "is 'gradient_norm', and not every run measures it"
        raise ConfigError(f"select.best: {what}; give evaluation: {{gradient_norm: true}}")
    validated = all(getattr(run.data, "validation", None) != 0 for run in runs)
    if best not in {"gap", "gradient_norm"} and not best.startswith("test_") and not validated:
        raise ConfigError(f"select.best: is {best!r}, and data.validation is 0; give the data rows to validate")
    if {True, False} <= {run.larger_is_better(best) for run in runs}:
        what = f"is {best!r}, of which more is better in some runs, and less in others"
        raise ConfigError(f"select.best: {what}; let all say the same (larger_is_better), or choose another")
    needed = {"validation_error": "error", "seconds_to": "error", "gap": "gap"}.get(best)
    measured_by = {run.measured_by for run in runs}
    if needed and best not in own and (others := measured_by - {needed}):
        whose = next(text for kind, text in MEASURED_SO.items() if kind in others)
        what = f"which runs of a {whose} have not"
        remedy = ", ".join(own) if own else "validation_loss" + (", or gap" if measured_by == {"gap"} else "")
        raise ConfigError(f"select.best: is {best!r}, {what}; give {remedy}")
    _check_axes(selection, axes)


def _own_columns(runs: Sequence[Experiment], wanted: str) -> list[str]:
    """Return the columns that problems of the user's own add to all runs; [] if some runs have no problem.

    If one cannot be asked, which its run will say, they are those that are `wanted`.
    """
    found: list[tuple[str, ...]] = []
    for run in runs:
        if run.problem is None:
            return []
        try:
            found.append(run.problem.columns(run.seed))
        except SimulationError:
            return [wanted]
    return [name for name in found[0] if all(name in one for one in found)]


def _check_axes(selection: Selection, columns: Sequence[str]) -> None:
    """Raise ConfigError if `over` or `per` names something that is not an axis, or both name the same one."""
    over = _within(selection.axes, columns)
    for axis in selection.axes:
        if not _within([axis], columns):
            known = ", ".join(columns) or "none: there is no sweep"
            raise ConfigError(f"select.over: is {axis!r}, no axis{nearest(axis, columns)} (axes: {known})")
    for axis in selection.separate:
        within = _within([axis], columns)
        if not within or {*within} & {*over}:
            known = ", ".join(one for one in columns if one not in over) or "none"
            what = "an axis of which a value is chosen" if within else f"no axis{nearest(axis, columns)}"
            raise ConfigError(f"select.per: is {axis!r}, {what} (other axes: {known})")


def _within(axes: Sequence[str], columns: Collection[str]) -> list[str]:
    """Return the columns of these axes, in the order of the axes.

    An axis with mappings has a column for each key within it, and one of its own for the values that are none.
    """
    return list(dict.fromkeys(one for axis in axes for one in columns if f"{one}.".startswith(f"{axis}.")))


def best_rows(
    selection: Selection, runs: Sequence[tuple[Row, Row]], cases: Sequence[str], *, larger: bool = False
) -> list[dict[str, Any]]:
    """Return one row per combination of the other axes: their values, the best value of `over`, and its mean.

    `runs` are (values of the axes, columns of runs.csv); `cases` are the axes that the key `cases` varies.
    `larger`: the largest mean is the best.
    """
    columns = dict.fromkeys(axis for axes, _ in runs for axis in axes)
    over = _within(selection.axes, columns)
    together = {*over, *cases, "seed"} - {*_told_apart(selection.separate, columns, [axes for axes, _ in runs])}
    others = [axis for axis in columns if axis not in together]
    groups: dict[str, dict[str, list[tuple[Row, Row]]]] = {}
    for run in runs:
        group, candidate = (repr([run[0].get(axis) for axis in some]) for some in (others, over))
        groups.setdefault(group, {}).setdefault(candidate, []).append(run)
    chosen = []
    for candidates in groups.values():
        ranked = [(found, _rank([columns for _, columns in found], selection.best)) for found in candidates.values()]
        found, (unfinished, middle) = min(ranked, key=lambda one: _order(*one[1], larger=larger))
        values = {axis: found[0][0].get(axis) for axis in (*others, *over)}
        failed = "never" if selection.best == "seconds_to" else "diverged"
        counts = {"runs": len(found), failed: unfinished, "candidates": len(candidates)}
        chosen.append({**values, f"mean_{selection.best}": middle, **counts})
    return chosen


def _told_apart(axes: Sequence[str], columns: Collection[str], runs: Sequence[Row]) -> list[str]:
    """Return the columns that tell the values of these axes apart: of keys within them, only those that are needed."""
    found = [axis for axis in axes if axis in columns]
    for column in _within(axes, columns):
        without, beside = ({repr([run.get(key) for key in keys]) for run in runs} for keys in (found, [*found, column]))
        if len(beside) > len(without):
            found.append(column)
    return found


def _rank(runs: Sequence[Row], column: str) -> tuple[int, float]:
    """Return how many runs gave no value, and the mean of the others; infinity if there are none.

    Those that diverged or failed give none, nor do those that ended with a loss, or this value, that is not finite.
    """
    measured = dict.fromkeys((*LOSSES, column))
    finite = [run for run in runs if all(math.isfinite(float(run.get(key) or 0)) for key in measured)]
    values = [float(run[column]) for run in finite if run["status"] == "finished" and run.get(column) is not None]
    return len(runs) - len(values), _mean(values) if values else math.inf


def _order(unfinished: int, mean: float, *, larger: bool) -> tuple[int, float]:
    """Return what is the smaller, the better a value is; without a mean it is worse than any that has one."""
    return unfinished, -mean if larger and math.isfinite(mean) else mean


def _mean(values: Sequence[float]) -> float:
    """Return the mean of finite values, whose sum may be beyond the largest float."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return mean(values)


def validated(document: Document, key: str, model: type[Model]) -> Model | None:
    """Return the validated value of a key for all runs together, None if it is not given. Raises ConfigError."""
    value = document.data.get(key)
    if value is None:
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise problems_at([((key, *at), text) for at, text in explain(error, model)], document.place) from None
