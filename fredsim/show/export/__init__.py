"""Recorded runs for other tools: `fredsim export`. Exporting the same runs again changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from fredsim.errors import ConfigError, nearest, needs
from fredsim.runs.folder.results import Result, Results, load, nothing_ended
from fredsim.show.distinct import distinct
from fredsim.show.export.recorded import ExportedRun, read_run
from fredsim.show.lacking import note_lacking
from fredsim.system.given import real_path

__all__ = ["TARGETS", "export"]

#: The tools that runs can be exported to, and the default path of the output.
TARGETS = {"tensorboard": "tensorboard", "mlflow": "mlflow.db"}


def export(folders: Sequence[Path], to: str, output: Path | None = None) -> Iterator[tuple[str, str]]:
    """Write the runs and sweeps in some folders for another tool, with that tool's own library.

    Args:
        folders: folders of runs or sweeps; runs that failed are left out.
        to: one of TARGETS.
        output: TensorBoard's folder, which gets a folder for each run; or MLflow's SQLite file. None: that of TARGETS.

    Yields each run's name and what was done: `new`, `unchanged`, or `replaced`, if there was a different run of this
    name. Raises ConfigError for another target, if its library is missing, and if two runs have the same name;
    OutputError if results cannot be read, or if the output cannot be written.

    """
    if to not in TARGETS:
        raise ConfigError(f"--to: is '{to}'{nearest(to, TARGETS)} (known: {', '.join(TARGETS)})")
    with needs(f"fredsim export --to {to}", to, to):
        write = import_module(f"fredsim.show.export.to_{to}").write
    runs: dict[str, ExportedRun] = {}
    found = list(_named(folders))
    kept = distinct([result for _, result in found])
    note_lacking(folders, "exported")
    for name, result in found:
        if result not in kept:
            continue
        if name in runs:
            where = f"{runs[name].folder} and {result.folder}"
            raise ConfigError(f"two runs would be named {name}: {where}; rename a folder, or export it elsewhere")
        runs[name] = read_run(name, result)
    yield from write(list(runs.values()), output or Path(TARGETS[to]))


def _named(folders: Sequence[Path]) -> Iterator[tuple[str, Result]]:
    """Yield each run with its name: that of its folder; for a run of a sweep, SWEEP/RUN."""
    for folder in folders:
        loaded, name = load(folder), real_path(folder).name
        if isinstance(loaded, Results):
            if not len(loaded):
                raise nothing_ended(folder)
            yield from ((f"{name}/{result.folder.name}", result) for result in loaded)
        else:
            yield name, loaded
