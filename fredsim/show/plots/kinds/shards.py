"""Which labels the clients' samples have: bubbles for a few clients, a heat map for many."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter

from fredsim.runs.folder.label_counts import LabelCounts, label_counts
from fredsim.show.colours import PALETTE
from fredsim.show.plots.axes import figure_of, plain_numbers
from fredsim.show.plots.drawing import Drawing, Kind, Options
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.numbers import MINUS, number
from fredsim.show.tables import Table

__all__ = ["KIND", "summary_row"]

SIZES = (1.0, 0.5, 0.1)  # the bubbles of the size key, of the largest one
FEW = 50  # the most clients, or labels, that are drawn as bubbles
SHADES = LinearSegmentedColormap.from_list("shares", ["#ffffff", PALETTE[0], "#001b33"])


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw the first run of each panel."""
    runs = [panel.runs for panel in panels]
    found = [label_counts(some[0], options.data_root) for some in runs]
    small = [max(held.counts.shape) <= FEW for held in found]
    most = max((int(held.counts.max()) for held, few in zip(found, small, strict=True) if few), default=0)
    area = min((_area(axes, held) for axes, held, few in zip(grid, found, small, strict=True) if few), default=0.0)
    notes, image = [], None
    for axes, held, few in zip(grid, found, small, strict=True):
        axes.grid(visible=False)
        if few:
            at, label = np.nonzero(held.counts)
            axes.scatter(at, label, s=area / most * held.counts[at, label], color=PALETTE[0], linewidths=0)
            axes.set_xlabel("client")
            notes.append("A bubble's area is the number of samples.")
        else:
            image = _heat(axes, held)
            notes.append("A column is a client, its colour the share of a label: white none, black all of its samples.")
        axes.set_xlim(-0.5, len(held.clients) - 0.5)
        axes.set_ylim(-0.5, len(held.labels) - 0.5)
        axes.set_ylabel("label")
        plain_numbers(axes, "x", whole=True)
        plain_numbers(axes, "y", whole=True)
        axes.yaxis.set_major_formatter(FuncFormatter(partial(_label_of_row, held)))
    if any(small):
        for size in dict.fromkeys(max(1, round(most * share)) for share in SIZES):  # in the legend
            style: dict[str, Any] = {
                "color": PALETTE[0],
                "markeredgewidth": 0,
                "markersize": (area / most * size) ** 0.5,
            }
            grid[small.index(True)].plot([], [], "o", label=number(size), **style)
    if image is not None:
        bar = figure_of(grid[0]).colorbar(image, ax=list(grid), shrink=0.8, aspect=30)
        bar.set_label("share of a client's samples")
        plain_numbers(bar.ax, "y")
    caption = ["Which labels the clients' training samples have.", *dict.fromkeys(notes)]
    if any(len(held.clients) < held.total for held in found):
        caption.append("Of very many clients some are shown.")
    if any(len(some) > 1 for some in runs):
        caption.append("Of the runs of a panel, such as seeds, it is the first.")
    rows = [panel.row(summary_row(held)) for panel, held in zip(panels, found, strict=True)]
    return Drawing(" ".join(caption), [Table(rows)], question="Which client holds which labels?", heading="samples")


KIND = Kind(draw, panels=("data", "clients.count", "clients.partition"), beside=True)


def _label_of_row(held: LabelCounts, row: float, _: int | None = None) -> str:
    """Return the label of a row: labels are any integers, with gaps, or below 0 where they do not count."""
    return str(held.labels[round(row)]).replace("-", MINUS) if 0 <= round(row) < len(held.labels) else ""


def _area(axes: Axes, held: LabelCounts) -> float:
    """Return the area, in square points, of the largest bubble that stays within its cell."""
    box = axes.get_window_extent()
    cell = min(box.width / len(held.clients), box.height / len(held.labels))
    return float(0.8 * (72 / figure_of(axes).dpi * cell) ** 2)


def _heat(axes: Axes, held: LabelCounts) -> AxesImage:
    """Draw one column per client, grouped by the most frequent label; the darker, the larger a label's share."""
    shares = held.counts / held.counts.sum(axis=1, keepdims=True)
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    axes.set_xlabel("clients, by their most frequent label")
    style: dict[str, Any] = {"cmap": SHADES, "vmin": 0, "vmax": 1, "interpolation": "nearest"}
    return axes.imshow(shares[order].T, aspect="auto", origin="lower", **style)


def summary_row(held: LabelCounts) -> dict[str, Any]:
    """Return a row about the sizes of shards and how they differ, over the clients that were counted.

    `distance` is the mean total variation distance of a client's labels from those of all of these clients together.
    """
    sizes = held.counts.sum(axis=1)
    shares = held.counts / sizes[:, None]
    together = held.counts.sum(axis=0) / sizes.sum()
    return {
        "clients": held.total,
        "smallest": int(sizes.min()),
        "median size": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "labels a client": float(np.mean(np.count_nonzero(held.counts, axis=1))),
        "share of its first label": float(np.mean(shares.max(axis=1))),
        "distance": float(np.mean(np.abs(shares - together).sum(axis=1) / 2)),
    }
