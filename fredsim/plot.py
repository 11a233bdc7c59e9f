"""Figures from recorded runs: validation error against iterations, a line a run. The same runs give the same file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fredsim.errors import OutputError
from fredsim.results import Result

__all__ = ["labels", "plot_error"]

# Okabe and Ito (2008): eight colours that people with any colour vision can tell apart; dashes repeat the distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", "-.", ":")
FORMATS = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}


def plot_error(results: Sequence[Result], path: Path, title: str = "") -> None:
    """Write validation error against iterations to a PDF, SVG or PNG file. Raises OutputError for another suffix."""
    if path.suffix not in FORMATS:
        raise OutputError(f"{path}: unknown suffix '{path.suffix}'; choose {', '.join(FORMATS)}")
    style = {"svg.hashsalt": "fredsim", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(5.5, 3.6), layout="constrained")
        axes = figure.subplots()
        for i, (result, label) in enumerate(zip(results, labels(results), strict=True)):
            metrics = result.metrics
            axes.plot(
                metrics["iteration"].to_numpy(),
                metrics["validation_error"].to_numpy(),
                color=COLOURS[i % len(COLOURS)],
                linestyle=DASHES[i // len(COLOURS) % len(DASHES)],
                linewidth=1.3,
                label=label + (" (diverged)" if result.summary["status"] == "diverged" else ""),
            )
        axes.set_xlabel("iteration (gradients arrived)")
        axes.set_ylabel("validation error (fraction)")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.set_title(title)
        if len(results) <= 6:
            axes.legend(frameon=False)
        else:
            figure.legend(loc="outside right upper", frameon=False, fontsize=7)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=200, metadata=FORMATS[path.suffix])
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror})") from None


SYMBOLS = {"clients.count": "λ", "clients.batch_size": "µ", "server.lr": "α"}


def labels(results: Sequence[Result]) -> list[str]:
    """Return a label a run: the server's name, and every other value in which the runs differ."""
    flat = [_flatten(result.config) for result in results]
    keys = list(dict.fromkeys(key for config in flat for key in config))
    differing = [
        key for key in keys if len({repr(config.get(key)) for config in flat}) > 1 and not key.startswith("server.")
        and key not in {"name", "backend", "threads", "window"}
    ]  # fmt: skip
    texts = []
    for config in flat:
        server = config["server.name"]
        own = [
            key for key in keys if key.startswith("server.") and key != "server.name"
            and len({repr(other.get(key)) for other in flat if other["server.name"] == server}) > 1
        ]  # fmt: skip
        values = [f"{SYMBOLS.get(key, key.rpartition('.')[2])} {config[key]}" for key in (*differing, *own) if key in config]
        texts.append(", ".join([server.upper() if ":" not in server else server, *values]))
    return texts


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
