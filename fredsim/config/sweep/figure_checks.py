"""Checks that the runs of an experiment have what its figures and its published points need."""

from __future__ import annotations

from collections.abc import Sequence

from fredsim.config.document import Document, flatten
from fredsim.config.experiment import Experiment, Published
from fredsim.config.figures.choice import FigureChoice
from fredsim.config.figures.options import KINDS, Y, is_wanted
from fredsim.config.metrics import columns_of, is_column
from fredsim.config.plain_data import Key
from fredsim.config.registry import has_clock
from fredsim.errors import ConfigError, nearest

__all__ = ["check_figures"]


def check_figures(
    document: Document, runs: Sequence[Experiment], figures: Sequence[FigureChoice], published: Published | None
) -> None:
    """Raise ConfigError if a figure or a published series needs a key, a clock, events or a probe that runs lack."""
    known = list(dict.fromkeys(key for run in runs for key in flatten(run.plain())))
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
        if key not in known:
            place, where = document.place((*at, key)), ".".join(map(str, at))
            what = f"no run has a key '{key}'{nearest(key, known) or ';'}"
            raise ConfigError(f"{place}: {where}: {what} `fredsim show` prints what there is")
    for number, figure in enumerate(figures):
        key, value = ("x", "seconds") if figure.x == "seconds" else ("kind", figure.kind)
        events = KINDS[figure.kind].events
        for run in _selected_runs(runs, figure) if value == "seconds" or events else ():
            place, dispatcher = document.place(("figures", number, key)), run.dispatcher.name
            if not has_clock(dispatcher):
                wrong = f"is '{value}', and the dispatcher {dispatcher} has no clock; give dispatcher: {{name: clock}}"
                raise ConfigError(f"{place}: figures.{number}.{key}: {wrong}")
            if events and not run.events:
                wrong = f"is '{value}', of events that are not recorded; give the experiment `events: true`"
                raise ConfigError(f"{place}: figures.{number}.{key}: {wrong}")
        if figure.kind == "probe" and not any(run.probe for run in runs):
            place = document.place(("figures", number, "kind"))
            wrong = "is 'probe', and no run has one; give the experiment `probe: {every: 100}`"
            raise ConfigError(f"{place}: figures.{number}.kind: {wrong}")


def _selected_runs(runs: Sequence[Experiment], figure: FigureChoice) -> list[Experiment]:
    """Return the runs that a figure's `where` selects."""

    def is_selected(run: Experiment) -> bool:
        values = flatten(run.plain())
        return all(is_wanted(values.get(key), wanted) for key, wanted in figure.where.items())

    return [run for run in runs if is_selected(run)]
