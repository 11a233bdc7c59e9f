"""`fredsim ls`: the results in a folder, one line each: what, when, how far, and which run is best.

It only reads, runs no code that a folder names, and follows no links, but lists those to folders. What cannot be read
is a line that says so.
"""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from fredsim.config.document import read_document
from fredsim.config.sweep.grid import LOSSES
from fredsim.config.sweep.outline import count_runs
from fredsim.errors import OutputError, warn
from fredsim.show.console import print_table
from fredsim.show.tables import short
from fredsim.show.terminal import say
from fredsim.simulation.record.status import STATUSES
from fredsim.system.csv_files import NUMBER, read_cells

__all__ = ["overview", "print_overview"]

DEFAULT = Path("results")  # where runs write, and what is listed, unless another folder is named
DEPTH = 4  # how many folders deep results are looked for
#: The files of which one is in each folder of results; the newest says when something last happened there.
FILES = ("sweep.yaml", "runs.csv", "config.yaml", "metrics.csv", "summary.json")
MOST_LETTERS = 70  # the most letters that say what is wrong
MOST = 10_000  # the most folders that are looked into
LINKED = "a link, not followed"
NOTHING: dict[str, Any] = dict.fromkeys(("results", "when", "state", "best", "measure", "run"))  # a row's cells


def overview(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each folder of results in a folder, and each link to a folder, the newest first.

    Raises OutputError if it is no folder.
    """
    if not folder.is_dir():
        raise OutputError(f"{folder}: is no folder; name one that holds results, such as results")
    found = []
    for path in _folders_of_results(folder):
        row = NOTHING | {"results": str(path), "state": ""}
        try:
            if path != folder and path.is_symlink():
                row["state"] = LINKED
            else:
                row |= _sweep(path) if _has(path, FILES[:2]) else _single(path)
        except Exception as error:  # anybody may have written what is there
            lines = str(error).splitlines() or [type(error).__name__]
            what = lines[0].removeprefix(f"{path}: ").removeprefix(f"{path}/").partition(";")[0]
            row["state"] = f"damaged: {what if len(what) <= MOST_LETTERS else f'{what[:MOST_LETTERS]}…'}"
        files = [path] if row["state"] == LINKED else [path / name for name in FILES]
        times = [os.lstat(file).st_mtime for file in files if os.path.lexists(file)]
        found.append((max(times, default=0.0), row))
    found.sort(key=lambda one: one[0], reverse=True)
    return [row | {"when": _written(time)} for time, row in found]


def print_overview(folder: Path) -> None:
    """Print which results are in a folder."""
    missing = folder == DEFAULT and not os.path.lexists(folder)  # nobody has named it
    if missing or not (rows := overview(folder)):
        say(f"{folder}: holds no results yet; `fredsim run quickstart` makes some")
        return
    table = RichTable(box=None, header_style="bold", pad_edge=False)
    for name in rows[0]:
        whole = name in {"results", "when", "best"}  # the others are broken where the terminal is narrow
        table.add_column(name, justify="right" if name == "best" else "left", no_wrap=whole, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else short(value) for value in row.values()))
    print_table(table)
    if unfinished := [row["results"] for row in rows if "unfinished" in row["state"] or "interrupted" in row["state"]]:
        first = unfinished[0]
        live = os.path.lexists(Path(first) / "live.csv")  # to simulate it would not continue it
        words = ["live", first, "--out", first] if live else ["run", first, "--resume"]
        say(f"to continue one: {shlex.join(['fredsim', *words])}")
    if linked := [row["results"] for row in rows if row["state"] == LINKED]:
        say(f"to follow a link: {shlex.join(['fredsim', 'ls', linked[0]])}")


def _folders_of_results(folder: Path) -> Iterator[Path]:
    """Yield the folders of sweeps and of single runs in a folder, or the folder itself if it is one; and its links."""
    looked, left_out, level = 0, 0, [folder]
    for depth in range(1, DEPTH + 1):
        below: list[Path] = []
        for path in level:
            looked += 1
            if _has(path, FILES) or (path != folder and path.is_symlink()):
                yield path
            elif looked < MOST:
                below += _folders_in(path)
            elif depth < DEPTH:
                left_out += 1
        level = below
    if left_out:
        what = (
            f"{folder}: has more than {MOST:,} folders, of which {left_out:,} are not looked into; name a folder in it"
        )
        warn(what)


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in entries if one.is_dir() and not one.name.startswith(".")]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def _has(folder: Path, names: tuple[str, ...]) -> bool:
    return any(os.path.lexists(folder / name) for name in names)


def _written(time: float) -> str:
    """Return a time of a file, which may be any number, as text."""
    try:
        return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "–"


def _single(folder: Path) -> dict[str, Any]:
    """Return what a run's folder says of it."""
    # What reads a run's own files takes several times as long to import as the sweeps' tables take to read.
    from fredsim.runs.checkpoint.checkpoints import Checkpoints
    from fredsim.runs.folder.result import Result, measure_of

    result = Result(folder)
    if not result.has_ended:
        read_document(folder / "config.yaml")
        from_where = "from its checkpoint" if Checkpoints(folder).folder.is_dir() else "from the beginning"
        return {"state": f"unfinished; goes on {from_where}"}
    summary = result.summary
    at = f" at {summary['iterations']:,} iterations" if summary["status"] == "interrupted" else ""
    measure = measure_of(summary)
    best = summary.get(measure, (summary.get("metrics") or {}).get(measure))
    best = best if isinstance(best, int | float) else None
    state = summary["status"] if None not in (best, summary["validation_loss"]) else result.ending
    return {"state": f"{state}{at}", "best": best, "measure": None if best is None else measure.replace("_", " ")}


def _sweep(folder: Path) -> dict[str, Any]:
    """Return what a sweep's tables say of its runs, which are not compared with the runs' own files."""
    document = read_document(folder / "sweep.yaml")
    runs = count_runs(document)
    rows = read_cells(folder / "runs.csv") if os.path.lexists(folder / "runs.csv") else []
    counts = Counter(row.get("status", "") for row in rows)
    if unknown := counts.keys() - set(STATUSES):
        raise OutputError(f"runs.csv: has the status {min(unknown)!r}, which no run has")
    ended = counts.total() - counts["interrupted"]
    parts = [f"{counts[one]} {one}" for one in STATUSES if counts[one] and one != "interrupted"]
    if ended < runs:
        parts.append(f"{runs - ended} unfinished")
    finished = [row for row in rows if row["status"] == "finished"]
    column, sign = _measure(folder, finished, own="problem" in str(document.data))
    numbers = ((sign * _number(row, column), row) for row in finished if _has_finite_losses(row))
    found = [(number, row) for number, row in numbers if math.isfinite(number)]
    best = min(found, key=lambda one: one[0], default=(math.inf, {}))
    value = sign * best[0] if found else None
    return {
        "state": f"{runs} {'run' if runs == 1 else 'runs'}: {', '.join(parts)}",
        "best": value,
        "measure": None if value is None else column.replace("_", " "),
        "run": best[1]["run"].rpartition("-")[0] if value is not None else None,
    }


def _measure(folder: Path, rows: Sequence[Mapping[str, str]], *, own: bool) -> tuple[str, int]:
    """Return the column by which a sweep's finished runs are compared, and -1 if more is better in it, else 1.

    `own`: they may be of problems of the user's own, whose summaries name it.
    """
    if own:
        from fredsim.runs.folder.result import measure_of, result_of

        for row in rows:
            with suppress(OutputError):
                if (summary := result_of(folder, row["run"]).summary).get("measured_by"):
                    return measure_of(summary), -1 if measure_of(summary) in (
                        summary.get("larger_is_better") or ()
                    ) else 1
    finite = (one for one in ("gap", "validation_error") if any(math.isfinite(_number(row, one)) for row in rows))
    return next(finite, "validation_loss"), 1


def _has_finite_losses(row: Mapping[str, str]) -> bool:
    """Return whether no loss of a run is NaN or infinite; one that it does not have is empty."""
    return all(not row.get(one) or math.isfinite(_number(row, one)) for one in LOSSES)


def _number(row: Mapping[str, str], column: str) -> float:
    """Return a cell as a number; infinity if it is none."""
    cell = row.get(column, "")
    value = float(cell) if NUMBER(cell) else float("inf")
    return value if value == value else float("inf")
