"""Figures from recorded runs: validation error against iterations, a line a run. The same runs give the same file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fredsim.errors import OutputError
from fredsim.results import Result

__all__ = ["labels", "plot_error"]

# Okabe and Ito (2008): eight colours that people with any colour vision can tell apart; dashes repeat the distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", "-.", ":")
FORMATS = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}


def plot_error(results: Sequence[Result], path: Path, title: str = "") -> None:
    """Write validation error against iterations to a PDF, SVG or PNG file.

    Runs that differ in λ or µ stand in panels side by side, two a row, under one legend. Raises OutputError for a
    suffix that is none of the three, or a file that cannot be written.
    """
    if path.suffix not in FORMATS:
        raise OutputError(f"{path}: unknown suffix '{path.suffix}'; choose {', '.join(FORMATS)}")
    panels = _panels(results)
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    style: Any = {"svg.hashsalt": "fredsim", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(5.5 if columns == 1 else 7.2, 3.6 if rows == 1 else 2.5 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        looks: dict[str, tuple[str, str]] = {}  # one colour and dash a label, in every panel
        for axes, (name, members) in zip(grid.flat, panels.items(), strict=False):
            for result, label in members:
                n = len(looks)
                look = looks.setdefault(label, (COLOURS[n % len(COLOURS)], DASHES[n // len(COLOURS) % len(DASHES)]))
                _draw(axes, result, label, look)
            axes.set_title(name, fontsize=9)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.25, linewidth=0.5)
        for empty in grid.flat[len(panels) :]:
            empty.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("iteration (gradients arrived)")
        for axes in grid[:, 0]:
            axes.set_ylabel("validation error (fraction)")
        figure.suptitle(title, fontsize=10)
        if len(looks) <= 6:
            grid[0, 0].legend(frameon=False, fontsize=8)
        else:
            figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=200, metadata=FORMATS[path.suffix])
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror})") from None


def _draw(axes: Axes, result: Result, label: str, look: tuple[str, str]) -> None:
    x, y = (result.metrics[column].to_numpy() for column in ("iteration", "validation_error"))
    axes.plot(x, y, color=look[0], linestyle=look[1], linewidth=1.2, label=label)
    if result.summary["status"] == "diverged":
        axes.plot(x[-1:], y[-1:], color=look[0], marker="x", markersize=7, clip_on=False)


SYMBOLS = {"clients.count": "λ", "clients.batch_size": "µ", "server.lr": "α"}
CELL = ("clients.count", "clients.batch_size")
NO_MATTER = {"name", "backend", "threads", "window", "path", "memory"}


def labels(results: Sequence[Result]) -> list[str]:
    """Return a label a run: the server's name, and every other value in which the runs differ."""
    return _labels([_flatten(result.config) for result in results])


def _panels(results: Sequence[Result]) -> dict[str, list[tuple[Result, str]]]:
    """Return the panels' names, and the runs and labels of each: a panel for each pair of λ and µ."""
    flat = [_flatten(result.config) for result in results]
    cells = [", ".join(f"{SYMBOLS[key]} = {config[key]}" for key in CELL) for config in flat]
    if len(set(cells)) == 1:
        return {"": list(zip(results, _labels(flat), strict=True))}
    rest = _labels([{key: value for key, value in config.items() if key not in CELL} for config in flat])
    panels: dict[str, list[tuple[Result, str]]] = {}
    for cell, result, label in zip(cells, results, rest, strict=True):
        panels.setdefault(cell, []).append((result, label))
    return panels


def _labels(flat: Sequence[dict[str, Any]]) -> list[str]:
    keys = list(dict.fromkeys(key for config in flat for key in config if key not in NO_MATTER))

    def differ(key: str, among: Sequence[dict[str, Any]]) -> bool:
        return len({repr(config.get(key)) for config in among}) > 1

    texts = []
    for config in flat:
        server = config["server.name"]
        same = [other for other in flat if other["server.name"] == server]
        # A server's own hyper-parameters tell it only from others of its kind.
        telling = [
            k for k in keys if k in config and k != "server.name" and differ(k, same if "server." in k else flat)
        ]
        values = [f"{SYMBOLS.get(key, key.rpartition('.')[2])} {config[key]}" for key in telling]
        texts.append(", ".join([server if ":" in server else server.upper(), *values]))
    return texts


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
