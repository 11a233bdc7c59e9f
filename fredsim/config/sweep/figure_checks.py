"""Checks that the runs of an experiment have what its figures and its published points need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fredsim.config.document import Document, flatten, has_key, value_at
from fredsim.config.experiment import Experiment, Published
from fredsim.config.figures.choice import FigureChoice
from fredsim.config.figures.options import KINDS, MOST_LANES, MOST_TIMELINES, Y, client_ids, is_wanted
from fredsim.config.figures.quantities import of_which_less_is_better
from fredsim.config.metrics import columns_of, is_column
from fredsim.config.plain_data import Key
from fredsim.config.registry import has_clock
from fredsim.errors import ConfigError, nearest, shown

__all__ = ["check_figures"]


def check_figures(
    document: Document, runs: Sequence[Experiment], figures: Sequence[FigureChoice], published: Published | None
) -> None:
    """Raise ConfigError if a figure or a published series needs what runs lack, such as a clock."""
    flat = [flatten(run.plain()) for run in runs]
    known = list(dict.fromkeys(key for one in flat for key in one))
    if published is not None and published.y not in Y and not any(run.problem for run in runs):
        evaluations = [run.evaluation.model_dump() for run in runs]
        if not any(is_column(published.y, one) for one in evaluations):
            names = [*Y, *dict.fromkeys(name for one in evaluations for name in columns_of(one))]
            place, hint = document.place(("published", "y")), nearest(published.y, names)
            raise ConfigError(f"{place}: published.y: is '{published.y}'{hint} (known: {', '.join(names)})")
    named: list[tuple[Key, str]] = []
    for number, series in enumerate(published.series if published else []):
        named += [(("published", "series", number, "where"), key) for key in series.where]
    for number, figure in enumerate(figures):
        named += [(("figures", number, option), key) for option, key in figure.named_keys()]
    for at, key in named:
        if key not in known and not (at[-1] == "where" and any(has_key(one, key) for one in flat)):
            place, where = document.place((*at, key)), ".".join(map(str, at))
            what = f"no run has a key '{key}'{nearest(key, known) or ';'}"
            raise ConfigError(f"{place}: {where}: {what} `fredsim show` prints what there is")
    for number, figure in enumerate(figures):
        selected = _selected_runs(runs, figure)
        for option, wrong in _lacking(document, selected, figure):
            raise ConfigError(f"{document.place(('figures', number, option))}: figures.{number}.{option}: {wrong}")
        key, value = ("x", "seconds") if figure.x == "seconds" else ("kind", figure.kind)
        events = KINDS[figure.kind].events
        for run in selected if value == "seconds" or events else ():
            place, dispatcher = document.place(("figures", number, key)), run.dispatcher.name
            if not has_clock(dispatcher):
                wrong = f"is '{value}', and the dispatcher {dispatcher} has no clock; give dispatcher: {{name: clock}}"
                raise ConfigError(f"{place}: figures.{number}.{key}: {wrong}")
            if events and not run.events:
                wrong = f"is '{value}', of events that are not recorded; give the experiment `events: true`"
                raise ConfigError(f"{place}: figures.{number}.{key}: {wrong}")


def _lacking(document: Document, selected: Sequence[Experiment], figure: FigureChoice) -> Iterator[tuple[str, str]]:
    """Yield each option of a figure that asks for what its runs do not have, and what is wrong with it."""
    if not selected:
        wanted = ", ".join(f"{key}: {shown(value)}" for key, value in figure.where.items())
        yield "where", f"is {{{wanted}}}, which no run has; `fredsim show` prints what there is"
    if figure.best and document.data.get("select") is None:
        yield "best", "is true, and the experiment chooses no runs; give it `select`, or leave this out"
    if figure.kind == "probe" and not all(run.probe for run in selected):
        yield "kind", "is 'probe', and not every run has one; give the experiment `probe: {every: 100}`, or use `where`"
    if figure.kind == "tensors" and not any(run.probe and run.probe.per_tensor for run in selected):
        remedy = "give the experiment `probe: {every: 100, per_tensor: true}`"
        yield "kind", f"is 'tensors', and no run measures single tensors; {remedy}"
    yield from _unmeasured(selected, figure)
    yield from _unseen(selected, figure)


def _unmeasured(selected: Sequence[Experiment], figure: FigureChoice) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the `y` of a figure; what a problem measures only its runs say."""
    y, networks = figure.y, [run for run in selected if run.problem is None]
    if y == "gradient_norm" and not all(run.evaluation.gradient_norm for run in networks):
        remedy = "give the experiment `evaluation: {gradient_norm: true}`"
        yield "y", f"is 'gradient_norm', which not every run measures; {remedy}"
    if y == "gap" and any(run.measured_by != "gap" for run in networks):
        yield "y", "is 'gap', which only linear models have; leave it out, or give validation_loss or train_loss"
    if y not in Y and not all(is_column(y, run.evaluation.model_dump()) for run in networks):
        yield "y", f"is '{y}', which not every run measures; give it to all in `evaluation.metrics`, or use `where`"
    if figure.kind == "matrix" and not figure.reach and not of_which_less_is_better(y):
        yield "y", f"is '{y}', of which less need not be better; give the matrix `reach`, or an error or a loss as y"


def _unseen(selected: Sequence[Experiment], figure: FigureChoice) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the clients of a timeline, or of waits, and with the number of a timeline's runs."""
    clients = [] if figure.clients is None else client_ids(figure.clients)
    fewest = min((run.clients.count for run in selected), default=0)
    if clients and clients[-1] >= fewest > 0:
        yield "clients", f"names client {clients[-1]}, which not every run has; give some of 0 to {fewest - 1}"
    if figure.kind == "timeline" and len(clients) > MOST_LANES:
        yield "clients", f"names {len(clients)} clients, and a timeline has lanes for {MOST_LANES}"
    if figure.kind == "timeline" and len(selected) > MOST_TIMELINES and not figure.best:
        what = f"is 'timeline', which has a panel for each run, and these are {len(selected)}"
        yield "kind", f"{what}; select {MOST_TIMELINES} at most by `where`"


def _selected_runs(runs: Sequence[Experiment], figure: FigureChoice) -> Sequence[Experiment]:
    """Return the runs that a figure's `where` selects, by their values or by the defaults of keys that they lack."""
    if not figure.where:
        return runs

    def is_selected(values: Mapping[str, Any]) -> bool:
        return all(is_wanted(value_at(values, key), wanted) for key, wanted in figure.where.items())

    return [run for run in runs if is_selected(flatten(run.plain(whole=True)))]
