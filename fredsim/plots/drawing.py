"""What the kinds of figures share: what they are asked, what they hand back, columns and their units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from fredsim.errors import ConfigError, nearest
from fredsim.plots.groups import Panel
from fredsim.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Drawing", "Kind", "Options", "X", "Y", "chosen", "in_units"]

X = {
    "iterations": "iteration (gradients arrived)",
    "updates": "update (server timestamp)",
    "bytes": "pushed and fetched",
}
Y = {
    "validation_error": "validation error (fraction)",
    "validation_loss": "validation loss (nats)",
    "train_loss": "training loss (nats)",
}


@dataclass(frozen=True)
class Options:
    """What a figure is asked to show.

    `by` and `panel` are dotted keys of the experiments, as `fredsim.plots.groups.group` takes them; `x` and `y` columns
    of curves; `reach` values of `y` whose first iteration and bytes stand in the table; `log` a logarithmic y axis;
    `caption` whether the picture carries its caption and `command`.
    """

    by: Sequence[str] | None = None
    panel: Sequence[str] | None = None
    x: str = "iterations"
    y: str = "validation_error"
    reach: Sequence[float] = ()
    log: bool = False
    title: str = ""
    caption: bool = True
    command: str = ""


@dataclass(frozen=True)
class Drawing:
    """What was drawn, in a sentence or two, and in tables; and whether published points were among it."""

    caption: str
    tables: list[Table] = field(default_factory=list)
    published: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    `draw` takes the axes, the panels and the options. With `axes` 0 there is a pair of axes a panel, all with the same
    scales where they are `shared`; else there are that many, and the runs stand in one panel.
    """

    idea: str
    draw: Callable[[Sequence[Axes], Sequence[Panel], Options], Drawing]
    axes: int = 0
    shared: bool = False


def chosen(name: str, value: str, choices: Sequence[str]) -> str:
    """Return the value. Raises ConfigError where it is none of the choices."""
    if value not in choices:
        raise ConfigError(f"{name}: is '{value}'{nearest(value, choices)} (known: {', '.join(choices)})")
    return value


def x_of(metrics: pd.DataFrame, x: str) -> pd.Series[float]:
    """Return a column of metrics.csv, or the bytes pushed and fetched."""
    if x == "bytes":
        return metrics["bytes_pushed"] + metrics["bytes_fetched"]
    return metrics["iteration" if x == "iterations" else "timestamp"]


def in_units(largest: float) -> tuple[float, str]:
    """Return a number of bytes to divide by, and its name."""
    power = min(4, max(0, int(math.log10(max(largest, 1)) / 3)))
    return 1000.0**power, ("bytes", "kB", "MB", "GB", "TB")[power]
