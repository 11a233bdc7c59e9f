"""Running experiments: one, or the runs of a sweep one after another."""

from __future__ import annotations

import csv
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fredsim.document import dump_yaml
from fredsim.errors import ConfigError
from fredsim.execution import Observer, Silent, claim, execute, finished
from fredsim.experiment import located
from fredsim.plan import Plan, Source, expand, open_source
from fredsim.results import Result, Results, load

__all__ = ["run", "run_plan"]


def run(
    source: Source,
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    *,
    data_root: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Result | Results:
    """Run an experiment or a sweep and return its result.

    Args:
        source: a YAML file, the name of an experiment that comes with fredsim, or a dict of the same shape.
        overrides: `KEY=VALUE` strings with dotted keys, applied last.
        out: the folder of results; results/NAME where None.
        data_root: where data files are kept; see fredsim.datasets.data_root.
        resume: skip the runs of a sweep that have finished.

    Raises:
        ConfigError: the experiment is not valid. DataError: its data is missing or damaged. OutputError: the folder
        holds another experiment. SimulationError: a server or dispatcher broke its contract.

    """
    return run_plan(expand(open_source(source), overrides), out, root=data_root, resume=resume)


def run_plan(
    plan: Plan,
    out: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    resume: bool = False,
    observer: Observer | None = None,
) -> Result | Results:
    """Run what a plan holds, one run after another; see `run`."""
    observer = observer or Silent()
    folder = Path(out) if out is not None else Path("results") / plan.name
    if plan.is_sweep:
        claim(folder, "sweep.yaml", dump_yaml(plan.source))
    rows: list[dict[str, Any]] = []
    with stop_on_interrupt() as stop:
        for planned in plan.runs:
            experiment, label = planned.experiment, planned.label
            name = f"{label}-{experiment.digest[:8]}"
            path = folder / name if plan.is_sweep else folder
            if not (plan.is_sweep and resume and finished(path, experiment)):
                try:
                    execute(experiment, path, root=root, observer=observer, stop=stop, label=label)
                except ConfigError as error:  # what shows only beside the data
                    raise located(error, planned.origin) from None
            if plan.is_sweep:
                rows.append({"run": name, **_flat(planned.axes), **_summary_columns(path)})
                _write_runs(folder / "runs.csv", rows)
            if stop():
                break
    return load(folder)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Turn the first interrupt (Ctrl-C) into a request to stop after the events at hand; a second one kills."""
    asked = threading.Event()

    def ask(number: int, frame: object) -> None:
        del number, frame
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


SUMMARY_COLUMNS = (
    "status", "iterations", "updates", "validation_loss", "validation_error", "test_error",
    "bytes_pushed", "bytes_fetched", "digest",
)  # fmt: skip


def _summary_columns(folder: Path) -> dict[str, Any]:
    summary = Result(folder).summary
    return {key: summary[key] for key in SUMMARY_COLUMNS}


def _flat(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes' values as columns, those of a mapping under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in axes.items():
        if isinstance(value, Mapping):
            flat |= _flat({f"{key}.{name}": item for name, item in value.items()})
        else:
            flat[key] = value
    return flat


def _write_runs(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = list(dict.fromkeys(key for row in rows for key in row if key not in SUMMARY_COLUMNS))
    arriving = path.with_suffix(".csv.part")
    with arriving.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*axes, *SUMMARY_COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    arriving.replace(path)
