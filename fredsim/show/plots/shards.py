"""Which labels the clients' samples have: bubbles for a few clients, a heat map for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from fredsim.runs.label_counts import LabelCounts, label_counts
from fredsim.show.plots.drawing import Drawing, Kind, Options
from fredsim.show.plots.groups import COLOURS, Panel
from fredsim.show.tables import Table

__all__ = ["SHARDS", "summary_row"]

FEW = 50  # the most clients, or labels, that are drawn as bubbles
SHADES = LinearSegmentedColormap.from_list("shares", ["#ffffff", COLOURS[0], "#001b33"])


def draw(grid: Sequence[Axes], panels: Sequence[Panel], options: Options) -> Drawing:
    """Draw the first run of each panel."""
    rows, notes, several, some = [], [], False, False
    for axes, panel in zip(grid, panels, strict=True):
        runs = [run for line in panel.lines for run in line.runs]
        several |= len(runs) > 1
        held = label_counts(runs[0], options.data_root)
        some |= len(held.clients) < held.total
        axes.grid(visible=False)
        notes.append((_bubbles if max(held.counts.shape) <= FEW else _heat)(axes, held))
        axes.set_xlim(-0.5, len(held.clients) - 0.5)
        axes.set_ylim(-0.5, len(held.labels) - 0.5)
        axes.set_ylabel("label")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        rows.append(panel.row(summary_row(held)))
    caption = ["Which labels the clients' training samples have.", *dict.fromkeys(notes)]
    if some:
        caption.append("Of very many clients some are shown.")
    if several:
        caption.append("Of the runs of a panel, such as seeds, it is the first.")
    return Drawing(" ".join(caption), [Table(rows)])


SHARDS = Kind("who holds which labels", draw, panels=("data", "clients.count", "clients.partition"))


def _bubbles(axes: Axes, held: LabelCounts) -> str:
    """Draw a bubble for each client and label, whose area is proportional to the number of samples."""
    box = axes.get_window_extent()
    inch = axes.figure.get_figure(root=True).dpi
    cell = 72 / inch * min(box.width / len(held.clients), box.height / len(held.labels))
    at, label = np.nonzero(held.counts)
    values = held.counts[at, label] / held.counts.max()
    axes.scatter(at, label, s=0.8 * cell**2 * values, color=COLOURS[0], linewidths=0)
    axes.set_xlabel("client")
    return "A bubble's area is the number of samples, the largest of a panel being alike."


def _heat(axes: Axes, held: LabelCounts) -> str:
    """Draw one column per client, grouped by the most frequent label; the darker, the larger a label's share."""
    shares = held.counts / held.counts.sum(axis=1, keepdims=True)
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    axes.imshow(shares[order].T, aspect="auto", origin="lower", cmap=SHADES, vmin=0, vmax=1, interpolation="nearest")
    axes.set_xlabel("clients, by their most frequent label")
    return "A column is a client, its colour the share of a label: white none, black all of its samples."


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
