"""How stale the gradients of each tensor of a network are, from its input to its output: by a probe `per_tensor`.

What is shown of a tensor is the B-staleness of its part of the gradient (fredsim.simulation.paths.probe), divided by
the norm of that part: 1 is a gradient of which nothing is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fredsim.errors import ConfigError
from fredsim.show.plots.axes import figure_of, unclip
from fredsim.show.plots.drawing import Drawing, Kind, Options
from fredsim.show.plots.groups import Line, Panel
from fredsim.show.plots.numbers import number
from fredsim.show.plots.titles.answers import ranked
from fredsim.show.plots.titles.subjects import subject_of
from fredsim.show.tables import Table
from fredsim.simulation.paths.probe import OF_TENSORS, of_tensor

__all__ = ["KIND", "shares_of"]

ROW, AROUND, LEAST = 0.2, 1.2, 3.0  # the heights of a tensor's row, and of a panel without them, and the least, inches


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw a panel into each Axes: each line's median share for each tensor, the first tensor at the top."""
    del options
    found = [{line.label: shares_of(line) for line in panel.lines} for panel in panels]
    tensors = [*dict.fromkeys(name for one in found for shares in one.values() for name in shares)]
    if not tensors:
        raise ConfigError(
            "kind is tensors, and no run has measured single tensors; "
            "give the experiment `probe: {every: 100, per_tensor: true}`"
        )
    highest = [share for one in found for shares in one.values() for share in shares.values() if np.isfinite(share)]
    highest = [share for share in highest if share > 0] or [1.0]
    rows = []
    for axes, panel, one in zip(grid, panels, found, strict=True):
        for line in panel.lines:
            shares = one[line.label]
            values = [shares.get(name, np.nan) for name in tensors]
            axes.plot(
                values, range(len(tensors)), color=line.colour, linestyle=line.dash, marker="o", markersize=3,
                linewidth=0.8, label=line.label,
            )  # fmt: skip
            of_line = {"line": line.label, "runs": len(line.runs)}
            rows += [panel.row(of_line | {"tensor": name, "share": share}) for name, share in shares.items()]
        axes.set_yticks(range(len(tensors)), tensors)
        axes.set_ylim(len(tensors) - 0.5, -0.5)
        axes.set_xlim(0, 1.05 * max(highest))
        axes.set_xlabel("B-staleness ÷ norm of gradient")
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        unclip(axes)
    columns = len({axes.get_position().x0 for axes in grid})
    figure_of(grid[0]).set_figheight(max(LEAST, AROUND + ROW * len(tensors)) * -(-len(grid) // columns))
    answer = ""
    if len(found) == 1:
        every = [(value, label, name) for label, one in found[0].items() for name, value in one.items()]
        if known := [one for one in every if np.isfinite(one[0])]:
            most, label, name = max(known)
            whose = f" ({subject_of(panels).full[label]})" if len(found[0]) > 1 else ""
            answer = f"Most: {name}, {number(100 * most, 3)} % of its gradient's norm{whose}"
    means = [{label: float(np.mean([*shares.values()])) for label, shares in one.items() if shares} for one in found]
    text = (
        "Medians over all probes: ‖g(θ client) − g(θ server)‖ ÷ ‖g(θ client)‖ of each tensor's part of arriving "
        "gradients, on their minibatches. The network's input is at the top."
    )
    return Drawing(
        text, [Table(rows)], question="Where in the network are old gradients the most wrong?", answer=answer,
        order=ranked(means), first="least stale first", better="← closer to fresh",
    )  # fmt: skip


KIND = Kind(draw, shared=True, shows="per_tensor")


def shares_of(line: Line) -> dict[str, float]:
    """Return by tensor the median, over the probes of a line's runs, of its B-staleness by its gradient's norm.

    Probes in which a tensor's gradient is 0 do not count for it.
    """
    probes = [run.probe for run in line.runs if (run.config.get("probe") or {}).get("per_tensor")]
    prefix = of_tensor(OF_TENSORS[0], "")
    columns = [str(name) for one in probes for name in one.columns]
    names = dict.fromkeys(name.removeprefix(prefix) for name in columns if name.startswith(prefix))
    return {name: _median(probes, name) for name in names}


def _median(probes: Sequence[pd.DataFrame], name: str) -> float:
    having = [one for one in probes if of_tensor(OF_TENSORS[0], name) in one]  # not if a run diverged before its first
    stale, norm = (np.concatenate([one[of_tensor(column, name)] for one in having]) for column in OF_TENSORS[:2])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = (stale / norm)[norm > 0]
    return float(np.median(shares)) if len(shares) else float("nan")
